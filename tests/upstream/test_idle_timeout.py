"""An upstream that is silent for too long ends its exchange; one that shows signs of life does not."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gateway.core.errors import UpstreamStalled
from gateway.upstream.idle_timeout import IdleSweeper, IdleTimeout
from tests.builders.upstream import make_upstream

IDLE_SECONDS = 10.0


class Response:
    """A response that only counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def make_timeout() -> IdleTimeout:
    return IdleTimeout(make_upstream(idle_seconds=IDLE_SECONDS), asyncio.current_task())


def later(seconds: float = IDLE_SECONDS + 1) -> float:
    return time.monotonic() + seconds


async def wait_for_nothing(idle: IdleTimeout) -> None:
    """As the relay waits: a cancellation by the idle becomes its error."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise idle.find_stall(error) or error from None


async def test_a_task_that_waits_for_too_long_is_woken() -> None:
    idle = make_timeout()
    asyncio.get_running_loop().call_soon(idle.check, later())
    with pytest.raises(UpstreamStalled, match=r"default: https://api\.test was silent for 10 s"):
        await wait_for_nothing(idle)


async def test_the_task_does_not_count_as_cancelled_afterwards() -> None:
    idle = make_timeout()
    asyncio.get_running_loop().call_soon(idle.check, later())
    with pytest.raises(UpstreamStalled):
        await wait_for_nothing(idle)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_it_knows_when_the_request_was_sent_and_what_came_when() -> None:
    idle = make_timeout()
    heads = [idle.head_seconds]
    assert idle.last_seconds == idle.begun_seconds
    idle.expect_from(Response())
    heads.append(idle.head_seconds)
    idle.reset()
    idle.pause()
    assert heads[0] is None and heads[1] is not None
    assert idle.begun_seconds <= heads[1] <= idle.last_seconds <= time.monotonic()


async def test_a_task_is_woken_once() -> None:
    idle = make_timeout()
    idle.check(later())
    idle.check(later())
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await asyncio.sleep(0)
    assert isinstance(idle.find_stall(cancelled.value), UpstreamStalled)
    await asyncio.sleep(0)


async def test_once_there_is_a_response_it_is_closed_and_the_task_is_not_cancelled() -> None:
    idle, response = make_timeout(), Response()
    idle.expect_from(response)
    idle.check(later())
    assert response.closed == 1
    await asyncio.sleep(0)
    assert isinstance(idle.find_stall(OSError()), UpstreamStalled)


async def test_a_sign_of_life_starts_the_time_again() -> None:
    idle, response = make_timeout(), Response()
    idle.expect_from(response)
    idle.check(later(IDLE_SECONDS - 1))
    idle.reset()
    idle.check(later(IDLE_SECONDS - 1))
    assert response.closed == 0


async def test_a_pause_lasts_until_the_next_sign_of_life() -> None:
    idle, response = make_timeout(), Response()
    idle.expect_from(response)
    idle.pause()
    idle.check(later(1_000_000))
    assert response.closed == 0
    idle.reset()
    idle.check(later())
    assert response.closed == 1


async def test_an_error_with_another_cause_stays_what_it_is() -> None:
    assert make_timeout().find_stall(OSError()) is None

    async def work() -> None:
        await wait_for_nothing(make_timeout())

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def sweeper() -> AsyncIterator[IdleSweeper]:
    sweeper = IdleSweeper(shortest_idle_seconds=0.04)
    sweeper.start()
    yield sweeper
    await sweeper.stop()


async def test_the_sweeper_wakes_only_the_task_whose_upstream_is_silent_for_too_long(
    sweeper: IdleSweeper,
) -> None:
    async def work(idle_seconds: float) -> None:
        idle = sweeper.watch(make_upstream(idle_seconds=idle_seconds))
        try:
            await wait_for_nothing(idle)
        finally:
            sweeper.end(idle)

    patient = asyncio.create_task(work(600))
    with pytest.raises(UpstreamStalled):
        await work(0.1)
    assert not patient.done()
    patient.cancel()


async def test_a_response_is_closed_at_the_end_of_its_exchange_and_not_watched_any_longer(
    sweeper: IdleSweeper,
) -> None:
    response = Response()
    idle = sweeper.watch(make_upstream(idle_seconds=0.02))
    idle.expect_from(response)
    sweeper.end(idle)
    await asyncio.sleep(0.1)
    assert response.closed == 1


async def test_a_sweeper_that_never_started_can_be_stopped() -> None:
    await IdleSweeper(1).stop()
