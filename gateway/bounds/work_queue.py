"""Background jobs of one kind, done one after the other in their order, and bounded in bytes.

Adding a job is a plain call that never waits. A queue belongs to one event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

J = TypeVar("J")

log = logging.getLogger("gateway.backlog")


class WorkQueue(Generic[J]):
    def __init__(self, work: Callable[[J], Awaitable[None]], max_bytes: int) -> None:
        """work: does one job. max_bytes: of waiting jobs; a single job may be larger."""
        self._work = work
        self._max_bytes = max_bytes
        self._jobs: deque[tuple[J, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.waiting_bytes = 0

    def put(self, job: J, weight_bytes: int) -> bool:
        """False if there is no room."""
        if self.waiting_bytes and self.waiting_bytes + weight_bytes > self._max_bytes:
            return False
        self._jobs.append((job, weight_bytes))
        self.waiting_bytes += weight_bytes
        if self._task is None:
            self._begin()
        return True

    def drop_where(self, is_dropped: Callable[[J], bool]) -> None:
        """Jobs that wait are not done. One that has begun goes on."""
        kept = [(job, weight_bytes) for job, weight_bytes in self._jobs if not is_dropped(job)]
        self.waiting_bytes -= sum(weight for _, weight in self._jobs) - sum(weight for _, weight in kept)
        self._jobs = deque(kept)

    async def finish(self) -> None:
        """Returns once no job waits."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._finished)

    async def _run(self) -> None:
        while self._jobs:
            job, weight_bytes = self._jobs.popleft()
            try:
                await self._work(job)
            finally:
                self.waiting_bytes -= weight_bytes

    def _finished(self, task: "asyncio.Task[None]") -> None:
        """A job that failed is dropped; the others go on."""
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            log.error("background job failed: %s", type(error).__name__, exc_info=error)
        if self._jobs:
            self._begin()
