"""The contract of counters and places: counted together, and by each alone while the store is away."""

import asyncio
import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.backends import SHARED, Backend, Supervisor, User, find_window_wait
from tests.toy.running import wait_until

ALONE = "limits of tenants hold in each process alone: the store cannot be reached"
TOGETHER = "limits of tenants hold over all processes again"
# The disk of one process counts in memory, and so does the toy.
every = pytest.mark.parametrize("place", ["memory", *SHARED[1:]], indirect=True)
shared = pytest.mark.parametrize("place", SHARED[1:], indirect=True)


async def allow(user: User, *costs: int, most: int = 3) -> list[bool]:
    return [await user.count(cost, most) == 0 for cost in costs]


@every
async def test_as_much_as_the_limit_is_counted_and_the_rest_is_told_how_long_to_wait(user: User) -> None:
    assert await allow(user, 1, 1, 1) == [True] * 3
    assert 0 < await user.count() <= 2 * 3_600


@every
async def test_what_is_refused_is_not_counted(user: User) -> None:
    assert await allow(user, 2, 2, 2, 2, 1, 1) == [True, False, False, False, True, False]


@every
async def test_counters_are_apart_and_go_on_when_their_limit_changes(user: User) -> None:
    assert await user.count(3) == 0 and await user.count(3, name="others") == 0
    assert await allow(user, 2, 1, most=5) == [True, False]
    assert await user.count(name="others") > 0


@every
@pytest.mark.parametrize(("change", "left"), [(2, 0), (-1, 3), (0, 2), (100, 0)])
async def test_a_correction_counts_whatever_the_limit_is(user: User, change: int, left: int) -> None:
    await user.count()
    await user.correct(change)
    assert (await allow(user, *[1] * 5)).count(True) == left


@shared
async def test_many_attempts_of_several_processes_never_exceed_the_limit(backend: Backend) -> None:
    users = await backend.connect_two()
    waits = await asyncio.gather(*(users[at % 2].count(most=50) for at in range(200)))
    holds = [users[at % 2].hold(users[at % 2].make_place(), 7) for at in range(100)]
    assert waits.count(0) == 50
    assert (await asyncio.gather(*holds)).count(True) == 7


@every
async def test_a_place_is_held_until_it_is_given_back(user: User) -> None:
    first, second = user.make_place(), user.make_place()
    assert [await user.hold(first), await user.hold(second), await user.hold(user.make_place("other"))] == [
        True,
        False,
        True,
    ]
    user.let_go(first)
    async with asyncio.timeout(30):
        while not await user.hold(second):
            await asyncio.sleep(0)


@shared
async def test_a_place_that_one_process_gives_back_is_free_for_another(backend: Backend) -> None:
    one, other = await backend.connect_two()
    place = one.make_place()
    assert await one.hold(place) and not await other.hold(other.make_place())
    one.let_go(place)
    async with asyncio.timeout(30):
        while not await other.hold(other.make_place()):
            await asyncio.sleep(0.01)


@shared
async def test_a_process_that_ends_gives_back_what_it_holds(backend: Backend) -> None:
    one, other = await backend.connect_two()
    assert await one.hold(one.make_place())
    await one.ledger.close()
    assert await other.hold(other.make_place())


@every
@pytest.mark.parametrize("steps", range(6))
async def test_a_request_that_ends_while_its_place_is_taken_leaves_none(user: User, steps: int) -> None:
    place = user.make_place()
    taking = asyncio.create_task(user.hold(place))
    for _ in range(steps):
        await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    user.let_go(place)
    async with asyncio.timeout(30):
        while not await user.hold(user.make_place()):
            await asyncio.sleep(0)


# While the store is away


async def test_each_process_counts_alone_while_they_are_apart_and_together_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.quotas")
    supervisor = Supervisor()
    async with supervisor.processes(2) as (one, other):
        assert await allow(one, 1, 1, 1, 1) == [True, True, True, False]
        supervisor.is_away = True
        assert [await allow(user, 1, 1, 1, 1) for user in (one, other)] == [[True, True, True, False]] * 2
        supervisor.is_away = False
        assert [await allow(user, 1) for user in (one, other)] == [[False], [False]]
    assert [record.getMessage() for record in caplog.records] == [ALONE] * 2 + [TOGETHER] * 2


async def test_requests_that_ran_before_hold_their_places_while_the_store_is_away() -> None:
    supervisor = Supervisor()
    async with supervisor.processes(1) as (user,):
        place = user.make_place()
        assert await user.hold(place)
        supervisor.is_away = True
        assert not await user.hold(user.make_place())
        user.let_go(place)
        assert await user.hold(user.make_place())


async def test_requests_that_began_alone_hold_their_places_when_the_store_is_back() -> None:
    supervisor = Supervisor()
    supervisor.is_away = True
    async with supervisor.processes(2, renew_seconds=0.01) as (one, other):
        assert await one.hold(one.make_place())
        supervisor.is_away = False
        supervisor.calls.clear()
        await wait_until(lambda: "renew" in supervisor.calls)
        assert not await other.hold(other.make_place())


async def test_places_of_running_requests_are_renewed_and_others_end_with_their_time() -> None:
    supervisor = Supervisor()
    async with supervisor.processes(1, renew_seconds=0.01) as (user,), supervisor.processes(1) as (silent,):
        for each, name in ((user, "running"), (silent, "dead")):
            assert await each.hold(each.make_place(name))
        supervisor.clock.now += 14.9
        before = supervisor.calls.count("renew")
        await wait_until(lambda: supervisor.calls.count("renew") > before + 1)
        assert not await user.hold(user.make_place("dead"))
        supervisor.clock.now += 0.2
        assert await user.hold(user.make_place("dead"))
        assert not await user.hold(user.make_place("running"))


# The wait, as a property

_COUNTS = st.integers(0, 50)


def allows(counts: tuple[int, float, int, float], most: int, cost: int, after_seconds: float) -> bool:
    """Of a sliding window of 60 seconds, after some time in which nothing is counted."""
    previous, previous_lives, current, current_lives = counts
    shift_seconds = current_lives - 60
    if not current or after_seconds < shift_seconds:
        lives = previous_lives - after_seconds
    else:
        previous, lives, current = current, current_lives - after_seconds, 0
    return math.floor(previous * max(0.0, lives) / 60) + current + cost <= most


@given(_COUNTS, _COUNTS, st.floats(0.001, 1.0), st.integers(1, 50), st.integers(1, 50))
def test_the_wait_is_long_enough_and_hardly_longer(
    previous: int, current: int, part: float, most: int, cost: int
) -> None:
    """part: of the current window that is still to come. The previous one counts by as much."""
    cost, lives = min(cost, most), 60 * part
    counts = (previous, lives if previous else 0.0, current, 60 + lives if current else 0.0)
    wait_seconds = find_window_wait(counts, most, cost)
    assert allows(counts, most, cost, wait_seconds + 1e-9)
    assert wait_seconds == 0 or not allows(counts, most, cost, max(0.0, wait_seconds - 0.01))
