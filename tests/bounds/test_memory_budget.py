"""All bodies under way share one budget."""

import asyncio
from functools import partial

import pytest

from gateway.bounds.memory_budget import SMALL_BYTES, MemoryBudget, Share
from gateway.core.errors import RequestRefused
from tests.hostile.steps import count_steps

_MAX = 100 * SMALL_BYTES
# A request that takes so much passes no other that waits.
_LARGE = 20 * SMALL_BYTES


async def until_waiting() -> None:
    """Tasks that were just made come to their first wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_share_goes_back_when_its_request_ends() -> None:
    budget = MemoryBudget(100)
    with budget.open() as share:
        await share.grow(60)
        await share.grow(40)
        share.shrink(10)
        assert budget.used_bytes == 90
        assert share.size_bytes == 90
    assert budget.used_bytes == 0


async def test_a_share_fits_what_a_step_takes_and_keeps_what_is_small() -> None:
    budget = MemoryBudget(_MAX)
    with budget.open() as share:
        sizes = []
        for size in (10, 1_000, 5, 3 * SMALL_BYTES, 5):
            await share.fit(size)
            sizes.append(budget.used_bytes)
    assert sizes == [16_384, 16_384, 16_384, 3 * SMALL_BYTES, 5]
    assert budget.used_bytes == 0


async def test_what_does_not_fit_in_time_is_refused_with_a_time_to_try_again() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as first, budget.open() as second:
        await first.grow(_MAX)
        with pytest.raises(RequestRefused) as refused:
            await second.grow(SMALL_BYTES + 1)
        assert budget.used_bytes == _MAX
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)


async def test_small_bodies_never_wait() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as first, budget.open() as second:
        await first.grow(_MAX)
        await second.grow(SMALL_BYTES)
        assert budget.used_bytes == _MAX + SMALL_BYTES


async def test_a_request_that_waits_goes_on_once_there_is_room() -> None:
    budget = MemoryBudget(_MAX)
    first, second = budget.open(), budget.open()
    await first.grow(_MAX)
    waiting = asyncio.create_task(second.grow(_MAX))
    await until_waiting()
    assert not waiting.done()
    first.shrink(_MAX)
    await waiting
    assert (budget.used_bytes, second.size_bytes) == (_MAX, _MAX)


async def test_a_body_larger_than_the_budget_passes_alone() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as small, budget.open() as large:
        await small.grow(100)
        await large.grow(3 * _MAX)
        with budget.open() as other, pytest.raises(RequestRefused):
            await other.grow(_LARGE)


async def test_requests_that_hold_half_of_their_bodies_do_not_wait_for_one_another() -> None:
    budget = MemoryBudget(_MAX)
    shares = [budget.open() for _ in range(4)]
    for share in shares:
        await share.grow(_MAX // 4)

    async def take_rest(share: Share) -> None:
        with share:
            await share.grow(_MAX // 4)
            await asyncio.sleep(0)

    await asyncio.gather(*map(take_rest, shares))
    assert budget.used_bytes == 0


async def test_the_tenant_that_holds_least_is_served_first() -> None:
    budget = MemoryBudget(_MAX)
    order: list[str] = []
    held = budget.open("greedy")
    await held.grow(_MAX - SMALL_BYTES)
    rest = budget.open("other")
    await rest.grow(SMALL_BYTES)

    async def ask(owner: str) -> None:
        with budget.open(owner) as share:
            await share.grow(_MAX // 2)
            order.append(owner)
            await asyncio.sleep(0)

    asking = [asyncio.create_task(ask(owner)) for owner in ("greedy", "greedy", "modest")]
    await until_waiting()
    held.shrink(_MAX // 2 - SMALL_BYTES)
    assert order == []
    held.shrink(SMALL_BYTES)
    await until_waiting()
    assert order[0] == "modest"
    held.shrink(held.size_bytes)
    await asyncio.gather(*asking)
    assert order == ["modest", "greedy", "greedy"]


async def test_a_new_large_request_does_not_pass_those_that_wait() -> None:
    budget = MemoryBudget(_MAX)
    first = budget.open()
    await first.grow(_MAX // 2)
    waiting = asyncio.create_task(budget.open().grow(_MAX))
    await until_waiting()
    assert not budget.open().try_grow(_LARGE)
    first.shrink(first.size_bytes)
    await waiting


async def test_modest_requests_pass_large_ones_that_wait() -> None:
    budget = MemoryBudget(_MAX)
    first, modest = budget.open(), budget.open()
    await first.grow(_MAX - 4 * SMALL_BYTES)
    large = asyncio.create_task(budget.open().grow(_MAX))
    await until_waiting()
    await modest.grow(2 * SMALL_BYTES)
    waiting = asyncio.create_task(budget.open().grow(4 * SMALL_BYTES))
    await until_waiting()
    assert not waiting.done()
    modest.shrink(2 * SMALL_BYTES)
    await waiting
    first.shrink(SMALL_BYTES)
    await until_waiting()
    assert not large.done()
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)


async def test_a_large_request_that_modest_ones_pass_is_refused_in_the_end() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    for _ in range(20):
        await budget.open().grow(2 * SMALL_BYTES)
    with pytest.raises(RequestRefused):
        await budget.open().grow(_MAX)


async def test_what_one_takes_beyond_the_budget_is_not_taken_from_modest_ones() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as beyond, budget.open() as modest, budget.open() as large:
        await beyond.grow(5 * _MAX)
        await modest.grow(2 * SMALL_BYTES)
        with pytest.raises(RequestRefused):
            await large.grow(_LARGE)


async def test_one_that_went_beyond_the_budget_leaves_its_place_once_all_fits_again() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as first, budget.open() as second:
        await first.grow(_LARGE)
        await second.grow(_LARGE)
        await first.grow(2 * _MAX)
        with pytest.raises(RequestRefused):
            await second.grow(2 * _MAX)
        first.shrink(2 * _MAX)
        await second.grow(2 * _MAX)


async def test_work_on_a_small_body_never_waits() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as first, budget.open() as small, budget.open() as other:
        await first.grow(_MAX)
        await small.fit_work(6 * SMALL_BYTES, SMALL_BYTES)
        await small.fit(SMALL_BYTES)
        assert small.size_bytes == SMALL_BYTES
        with pytest.raises(RequestRefused):
            await other.fit_work(6 * SMALL_BYTES, SMALL_BYTES + 1)


async def test_a_request_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    budget = MemoryBudget(_MAX)
    first = budget.open()
    await first.grow(_MAX)
    waiting = asyncio.create_task(budget.open().grow(_MAX))
    await until_waiting()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    first.shrink(_MAX)
    assert budget.used_bytes == 0


async def test_a_request_that_is_cancelled_just_when_it_is_served_gives_everything_back() -> None:
    budget = MemoryBudget(_MAX)
    first = budget.open()
    await first.grow(_MAX)
    waiting = asyncio.create_task(budget.open().grow(_MAX))
    await until_waiting()
    first.shrink(_MAX)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert budget.used_bytes == 0


async def test_work_that_has_to_be_done_is_counted_even_without_room() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as first, budget.open() as second:
        await first.grow(_MAX)
        assert not second.try_grow(SMALL_BYTES + 1)
        second.take(_MAX)
        assert budget.used_bytes == 2 * _MAX
    assert budget.used_bytes == 0


@pytest.mark.parametrize("owners", [1, 1_000], ids=["of one tenant", "of as many tenants"])
@pytest.mark.parametrize("is_freed", [False, True], ids=["refused", "served"])
def test_many_that_wait_are_looked_at_once(owners: int, *, is_freed: bool) -> None:
    async def run(waiters: int) -> None:
        budget = MemoryBudget(waiters * 2 * SMALL_BYTES, wait_seconds=60 if is_freed else 0)
        first = budget.open()
        await first.grow(budget.max_bytes)
        shares = [budget.open(f"t{at % owners}") for at in range(waiters)]
        waiting = [asyncio.create_task(share.grow(2 * SMALL_BYTES)) for share in shares]
        await until_waiting()
        if is_freed:
            first.shrink(budget.max_bytes)
        await asyncio.wait(waiting)
        refused = [task for task in waiting if task.exception() is not None]
        assert len(refused) == (0 if is_freed else waiters)

    few, many = (count_steps(partial(asyncio.run, run(waiters))) for waiters in (50, 400))
    assert many < 12 * few


async def test_bodies_that_come_slowly_are_given_up_for_those_that_wait() -> None:
    budget = MemoryBudget(_MAX, upload_seconds=0)
    slow, waiting = budget.open(), budget.open()
    await slow.grow(_MAX)
    with slow.receiving(lambda: slow.shrink(_MAX)):
        await waiting.grow(_MAX)
    assert (slow.size_bytes, waiting.size_bytes) == (0, _MAX)


async def test_a_body_that_has_come_is_not_given_up() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0.05, upload_seconds=0)
    first, given_up = budget.open(), asyncio.Event()
    with first.receiving(given_up.set):
        await first.grow(_MAX)
    with pytest.raises(RequestRefused):
        await budget.open().grow(_MAX)
    assert not given_up.is_set()


async def test_a_body_that_has_just_begun_to_come_is_not_given_up() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0.05)
    first, given_up = budget.open(), asyncio.Event()
    await first.grow(_MAX)
    with first.receiving(given_up.set), pytest.raises(RequestRefused):
        await budget.open().grow(_MAX)
    assert not given_up.is_set()
