"""Heavy work leaves the event loop, and no tenant's work waits long for another's."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from gateway.bounds.lanes import Lanes, Steps, take_all_steps
from gateway.core.errors import RequestRefused

_SMALL = 1_000
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
    for size_bytes in (_HUGE, _MIDDLE, _SMALL):
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


async def test_work_is_done_in_another_thread_and_its_result_comes_back(lanes: Lanes) -> None:
    assert await lanes.run("tenant", 1, threading.get_ident) != threading.get_ident()


async def test_an_exception_of_the_work_reaches_its_caller(lanes: Lanes) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await lanes.run("tenant", 1, int, "x")


@pytest.mark.parametrize("size_bytes", [_SMALL, _MIDDLE])
@pytest.mark.parametrize("owner", ["first", "second"])
async def test_smaller_work_ends_while_huge_work_runs(lanes: Lanes, owner: str, size_bytes: int) -> None:
    gate = GatedWork()
    huge = [asyncio.create_task(lanes.run("first", _HUGE, gate.work)) for _ in range(4)]
    await gate.has_begun()
    assert await lanes.run(owner, size_bytes, int, "7") == 7
    gate.may_end.set()
    await asyncio.gather(*huge)


async def test_small_work_ends_while_middling_work_fills_the_larger_threads(lanes: Lanes) -> None:
    gate = GatedWork()
    others = [asyncio.create_task(lanes.run("first", _MIDDLE, gate.work)) for _ in range(4)]
    await gate.has_begun()
    assert await lanes.run("first", _SMALL, int, "7") == 7
    gate.may_end.set()
    await asyncio.gather(*others)


@pytest.mark.parametrize(("thread", "size_bytes"), [(0, _HUGE), (1, _MIDDLE), (2, _SMALL)])
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


async def test_waiting_work_of_a_caller_that_is_cancelled_never_runs(
    lanes: Lanes, gates: list[GatedWork]
) -> None:
    done: list[str] = []
    dropped = asyncio.create_task(lanes.run("first", _SMALL, done.append, "dropped"))
    kept = asyncio.create_task(lanes.run("first", _SMALL, done.append, "kept"))
    await asyncio.sleep(0)
    dropped.cancel()
    await asyncio.gather(dropped, return_exceptions=True)
    _open(gates)
    await kept
    assert dropped.cancelled()
    assert done == ["kept"]


async def test_running_work_of_a_caller_that_is_cancelled_ends_and_the_thread_goes_on(lanes: Lanes) -> None:
    gate = GatedWork()
    caller = asyncio.create_task(lanes.run("first", _HUGE, gate.work))
    await gate.has_begun()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    following = asyncio.create_task(lanes.run("first", _HUGE, int, "7"))
    gate.may_end.set()
    assert caller.cancelled()
    assert await following == 7


async def test_one_owner_that_brings_too_much_is_refused_and_others_are_not(
    lanes: Lanes, gates: list[GatedWork]
) -> None:
    waiting = [asyncio.create_task(lanes.run("first", _SMALL, int, "1")) for _ in range(1_000)]
    await asyncio.sleep(0)
    with pytest.raises(RequestRefused) as refused:
        await lanes.run("first", _SMALL, int, "1")
    other = asyncio.create_task(lanes.run("second", _SMALL, int, "2"))
    await asyncio.sleep(0)
    _open(gates)
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)
    assert await other == 2
    assert await asyncio.gather(*waiting) == [1] * 1_000


async def test_work_that_ends_with_stop_iteration_fails_and_the_thread_goes_on(lanes: Lanes) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await lanes.run("", _SMALL, next, iter(()))
    assert await lanes.run("", _SMALL, abs, -1) == 1


async def test_steps_give_their_result(lanes: Lanes) -> None:
    def add_up() -> Steps[int]:
        total = 0
        for number in range(10):
            total += number
            yield
        return total

    assert await lanes.run_steps("tenant", 1, add_up()) == 45
    assert take_all_steps(add_up()) == 45


async def test_an_exception_of_a_step_reaches_its_caller(lanes: Lanes) -> None:
    def fail() -> Steps[None]:
        yield
        raise ValueError("in the second step")

    with pytest.raises(ValueError, match="in the second step"):
        await lanes.run_steps("tenant", 1, fail())


def _run_until(is_over: threading.Event) -> Steps[str]:
    """Much more than one turn of steps."""
    while not is_over.is_set():
        time.sleep(0.001)
        yield
    return "done"


@pytest.mark.parametrize("owner", ["first", "second"])
async def test_work_of_one_size_goes_on_between_the_steps_of_another(
    lanes: Lanes, gates: list[GatedWork], owner: str
) -> None:
    is_over = threading.Event()
    # Only the largest thread is free.
    gates[0].may_end.set()
    long = asyncio.create_task(lanes.run_steps("first", _HUGE, _run_until(is_over)))
    assert await lanes.run(owner, _HUGE, int, "7") == 7
    assert not long.done()
    is_over.set()
    assert await long == "done"


async def test_steps_of_a_caller_that_is_cancelled_end_at_a_pause(
    lanes: Lanes, gates: list[GatedWork]
) -> None:
    gates[0].may_end.set()
    long = asyncio.create_task(lanes.run_steps("first", _HUGE, _run_until(threading.Event())))
    await asyncio.sleep(0)
    long.cancel()
    # Without an end of the steps, the thread would never be free again.
    assert await lanes.run("first", _HUGE, int, "7") == 7


async def test_closing_gives_up_what_waits_and_lets_end_what_runs() -> None:
    lanes, gate = Lanes(), GatedWork()
    running = asyncio.create_task(lanes.run("first", _HUGE, gate.work))
    await gate.has_begun()
    waiting = asyncio.create_task(lanes.run("first", _HUGE, int, "7"))
    await asyncio.sleep(0)
    lanes.close()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.may_end.set()
    await running
    assert waiting.cancelled()


async def test_work_that_failed_is_freed_without_the_collector() -> None:
    class Body(bytearray):
        """Bytes that can be watched."""

    def fail(_: bytearray) -> None:
        raise ValueError

    lanes, body = Lanes(), Body(b"x")
    is_freed = weakref.ref(body)
    gc.disable()
    try:
        with suppress(ValueError):
            await lanes.run("tenant", 1, fail, body)
        del body
        await asyncio.sleep(0)
        assert is_freed() is None
    finally:
        gc.enable()
        lanes.close()
