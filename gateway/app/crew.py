"""Keeps a number of workers running: one that ends is replaced, later and later if it ends again at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.app.orders import DrainOrder, Order, ReadyReport
from gateway.app.worker_process import WorkerFailed, WorkerProcess, describe_end

log = logging.getLogger("gateway.workers")

# A worker that has lived for so long has not failed to start.
_STEADY_SECONDS: Final = 10.0
# The first replacement comes at once.
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
# With so many failures of each worker and none that serves, whatever started the gateway should know.
_MOST_FAILURES: Final = 5

# Starts the process of a slot, which are counted from 0.
StartWorker = Callable[[int], Awaitable[WorkerProcess]]
# Something has happened to a slot.
NoteSlot = Callable[[int], None]


def find_pause(failures: int) -> float:
    """Seconds before a worker is started again, after so many failures in a row."""
    if failures <= 1:
        return 0.0
    pause: float = _FIRST_PAUSE_SECONDS * 2.0 ** (failures - 2)
    return min(pause, _LONGEST_PAUSE_SECONDS)


class Crew:
    """note_end: called when the process of a slot has ended. note_replacement: when another one is started.
    note_failure: when that one could not begin to serve.
    """

    def __init__(
        self,
        size: int,
        start: StartWorker,
        note_end: NoteSlot,
        note_replacement: Callable[[], None],
        note_failure: NoteSlot,
    ) -> None:
        self._size = size
        self._start = start
        self._note_end = note_end
        self._note_replacement = note_replacement
        self._note_slot_failure = note_failure
        # By slot. Some of them may not be ready yet.
        self._workers: dict[int, WorkerProcess] = {}
        self._ready: set[int] = set()
        self._failures = [0] * size
        self._keepers: list[asyncio.Task[None]] = []
        self._is_stopping = False
        # Done when no worker can be kept alive, with the reason.
        self.failure: asyncio.Future[WorkerFailed] = asyncio.get_running_loop().create_future()

    async def open(self) -> ReadyReport:
        """Returns once all serve. Raises WorkerFailed, or OSError if the system starts no process."""
        starts = [asyncio.create_task(self._begin(slot)) for slot in range(self._size)]
        try:
            reports = await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            self.kill()
            await self._reap()
            raise
        self._keepers = [asyncio.create_task(self._keep(slot)) for slot in range(self._size)]
        for keeper in self._keepers:
            keeper.add_done_callback(self._note_keeper)
        return reports[0]

    def send(self, order: Order) -> None:
        """To all workers. One that starts at this moment gets it, too."""
        for worker in self._workers.values():
            worker.send(order)

    def drain(self) -> None:
        """All workers finish their open requests and end. None is replaced any more."""
        self._is_stopping = True
        self.send(DrainOrder())

    def kill(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    async def close(self, seconds: float) -> None:
        """Returns once all have ended. Those that have not after so many seconds are killed."""
        self.drain()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        try:
            async with asyncio.timeout(seconds):
                await self._reap()
        except TimeoutError:
            log.warning("workers have not ended in time and are killed: %d", len(self._workers))
            self.kill()
            await self._reap()

    def _note_keeper(self, keeper: "asyncio.Task[None]") -> None:
        """A mistake of ours in a keeper must not leave a slot empty without a word."""
        if keeper.cancelled() or keeper.exception() is None or self.failure.done():
            return
        self.failure.set_result(WorkerFailed(f"workers cannot be kept alive: {keeper.exception()!r}"))

    async def _begin(self, slot: int) -> ReadyReport:
        worker = self._workers[slot] = await self._start(slot)
        if self._is_stopping:
            worker.send(DrainOrder())
        report = await worker.wait_ready()
        self._ready.add(slot)
        log.info("%s is ready (process %d)", worker.name, worker.process_id)
        return report

    async def _reap(self) -> None:
        await asyncio.gather(*(self._wait(slot) for slot in list(self._workers)))

    async def _wait(self, slot: int) -> int:
        """Returns when the process of a slot has ended."""
        worker = self._workers[slot]
        status = await worker.wait()
        if self._workers.pop(slot, None) is not None:
            self._ready.discard(slot)
            self._note_end(slot)
        return status

    async def _keep(self, slot: int) -> None:
        """Replaces the process of a slot again and again."""
        while True:
            if slot in self._workers:
                await self._watch(slot)
            await asyncio.sleep(find_pause(self._failures[slot]))
            if self._is_stopping:
                return
            await self._replace(slot)

    async def _watch(self, slot: int) -> None:
        """Returns when a worker that served has ended."""
        worker = self._workers[slot]
        watching = asyncio.create_task(self._kill_if_hanging(worker))
        try:
            status = await self._wait(slot)
        finally:
            watching.cancel()
        if self._is_stopping:
            return
        has_lived = worker.lived_seconds >= _STEADY_SECONDS
        self._failures[slot] = 0 if has_lived else self._failures[slot] + 1
        log.warning(
            "%s (process %d) has ended: %s; another one is started",
            worker.name,
            worker.process_id,
            describe_end(status),
        )

    async def _kill_if_hanging(self, worker: WorkerProcess) -> None:
        """A worker that is stopped, or that hangs, would keep its clients and its place for ever."""
        await worker.wait_hanging()
        log.error("%s (process %d) does not respond and is killed", worker.name, worker.process_id)
        worker.kill()

    async def _replace(self, slot: int) -> None:
        self._note_replacement()
        try:
            await self._begin(slot)
        except (WorkerFailed, OSError) as error:
            await self._note_failure(slot, error)

    async def _note_failure(self, slot: int, error: WorkerFailed | OSError) -> None:
        if slot in self._workers:
            self._workers[slot].kill()
            await self._wait(slot)
        self._note_slot_failure(slot)
        self._failures[slot] += 1
        log.error("worker-%d cannot be replaced yet: %s", slot + 1, error)
        if not self._ready and min(self._failures) >= _MOST_FAILURES and not self.failure.done():
            failed = error if isinstance(error, WorkerFailed) else WorkerFailed(str(error))
            self.failure.set_result(failed)
