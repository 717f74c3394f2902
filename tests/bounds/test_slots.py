"""How much work is under way at once, and whose turn is next."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.bounds.slots import Place, Slots


class Workers:
    """Work that begins when its turn comes and ends when it is told to. begun: the names, in order."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.begun: list[str] = []
        self.places: dict[str, Place] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, *names: str, is_awaited: bool = False) -> None:
        """A name is its owner's letter and a number."""
        for name in names:
            self.places[name] = self.slots.place(name[0], is_awaited=is_awaited)
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._work(name))
            await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks[name]
            await asyncio.sleep(0)

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)
        await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.places[name]:
            self.begun.append(name)
            await self._ends[name].wait()


@asynccontextmanager
async def working(most: int, most_per_owner: int) -> AsyncIterator[Workers]:
    workers = Workers(Slots(most, most_per_owner))
    yield workers
    await workers.cancel(*workers.places)
    assert (workers.slots.taken, workers.slots.waiting) == (0, 0)


async def test_only_so_much_is_under_way_at_once() -> None:
    async with working(4, 4) as workers:
        await workers.add("a1", "b1", "c1", "d1", "e1", is_awaited=True)
        assert workers.begun == ["a1", "b1", "c1", "d1"]
        await workers.end("b1")
        assert workers.begun[4:] == ["e1"]


async def test_one_owner_leaves_room_for_others() -> None:
    async with working(4, 2) as workers:
        await workers.add("a1", "a2", "a3", "a4", "b1", is_awaited=True)
        assert workers.begun == ["a1", "a2", "b1"]
        await workers.end("a1")
        assert workers.begun[3:] == ["a3"]


async def test_owners_take_turns() -> None:
    async with working(1, 1) as workers:
        await workers.add("a1", "a2", "a3", "b1", "c1", "b2")
        for name in ("a1", "a2", "b1", "c1", "a3"):
            await workers.end(name)
        assert workers.begun == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_what_a_client_waits_for_goes_first_and_finds_a_place_kept() -> None:
    async with working(4, 4) as workers:
        await workers.add("a1", "a2", "a3", "a4")
        assert workers.begun == ["a1", "a2", "a3"]
        await workers.add("b1", "b2", is_awaited=True)
        assert workers.begun[3:] == ["b1"]
        await workers.end("b1")
        assert workers.begun[4:] == ["b2"]
        await workers.end("b2", "a1")
        assert workers.begun[5:] == ["a4"]


async def test_work_in_the_background_moves_up_once_a_client_waits_for_it() -> None:
    async with working(4, 4) as workers:
        await workers.add("a1", "a2", "a3", "b1", "b2")
        workers.places["b2"].hurry()
        workers.places["a1"].hurry()
        await asyncio.sleep(0)
        assert workers.begun == ["a1", "a2", "a3", "b2"]


async def test_a_cancelled_place_is_free_again() -> None:
    async with working(1, 1) as workers:
        await workers.add("a1", "b1", "c1")
        await workers.cancel("b1")
        await workers.cancel("a1")
        assert workers.begun == ["a1", "c1"]
        # Its turn comes at the moment in which it is cancelled.
        await workers.add("d1", "e1")
        workers.places["d1"].hurry()
        await asyncio.gather(workers.end("c1"), workers.cancel("d1"))
        assert workers.begun[2:] == ["e1"]


async def test_an_error_frees_the_place() -> None:
    slots = Slots(1, 1)
    with pytest.raises(ValueError, match="work"):
        async with slots.place("a", is_awaited=True):
            raise ValueError("work")
    async with asyncio.timeout(5), slots.place("a", is_awaited=True):
        assert slots.taken == 1


async def test_the_queue_in_the_background_is_short() -> None:
    async with working(2, 1) as workers:
        slots = workers.slots
        await workers.add("a0", "a1", "a2", "a3")
        assert not slots.is_crowded("a")
        await workers.add("a4")
        assert slots.is_crowded("a") and not slots.is_crowded("b")
        await workers.add("b1", "b2", "c1", "c2")
        assert slots.is_crowded("d")
        await workers.cancel("a4")
        assert not slots.is_crowded("a") and not slots.is_crowded("d")
