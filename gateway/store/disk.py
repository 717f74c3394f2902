"""The store on disk: a directory, one thread that writes and one that reads. The event loop does neither.

The work is done in `pending`, `writer`, `reader` and `volume`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.store.errors import StoreError, Unusable, describe_refusal
from gateway.store.leases import Leases, LocalLeases
from gateway.store.news import News, NoNews
from gateway.store.pending import Op, Pending
from gateway.store.reader import Reader
from gateway.store.record import check_key
from gateway.store.writer import Writer

_log = logging.getLogger(__name__)
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

# Operations that wait in memory for the disk: minutes of heavy traffic (heads are some KB each).
_MAX_QUEUED_BYTES = 64 << 20
# A head that a crash loses costs one estimate. In half a second, rewrites of the same head become one write.
_LINGER_SECONDS = 0.5
# Transactions are short. A write that waits longer for another process meets a stuck one.
_LOCK_SECONDS = 10.0


class DiskStore:
    is_shared = False

    def __init__(
        self,
        directory: Path,
        *,
        max_queued_bytes: int = _MAX_QUEUED_BYTES,
        linger_seconds: float = _LINGER_SECONDS,
        clock: Callable[[], float] = time.time,
        lock_seconds: float = _LOCK_SECONDS,
        max_bytes: int | None = None,
    ) -> None:
        """max_bytes: on disk; what was written longest ago is dropped first. None: records leave when they
        expire.
        """
        self._directory = directory
        self._clock = clock
        self._pending = Pending(max_queued_bytes)
        self._writer = Writer(
            directory,
            self._pending,
            linger_seconds=linger_seconds,
            clock=clock,
            lock_seconds=lock_seconds,
            max_bytes=max_bytes,
        )
        self._reader = Reader(self._writer, self._pending, clock)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._has_opened = False
        self._has_warned = False
        self.leases: Leases = LocalLeases(self)
        self.news: News = NoNews()

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._pending.used_bytes

    async def open(self) -> None:
        """To be called once. A damaged store of ours is moved away. Raises StoreError, with words for the
        operator, if the directory is not ours or cannot be written. Once it is open, a disk that fails costs
        no more than the records: they are kept in memory.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._writer.start)
        except StoreError as error:
            self._executor.shutdown(wait=False)
            raise type(error)(describe_refusal(self._directory, error)) from error
        self._has_opened = True

    async def close(self) -> None:
        """The store cannot be opened again."""
        if not self._is_open:
            return
        self._pending.close()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._finish)
        finally:
            self._executor.shutdown(wait=False)

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        return await self._in_thread(self._reader.read_first, keys) if self._is_open and keys else None

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        if not self._is_open:
            return [None] * len(groups)
        return await self._in_thread(lambda some: [self._reader.read_first(keys) for keys in some], groups)

    async def read(self, key: str) -> bytes | None:
        found = await self.read_first((key,))
        return None if found is None else found[1]

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        return await self._in_thread(self._reader.scan, prefix) if self._is_open else []

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        check_key(key)
        if not self._is_open:
            _log.debug("store: a write after closing is dropped")
        elif not self._pending.put(key, Op(value, self._clock() + keep_seconds)):
            self._warn_full()

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        check_key(key)
        if not self._is_open:
            raise Unusable("the store is closed")
        waiter: Future[None] = Future()
        if not self._pending.put(key, Op(value, self._clock() + keep_seconds, (waiter,))):
            raise StoreError("too much is waiting to be written")
        await asyncio.wrap_future(waiter)

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        known = await self.read(key)
        if known is None:
            await self.write_durably(key, value, keep_seconds=keep_seconds)
        return value if known is None else known

    async def take(self, key: str) -> bytes | None:
        value = await self.read(key)
        if value is not None:
            self.delete(key)
        return value

    async def purge(self, tag: str) -> int:
        """Their bytes leave the files, too. What was set aside as damaged is deleted as a whole, because
        it cannot be searched.
        """
        if not self._is_open:
            raise Unusable("the store is closed")
        keys = await self._in_thread(self._reader.list_tagged, tag)
        for key in keys:
            self.delete(key)
        await asyncio.wrap_future(self._writer.scrub())
        return len(keys)

    def delete(self, key: str) -> None:
        check_key(key)
        if not self._is_open:
            _log.debug("store: a delete after closing is dropped")
            return
        self._pending.put(key, Op(None))

    @property
    def _is_open(self) -> bool:
        return self._has_opened and not self._pending.is_closed

    async def _in_thread(self, call: Callable[[_Argument], _Result], argument: _Argument) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, argument)

    def _finish(self) -> None:
        """Runs in the reader thread, which must close its own connection."""
        self._writer.join()
        self._reader.close()

    def _warn_full(self) -> None:
        if not self._has_warned:
            _log.warning(
                "store: too much is waiting to be written, writes are dropped; further cases are not logged"
            )
        self._has_warned = True


def choose_directory(path: Path) -> Path:
    """`~` and `$VAR` are expanded as diskcache would, so that both mean the same directory.

    A link is followed once, here: whatever it leads to later, the store stays where it is.
    """
    return Path(os.path.realpath(os.path.expandvars(os.path.expanduser(path))))
