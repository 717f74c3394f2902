"""Writes and deletes the files of the index, in one thread, in order. Failures cost no more than what they
concern.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from gateway.originals.file_locks import LockHeld
from gateway.originals.index_file import IndexedMessage, add_messages, find_obstacle, note_list
from gateway.originals.index_files import IndexDamaged, IndexFiles
from gateway.originals.search import SearchFailed, SearchImpossible

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("gateway.search")

_READERS: Final = 2
# What could not be deleted is tried again after these times, and then by each sweep.
_PAUSES_SECONDS: Final = (1.0, 5.0, 20.0, 60.0, 300.0)
# A failure of one kind is logged so often.
_WARNING_SECONDS: Final = 3_600.0

# The tag of a tenant, and the id of a conversation.
Indexed = tuple[str, str]


class IndexWriter:
    """Used on one event loop. Knows also the threads that read, because both fail alike."""

    def __init__(self, files: IndexFiles) -> None:
        self.files = files
        self._retrying: asyncio.Task[None] | None = None
        # Grows when something is forgotten: what was read before is not written any more.
        self.forgotten = 0
        self.is_closed = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="index-writer")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="index-reader")
        self._deleting: set[asyncio.Future[None]] = set()
        # When each kind of failure was logged last.
        self._warned: dict[str, float] = {}
        # Whether this SQLite can search, None until it was tried, and why it cannot.
        self._is_usable: bool | None = None
        self._obstacle = ""

    async def check_usable(self) -> bool:
        """False if this process cannot search at all."""
        if self.is_closed:
            return False
        if self._is_usable is None:
            obstacle = await self._run(self._writer, find_obstacle)
            if obstacle is not None:
                self._obstacle = obstacle
                self._warn(obstacle)
            self._is_usable = obstacle is None
        return self._is_usable

    async def require_usable(self) -> None:
        """Raises SearchFailed."""
        if not await self.check_usable():
            raise SearchImpossible(self._obstacle) if self._obstacle else SearchFailed("the gateway stops")

    async def write(
        self,
        indexed: Indexed,
        forgotten: int,
        read: Callable[[], list[IndexedMessage]],
        list_place: str | None = None,
    ) -> bool:
        """False if it could not be written, or if something has been forgotten since `forgotten`.

        read: gives the messages, in the thread. list_place: of a list that the index has after this.
        """
        for _ in range(2):
            if forgotten != self.forgotten or not await self.check_usable():
                return False
            try:
                return bool(await self._run(self._writer, partial(self._write, indexed, read, list_place)))
            except IndexDamaged:
                continue
        return False

    def _write(
        self, indexed: Indexed, read: Callable[[], list[IndexedMessage]], list_place: str | None
    ) -> bool:
        messages = read()
        with self.files.writing(*indexed) as index:
            add_messages(index, messages)
            if list_place is not None:
                note_list(index, list_place)
        return True

    async def trim(self, indexed: Indexed) -> None:
        """Makes the bounds hold. indexed: what has just been written."""
        if not self.is_closed:
            await self._run(self._writer, partial(self.files.trim, indexed))

    async def sweep(self, now: float) -> None:
        await self._run(self._writer, partial(self.files.sweep, now))

    async def read(self, ask: Callable[[], T]) -> T:
        """In a thread. Raises IndexDamaged, and SearchFailed if the disk fails, or SQLite."""
        if self.is_closed:
            raise SearchFailed("the gateway stops")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, ask)
        except (sqlite3.Error, OSError) as error:
            why = _describe(error)
            self._warn(why)
            raise SearchFailed(why) from error

    def delete(self, delete: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> None:
        """Behind what is being written. What is queued, or was read before, is not written any more.

        delete: gives how many files are left. These are tried again.
        """
        self.forgotten += 1
        if self.is_closed:
            return
        task = asyncio.ensure_future(self._delete(partial(delete, *args, **kwargs)))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete(self, delete: Callable[[], int]) -> None:
        left = await self._run(self._writer, delete)
        if not left:
            return
        log.warning(
            "files of the index could not be deleted yet: %d; they are not read, and tried again", left
        )
        if self._retrying is None and not self.is_closed:
            self._retrying = asyncio.ensure_future(self._delete_left())

    async def _delete_left(self) -> None:
        try:
            for seconds in _PAUSES_SECONDS:
                await asyncio.sleep(seconds)
                if await self._run(self._writer, self.files.delete_left) == 0:
                    log.info("files of the index that were left are deleted")
                    return
        finally:
            self._retrying = None

    async def finish(self) -> None:
        """Returns once everything is deleted that is to be, and can be."""
        while self._deleting:
            await asyncio.wait(self._deleting)

    async def close(self) -> None:
        self.is_closed = True
        await self.finish()
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait((self._retrying,))
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        await asyncio.to_thread(self.files.close)

    async def _run(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, call)
        except (sqlite3.Error, OSError) as error:
            self._warn(_describe(error))
            return None

    def _warn(self, why: str) -> None:
        now, last = time.monotonic(), self._warned.get(why)
        if last is None or now - last > _WARNING_SECONDS:
            self._warned[why] = now
            log.warning("originals cannot be searched: %s; this is not logged again for an hour", why)


def _describe(error: sqlite3.Error | OSError) -> str:
    """One of few texts, without a path or anything of a query."""
    if isinstance(error, LockHeld):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
        return "the query took too long"
    return getattr(error, "sqlite_errorname", type(error).__name__)
