"""Memory, threads and places are shared fairly, and whatever ends or is cancelled gives back what it had."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bounds.background import Slots
from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import SMALL_BYTES, MemoryBudget
from gateway.core.errors import RequestRefused
from gateway.lru import Lru

_MAX = 100 * SMALL_BYTES


async def until_waiting() -> None:
    """Tasks that were just made come to their first wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_does_not_fit_in_time_is_refused_with_a_time_to_try_again() -> None:
    budget = MemoryBudget(_MAX, wait_seconds=0)
    with budget.open() as first, budget.open() as second:
        await first.grow(_MAX)
        with pytest.raises(RequestRefused) as refused:
            await second.grow(SMALL_BYTES + 1)
        assert budget.used_bytes == _MAX
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)


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


async def test_what_was_needed_for_work_is_given_back_and_the_body_is_not() -> None:
    budget = MemoryBudget(_MAX)
    body_bytes = 2 * SMALL_BYTES
    with budget.open() as share:
        await share.grow(body_bytes)
        # A body that holds too much is passed on unread.
        share.end_work()
        assert budget.used_bytes == body_bytes
        await share.begin_work(body_bytes)
        assert budget.used_bytes > body_bytes
        share.end_work()
        assert budget.used_bytes == body_bytes
        await share.begin_work(body_bytes)
        share.end_work(body_bytes + 1)
        assert budget.used_bytes == body_bytes + 1
    assert budget.used_bytes == 0


# Threads


_SMALL_WORK = 1_000
_MIDDLE = 1_000_000
_HUGE = 40_000_000


class GatedWork:
    """Work that says that it runs, and ends when it is told to."""

    def __init__(self) -> None:
        self.is_running = threading.Event()
        self.may_end = threading.Event()

    def work(self) -> None:
        self.is_running.set()
        self.may_end.wait()

    async def has_begun(self) -> None:
        while not self.is_running.is_set():
            await asyncio.sleep(0)


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


@pytest.fixture
async def gates(lanes: Lanes) -> AsyncIterator[list[GatedWork]]:
    """All threads of the lanes work, from the largest to the smallest, until the gate of each opens."""
    made, running = [], []
    for size_bytes in (_HUGE, _MIDDLE, _SMALL_WORK):
        gate = GatedWork()
        running.append(asyncio.create_task(lanes.run("", size_bytes, gate.work)))
        await gate.has_begun()
        made.append(gate)
    yield made
    _open(made)
    await asyncio.gather(*running)


def _open(gates: list[GatedWork]) -> None:
    for gate in gates:
        gate.may_end.set()


@pytest.mark.parametrize(("thread", "size_bytes"), [(0, _HUGE), (1, _MIDDLE), (2, _SMALL_WORK)])
async def test_owners_take_turns_however_much_one_of_them_brings(
    lanes: Lanes, gates: list[GatedWork], thread: int, size_bytes: int
) -> None:
    order: list[str] = []
    waiting = [
        asyncio.create_task(lanes.run(name[0], size_bytes, order.append, name))
        for name in ("a1", "a2", "a3", "b1", "c1", "a4", "b2")
    ]
    await asyncio.sleep(0)
    # One thread does all of it, one after the other.
    gates[thread].may_end.set()
    await asyncio.gather(*waiting)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_a_place_for_a_summary_is_free_again_after_an_error_and_a_cancelled_wait() -> None:
    slots = Slots(1, 1)
    with pytest.raises(ValueError, match="work"):
        async with slots.place("a", is_awaited=True):
            raise ValueError("work")
    async with slots.place("a", is_awaited=True):
        waiting = asyncio.create_task(slots.place("b", is_awaited=True).__aenter__())
        await asyncio.sleep(0)
        assert (slots.taken, slots.waiting) == (1, 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5), slots.place("c", is_awaited=True):
        assert (slots.taken, slots.waiting) == (1, 0)


# Caches


_STEPS = st.lists(st.tuples(st.sampled_from(["put", "get", "pop"]), st.integers(0, 9), st.integers(0, 40)))


@given(_STEPS, st.integers(0, 100))
def test_it_keeps_what_a_plain_list_in_order_of_use_would_keep(
    steps: list[tuple[str, int, int]], max_bytes: int
) -> None:
    lru: Lru[int, int] = Lru(max_bytes, 6)
    expected: OrderedDict[int, int] = OrderedDict()
    for step, key, weight in steps:
        if step == "get" and key in expected:
            expected.move_to_end(key)
        elif step != "get":
            expected.pop(key, None)
        if step == "put" and weight <= max_bytes:
            expected[key] = weight
            while sum(expected.values()) > max_bytes or len(expected) > 6:
                expected.popitem(last=False)
        if step == "put":
            lru.put(key, weight, weight)
        elif step == "get":
            assert lru.get(key) == expected.get(key)
        else:
            lru.pop(key)
        assert list(lru) == list(expected)
        assert lru.size_bytes == sum(expected.values())
