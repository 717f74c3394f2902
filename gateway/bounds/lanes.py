"""Runs heavy work in threads, so that the event loop stays free for other requests.

Each thread has a largest size of work, so that small work never waits behind a body of 40 MB. Among work of
one size the owners take turns. Long work is given as steps, and others' work runs between them. Knows
nothing of what it runs. A function given to it must not touch what the event loop uses.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Final, NamedTuple, ParamSpec, TypeVar

from gateway.bounds.background import Slots
from gateway.core.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")

# The largest work of each thread. Most requests are below the first. The second is what fills a window of a
# million tokens. Three threads hold up the event loop little more than one, because only one at a time
# executes Python.
_SIZES_BYTES: Final = (256 * 1024, 4 * 1024 * 1024, inf)
# Far above what one tenant's agents send at a time, and far below what fills the memory.
_MAX_WAITING: Final = 1_000
# Steps of one owner run for so long before it is another's turn. With much less, the way through the event
# loop would cost more than the work.
_TURN_SECONDS: Final = 0.05

# Work that pauses wherever it may be interrupted, and returns its result at the end.
Steps = Generator[None, None, T]


class _Lane(NamedTuple):
    """A thread, and the turns of work that no smaller thread takes."""

    max_bytes: float
    slots: Slots
    thread: ThreadPoolExecutor


class Lanes:
    """Used on one event loop."""

    def __init__(self) -> None:
        # From the smallest work to the largest.
        self._lanes = [
            _Lane(size, Slots(1, 1), ThreadPoolExecutor(1, thread_name_prefix=f"lane-{number}"))
            for number, size in enumerate(_SIZES_BYTES)
        ]

    async def run(
        self, owner: str, size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The function's result, or its exception. Raises RequestRefused if too much of the owner waits.

        If the caller is cancelled, work that waits is dropped. Work that runs cannot be stopped: it ends, and
        its result is dropped.
        owner: the id of the tenant whose work it is. size_bytes: of what the function works on.
        """
        lane = next(lane for lane in self._lanes if size_bytes <= lane.max_bytes)
        if len(lane.slots.list_waiting(owner)) >= _MAX_WAITING:
            raise Overloaded("Too many large requests wait to be read; try again.")
        async with lane.slots.place(owner, is_awaited=True):
            call = partial(_call, partial(function, *args, **kwargs))
            return await asyncio.get_running_loop().run_in_executor(lane.thread, call)

    async def run_steps(self, owner: str, size_bytes: int, steps: Steps[T]) -> T:
        """The same for work that others' work may interrupt. A cancelled caller's work ends at a pause."""
        while not (done := await self.run(owner, size_bytes, _take_steps, steps)):
            pass
        return done[0]

    def close(self) -> None:
        """Gives up what has not begun."""
        for lane in self._lanes:
            lane.thread.shutdown(wait=False, cancel_futures=True)
            lane.slots.close()


def _call(call: Callable[[], T]) -> T:
    """Its result. A future does not take a StopIteration, so its caller would wait forever."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("work in a lane raised StopIteration") from error


def take_all_steps(steps: Steps[T]) -> T:
    """The result of work that need not be interrupted."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _take_steps(steps: Steps[T]) -> tuple[T] | tuple[()]:
    """The result, or nothing if the turn ended first."""
    end_of_turn = time.monotonic() + _TURN_SECONDS
    while time.monotonic() < end_of_turn:
        try:
            next(steps)
        except StopIteration as end:
            return (end.value,)
    return ()
