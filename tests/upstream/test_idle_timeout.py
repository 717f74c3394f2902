"""Who was silent for too long is woken; who shows signs of life is left alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from gateway.core.errors import UpstreamStalled
from gateway.upstream.idle_timeout import IdleTimeout, Watch

IDLE_SECONDS = 0.1


@pytest.fixture
async def dog() -> AsyncIterator[IdleTimeout]:
    watchdog = IdleTimeout(IDLE_SECONDS)
    watchdog.start()
    yield watchdog
    await watchdog.stop()


@contextmanager
def watched(dog: IdleTimeout, idle_seconds: float) -> Iterator[Watch]:
    watch = dog.begin("toy", idle_seconds, asyncio.current_task())
    try:
        yield watch
    finally:
        dog.end(watch)


async def wait_in_vain(watch: Watch) -> None:
    """As the relay waits: what woke it is explained."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise watch.explain(error) or error from None


async def test_a_waiting_task_is_woken_in_time(dog: IdleTimeout) -> None:
    started = time.monotonic()
    with watched(dog, IDLE_SECONDS) as watch, pytest.raises(UpstreamStalled, match=r"0\.1 s"):
        await wait_in_vain(watch)
    assert IDLE_SECONDS <= time.monotonic() - started < 10 * IDLE_SECONDS


async def test_the_task_is_not_taken_for_cancelled_afterwards(dog: IdleTimeout) -> None:
    with watched(dog, IDLE_SECONDS) as watch, pytest.raises(UpstreamStalled):
        await wait_in_vain(watch)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    async with asyncio.timeout(5):
        await asyncio.sleep(2 * IDLE_SECONDS)


async def test_signs_of_life_are_seen(dog: IdleTimeout) -> None:
    with watched(dog, IDLE_SECONDS) as watch:
        for _ in range(10):
            await asyncio.sleep(IDLE_SECONDS / 4)
            watch.seen_seconds = time.monotonic()


async def test_who_is_no_longer_watched_is_left_alone(dog: IdleTimeout) -> None:
    with watched(dog, IDLE_SECONDS):
        pass
    await asyncio.sleep(3 * IDLE_SECONDS)


async def test_each_has_its_own_patience(dog: IdleTimeout) -> None:
    with watched(dog, 60):
        await asyncio.sleep(3 * IDLE_SECONDS)


async def test_a_cancellation_from_elsewhere_stays_one(dog: IdleTimeout) -> None:
    async def work() -> None:
        with watched(dog, 60) as watch:
            await wait_in_vain(watch)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_silence_does_not_end_another_wait(dog: IdleTimeout) -> None:
    async def work(patience_seconds: float) -> str:
        try:
            async with asyncio.timeout(0.4):
                with watched(dog, patience_seconds) as watch:
                    await wait_in_vain(watch)
        except UpstreamStalled:
            return "stalled"
        except TimeoutError:
            return "waited"
        return ""

    assert list(await asyncio.gather(work(IDLE_SECONDS), work(60))) == ["stalled", "waited"]


async def test_a_watch_barks_once() -> None:
    with watched(IdleTimeout(IDLE_SECONDS), IDLE_SECONDS) as watch:
        later = time.monotonic() + 1
        watch.check(later)
        watch.check(later)
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await asyncio.sleep(0)
        assert isinstance(watch.explain(cancelled.value), UpstreamStalled)
    await asyncio.sleep(0)


async def test_a_watchdog_that_never_started_stops() -> None:
    await IdleTimeout(1).stop()
