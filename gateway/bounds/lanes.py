"""Runs heavy work in threads, so that the event loop stays free for other requests.

Each thread has a largest size of work, so that small work never waits behind a body of 40 MB. Among work of
one size the owners take turns. Long work is given as steps, and others' work runs between them. Knows
nothing of what it runs. A function given to it must not touch what the event loop uses.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, Generic, ParamSpec, TypeVar

from gateway.core.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

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


class FairQueue(Generic[H]):
    """What waits for its turn: first come first served for each owner, and owners take turns.

    No item may wait twice. owner: the id of a tenant.
    """

    def __init__(self) -> None:
        # The owner whose turn is next comes first. Its items are in a dictionary, to drop any at once.
        self._owners: OrderedDict[str, dict[H, None]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def count(self, owner: str) -> int:
        return len(self._owners.get(owner, ()))

    def put(self, owner: str, item: H) -> None:
        self._owners.setdefault(owner, {})[item] = None
        self._size += 1

    def take(self, excluded: Collection[str] = ()) -> H | None:
        """The next item of an owner that is not excluded. None if there is none."""
        owner = next((owner for owner in self._owners if owner not in excluded), None)
        if owner is None:
            return None
        item = next(iter(self._owners[owner]))
        self._owners.move_to_end(owner)
        self.drop(owner, item)
        return item

    def drop(self, owner: str, item: H) -> bool:
        """Forgets an item. False if it does not wait here."""
        items = self._owners.get(owner, {})
        if item not in items:
            return False
        del items[item]
        self._size -= 1
        if not items:
            del self._owners[owner]
        return True


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    """result: set on the event loop."""

    call: Callable[[], Any]
    result: asyncio.Future[Any]


class _Lane:
    """A thread, and the queue of work that no smaller thread takes."""

    def __init__(self, number: int, max_bytes: float) -> None:
        self.max_bytes = max_bytes
        self.waiting: FairQueue[_Work] = FairQueue()
        self.is_busy = False
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"lane-{number}")


class Lanes:
    """Used on one event loop."""

    def __init__(self) -> None:
        # From the smallest work to the largest.
        self._lanes = [_Lane(number, size) for number, size in enumerate(_SIZES_BYTES)]

    async def run(
        self, owner: str, size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The function's result, or its exception. Raises RequestRefused if too much of the owner waits.

        If the caller is cancelled, work that waits is dropped. Work that runs cannot be stopped: it ends, and
        its result is dropped.
        owner: the id of the tenant whose work it is. size_bytes: of what the function works on.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Work(partial(function, *args, **kwargs), result)
        queue = next(lane.waiting for lane in self._lanes if size_bytes <= lane.max_bytes)
        if queue.count(owner) >= _MAX_WAITING:
            raise Overloaded("Too many large requests wait to be read; try again.")
        queue.put(owner, job)
        self._start_waiting()
        try:
            return await result
        finally:
            queue.drop(owner, job)
            # An exception holds this frame. If the frame held the exception, too, the body would stay in
            # memory until the collector comes, which may take a thousand requests.
            del result, job

    async def run_steps(self, owner: str, size_bytes: int, steps: Steps[T]) -> T:
        """The same for work that others' work may interrupt. A cancelled caller's work ends at a pause."""
        while not (done := await self.run(owner, size_bytes, _take_steps, steps)):
            pass
        return done[0]

    def close(self) -> None:
        """Gives up what has not begun."""
        for lane in self._lanes:
            lane.thread.shutdown(wait=False, cancel_futures=True)
            while (job := lane.waiting.take()) is not None:
                job.result.cancel()

    def _start_waiting(self) -> None:
        """Gives each idle thread the largest work that it may take."""
        for position, lane in enumerate(self._lanes):
            if lane.is_busy:
                continue
            queues = [other.waiting for other in reversed(self._lanes[: position + 1])]
            job = next(filter(None, (queue.take() for queue in queues)), None)
            if job is not None:
                lane.is_busy = True
                running = job.result.get_loop().run_in_executor(lane.thread, _call, job.call)
                running.add_done_callback(partial(self._finish, lane, job.result))

    def _finish(self, lane: _Lane, result: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        lane.is_busy = False
        # A closed thread cancels what it had not begun.
        error = done.exception() if not done.cancelled() else asyncio.CancelledError()
        if not result.done():
            if error is None:
                result.set_result(done.result())
            else:
                result.set_exception(error)
        self._start_waiting()


def _call(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any work
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
