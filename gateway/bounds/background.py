"""Work behind the requests: how much of it is under way at once, and jobs that are done one after the other.

Knows nothing of what the work is.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from gateway.bounds.lanes import FairQueue

J = TypeVar("J")
T = TypeVar("T")

log = logging.getLogger("gateway.backlog")

# Background work never takes more than this share of the places, as it may hold them for a minute. The rest
# is free for work that a client waits for.
_BACKGROUND_SHARE: Final = 0.75
# So many times as much may wait in the background as may be under way. What does not fit is not worth waiting
# for: the next response of its conversation asks again.
_WAITING_SHARE: Final = 4
# A disk or an upstream that hangs must not keep the end of the process, or a purge, waiting for ever.
_FINISH_SECONDS: Final = 30.0


class Slots:
    """Limits how much work is under way at once, in all and for each owner; the rest waits for its turn.

    Work that a client waits for goes before work in the background, and some places are kept for it. Among
    work of one kind the owners take turns. Used on one event loop.
    """

    def __init__(self, most: int, most_per_owner: int) -> None:
        self._most = most
        self._most_per_owner = most_per_owner
        # How many places each owner has taken.
        self.counts: Counter[str] = Counter()
        # By whether a client waits for them.
        self.queues: dict[bool, FairQueue[Place]] = {True: FairQueue(), False: FairQueue()}

    @property
    def taken(self) -> int:
        return self.counts.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))

    def is_crowded(self, owner: str) -> bool:
        """Whether so much waits in the background that this owner should not add to it."""
        waiting = self.queues[False]
        return (
            len(waiting) >= _WAITING_SHARE * self._most
            or waiting.count(owner) >= _WAITING_SHARE * self._most_per_owner
        )

    def place(self, owner: str, *, is_awaited: bool) -> "Place":
        """For one piece of work. is_awaited: whether a client waits for it."""
        return Place(self, owner, is_awaited=is_awaited)

    def let_in(self) -> None:
        """Those who wait, as far as there are places."""
        for is_awaited, share in ((True, 1.0), (False, _BACKGROUND_SHARE)):
            most = max(1, int(self._most * share))
            most_per_owner = max(1, int(self._most_per_owner * share))
            while self.taken < most:
                full = {owner for owner, taken in self.counts.items() if taken >= most_per_owner}
                place = self.queues[is_awaited].take(full)
                if place is None:
                    break
                # A cancelled one has not left the queue yet.
                if not place.entry.done():
                    self.counts[place.owner] += 1
                    place.entry.set_result(None)


class Place:
    """Is entered as a context, which waits for a free place: the work runs inside."""

    # Done once the work may begin.
    entry: asyncio.Future[None]

    def __init__(self, slots: Slots, owner: str, *, is_awaited: bool) -> None:
        self.owner = owner
        self.is_awaited = is_awaited
        self._slots = slots

    def hurry(self) -> None:
        """A client waits for the work from now on."""
        queues, was_awaited, self.is_awaited = self._slots.queues, self.is_awaited, True
        if not was_awaited and queues[False].drop(self.owner, self):
            queues[True].put(self.owner, self)
            self._slots.let_in()

    async def __aenter__(self) -> Self:
        slots = self._slots
        self.entry = asyncio.get_running_loop().create_future()
        slots.queues[self.is_awaited].put(self.owner, self)
        slots.let_in()
        try:
            await self.entry
        except asyncio.CancelledError:
            slots.queues[self.is_awaited].drop(self.owner, self)
            if not self.entry.cancelled():
                self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        counts = self._slots.counts
        counts[self.owner] -= 1
        if not counts[self.owner]:
            del counts[self.owner]
        self._slots.let_in()


class WorkQueue(Generic[J]):
    """Jobs of one kind, done one after the other in their order, and bounded in bytes. Adding one is a plain
    call that never waits. A queue belongs to one event loop.
    """

    def __init__(self, work: Callable[[J], Awaitable[None]], max_bytes: int) -> None:
        """work: does one job. max_bytes: of waiting jobs; a single job may be larger."""
        self._work = work
        self._max_bytes = max_bytes
        # Jobs with their bytes, and those who wait until all before them is done.
        self._jobs: deque[tuple[J, int] | asyncio.Future[None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.waiting_bytes = 0

    def put(self, job: J, weight_bytes: int) -> bool:
        """False if there is no room."""
        if self.waiting_bytes and self.waiting_bytes + weight_bytes > self._max_bytes:
            return False
        self.waiting_bytes += weight_bytes
        self._add((job, weight_bytes))
        return True

    def drop_where(self, is_dropped: Callable[[J], bool]) -> None:
        """Jobs that wait are not done. One that has begun goes on."""
        kept: deque[tuple[J, int] | asyncio.Future[None]] = deque()
        for job in self._jobs:
            if isinstance(job, asyncio.Future) or not is_dropped(job[0]):
                kept.append(job)
            else:
                self.waiting_bytes -= job[1]
        self._jobs = kept

    async def finish(self, seconds: float = _FINISH_SECONDS) -> None:
        """Returns once everything is done that waits now, or after so many seconds."""
        if self._task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(done)
        await asyncio.wait((done,), timeout=seconds)

    def _add(self, job: "tuple[J, int] | asyncio.Future[None]") -> None:
        self._jobs.append(job)
        self._go_on()

    def _go_on(self) -> None:
        """Begins the next job, unless one is under way."""
        while self._jobs and self._task is None:
            job = self._jobs.popleft()
            if isinstance(job, asyncio.Future):
                job.set_result(None)
            else:
                self._task = asyncio.get_running_loop().create_task(self._run(*job))
                self._task.add_done_callback(self._end)

    async def _run(self, job: J, weight_bytes: int) -> None:
        try:
            await self._work(job)
        finally:
            self.waiting_bytes -= weight_bytes

    def _end(self, task: "asyncio.Task[None]") -> None:
        """A job that failed is dropped; the others go on."""
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background job failed: %s", type(error).__name__, exc_info=error)
        self._go_on()


class BackgroundTasks:
    """What runs behind requests and belongs to none of them. Used on one event loop.

    name: of what runs, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Runs work in a task that outlives whoever asks for it. Errors are logged."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    async def finish(self) -> None:
        """Returns once none is left, of those that begin meanwhile, too."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancels all, those that begin meanwhile, too."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _note_end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", self._name, type(error).__name__, exc_info=error)
