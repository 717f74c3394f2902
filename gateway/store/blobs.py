"""Large values, bounded in bytes: the oldest go first. On disk they lie in diskcache, beside the state; over
Redis and in memory they are records of the store, and end with their lifetime.

Nothing is ever pickled or unpickled, and no value lies in a file of its own: a purge leaves no byte behind.
"""

import asyncio
import logging
import math
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import diskcache
from diskcache.core import DBNAME, MODE_RAW, UNKNOWN

from gateway.store.database import (
    LOCK_SECONDS,
    Damaged,
    FileIdentity,
    identify,
    locked,
    mapped_errors,
    move_aside,
)
from gateway.store.folder import BLOBS_NAME, FILE_MODE, FOLDER_MODE
from gateway.store.interface import LATEST, Key, Lookup, Store, StoreError, Unknown, Unusable, seal, unseal

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_CLOSE_SECONDS: Final = 5.0
# No value is so large that diskcache would give it a file.
_NO_FILES_BYTES: Final = 1 << 60
# Other processes wait for so many values.
_STEP: Final = 100
# A purge is heard of within a second.
_KEPT_PUTS: Final = 10_000
_REMOVE: Final = (
    "DELETE FROM Cache WHERE rowid IN"
    " (SELECT rowid FROM Cache WHERE tag BETWEEN ? AND ? AND store_time<=? LIMIT ?)"
)
_REMOVE_EXPIRED: Final = (
    "DELETE FROM Cache WHERE rowid IN (SELECT rowid FROM Cache WHERE expire_time<? LIMIT ?)"
)
# A clock that is wrong at the start can be set before anything expires.
_SWEEP_SECONDS: Final = 600.0


class Blobs(Protocol):
    """A group is a conversation, as in the store. What is absent may have been dropped for room."""

    async def open(self) -> None:
        return

    async def get(self, tag: str, group: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Those that are there. Raises StoreError: it is not known whether they are."""
        return {}

    async def put(
        self, tag: str, group: str, values: Mapping[str, bytes], *, keep_seconds: float | None = None
    ) -> None:
        """All of them are kept when this returns. Raises StoreError, then some may be."""
        return

    async def delete(self, tag: str, groups: Collection[str] | None = None) -> int:
        """Also what other processes have put. None: of the whole tag, which takes longer. Returns how many
        values that were, but for those that are records of the store: its own `delete` has them.
        """
        return 0

    async def close(self) -> None:
        return


class NoBlobs(Blobs):
    """For values that memory has already, where the store is in memory, too."""


def make_blobs(store: Store, folder: Path | None, name: str, *, max_bytes: int, keep_seconds: float) -> Blobs:
    """folder: of the store. name: what the values are for. max_bytes: on disk."""
    if folder is None:
        return StoredBlobs(store, name, keep_seconds)
    blobs = DiskBlobs(folder / BLOBS_NAME / name, max_bytes, keep_seconds)
    store.subscribe(blobs)
    return blobs


class StoredBlobs(Blobs):
    def __init__(self, store: Store, kind: str, keep_seconds: float) -> None:
        self._store = store
        self._kind = kind
        self._keep_seconds = keep_seconds

    async def get(self, tag: str, group: str, names: Sequence[str]) -> Mapping[str, bytes]:
        lookups = [Lookup(self._kind, [f"{group}/{name}"]) for name in names]
        found = await self._store.get(tag, lookups, wait=LATEST)
        return {name: each.value for name, each in zip(names, found, strict=True) if each is not None}

    async def put(
        self, tag: str, group: str, values: Mapping[str, bytes], *, keep_seconds: float | None = None
    ) -> None:
        seconds = self._keep_seconds if keep_seconds is None else keep_seconds
        puts = [
            self._store.put_durable(Key(tag, self._kind, f"{group}/{name}"), value, seconds, group=group)
            for name, value in values.items()
        ]
        for result in await asyncio.gather(*puts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


class DiskBlobs(Blobs):
    """Also a listener of the store: what a process has put that did not know of a purge goes as well."""

    def __init__(
        self, folder: Path, max_bytes: int, keep_seconds: float, sweep_seconds: float = _SWEEP_SECONDS
    ) -> None:
        self._folder, self._path = folder, folder / DBNAME
        self._max_bytes = max_bytes
        self._keep_seconds = keep_seconds
        self._sweep_seconds = sweep_seconds
        self._sweeping: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "store-blobs")
        self._cache: diskcache.Cache | None = None
        self._identity: FileIdentity | None = None
        self._is_closed = False
        # When this process put something there last. Of its thread.
        self._put_at: OrderedDict[str, float] = OrderedDict()
        self._evictions: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._sweeping = asyncio.create_task(self._sweep(), name="blobs-sweep")

    async def get(self, tag: str, group: str, names: Sequence[str]) -> Mapping[str, bytes]:
        def get(cache: diskcache.Cache) -> dict[str, bytes]:
            found: dict[str, bytes] = {}
            for name in names:
                sealed = cache.get(_join(tag, group, name))
                value = unseal(Key(tag, group, name), sealed) if isinstance(sealed, bytes) else None
                if value is not None:
                    found[name] = value
            return found

        return await self._call(get)

    async def put(
        self, tag: str, group: str, values: Mapping[str, bytes], *, keep_seconds: float | None = None
    ) -> None:
        seconds = self._keep_seconds if keep_seconds is None else keep_seconds
        place = _join(tag, group)

        def put(cache: diskcache.Cache) -> None:
            for name, value in values.items():
                sealed = seal(Key(tag, group, name), value)
                cache.set(_join(tag, group, name), sealed, expire=seconds, tag=place)
            self._put_at.pop(place, None)
            self._put_at[place] = time.time()
            if len(self._put_at) > _KEPT_PUTS:
                self._put_at.popitem(last=False)

        await self._call(put)

    async def delete(self, tag: str, groups: Collection[str] | None = None) -> int:
        ranges = [_find_range(tag, group) for group in (groups if groups is not None else [None])]
        count = 0
        for places in ranges:
            count += await self._remove(_REMOVE, *places, math.inf)
        await self._call(_empty_log)
        return count

    async def _remove(self, statement: str, *values: object) -> int:
        """In steps, so that nobody waits for it for long."""
        count, step = 0, _STEP
        while step == _STEP:
            step = await self._call(partial(_remove_some, statement, (*values, _STEP)))
            count += step
        return count

    async def close(self) -> None:
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        closing_ = asyncio.wrap_future(self._thread.submit(self._close_cache))
        await asyncio.wait({closing_}, timeout=_CLOSE_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def on_news(self, tag: str, text: str) -> None: ...

    def on_gap(self) -> None: ...

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        if self._is_closed:
            return
        task = asyncio.create_task(self._evict(*_find_range(tag, group), number / 1e6))
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    async def _evict(self, first: str, last: str, before: float) -> None:
        """What is newer stays, but for what this process has put while it did not know of the purge."""

        def find_end(_: diskcache.Cache) -> float:
            return max([before, *(at for place, at in self._put_at.items() if first <= place <= last)])

        try:
            await self._remove(_REMOVE, first, last, await self._call(find_end))
            await self._call(_empty_log)
        except StoreError as error:
            _log.warning("store %s: what was purged is not removed from it: %s", self._folder, error)

    async def _sweep(self) -> None:
        """What has expired. diskcache itself removes it only while it writes."""
        while True:
            await asyncio.sleep(self._sweep_seconds)
            with suppress(StoreError):
                if identify(self._path) is not None and await self._remove(_REMOVE_EXPIRED, time.time()):
                    await self._call(_empty_log)

    async def _call(self, call: Callable[[diskcache.Cache], _Result]) -> _Result:
        if self._is_closed:
            raise Unusable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, call)

    def _work(self, call: Callable[[diskcache.Cache], _Result]) -> _Result:
        """In the thread. A damaged folder is set aside, and the call is made again on an empty one."""
        try:
            with _mapped_errors():
                return call(self._open())
        except Damaged as error:
            self._set_aside(self._identity, str(error))
        with _mapped_errors():
            return call(self._open())

    def _open(self) -> diskcache.Cache:
        if self._cache is not None and self._identity == identify(self._path):
            return self._cache
        self._close_cache()
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        for folder in (self._folder, self._folder.parent):
            folder.chmod(FOLDER_MODE)
        # sqlite gives its log the mode of the database, so that must exist before diskcache makes it.
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            os.close(os.open(self._path, flags, FILE_MODE))
        self._identity = identify(self._path)
        self._cache = diskcache.Cache(
            str(self._folder),
            timeout=LOCK_SECONDS,
            disk=_BytesDisk,
            disk_min_file_size=_NO_FILES_BYTES,
            size_limit=self._max_bytes,
            eviction_policy="least-recently-stored",
            tag_index=1,
            sqlite_secure_delete=1,
            # A file that shrinks under a map ends the process.
            sqlite_mmap_size=0,
        )
        return self._cache

    def _set_aside(self, identity: FileIdentity | None, reason: str) -> None:
        """Unless another process was first."""
        self._close_cache()
        with _mapped_errors(), locked(self._folder.parent):
            if identity is not None and identify(self._path) == identity:
                move_aside(self._folder, reason)

    def _close_cache(self) -> None:
        cache, self._cache, self._identity = self._cache, None, None
        if cache is not None:
            with suppress(sqlite3.Error):
                cache.close()


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Keys are str, values bytes. It reads no other row, and no file."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: bool) -> str | None:
        """None for a key that is not plain text."""
        return key if type(key) is str and raw else None

    def store(
        self, value: object, read: bool, key: object = UNKNOWN
    ) -> tuple[int, int, str | None, bytes | None]:
        """Size of the file, mode, file name and value of the row."""
        if type(value) is not bytes or read:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        """Empty for a row that `store` does not write."""
        return value if mode == MODE_RAW and type(value) is bytes and not read else b""

    def remove(self, file_path: object) -> None:
        """A row of ours has no file, and the name that another row gives may lead anywhere."""


@contextmanager
def _mapped_errors() -> Iterator[None]:
    with mapped_errors():
        try:
            yield
        except diskcache.Timeout as error:
            # It stands for any failure of BEGIN.
            cause = error.__context__
            if isinstance(cause, sqlite3.Error):
                raise cause from error
            raise Unknown("another process has locked the database") from error


def _join(*parts: str) -> str:
    return "/".join(parts)


def _find_range(tag: str, group: str | None) -> tuple[str, str]:
    """The first and the last of its places."""
    # "0" comes after "/".
    return (f"{tag}/", f"{tag}0") if group is None else (_join(tag, group), _join(tag, group))


def _remove_some(statement: str, values: Sequence[object], cache: diskcache.Cache) -> int:
    """Returns how many. diskcache itself asks neither for the time nor for a range."""
    with closing(_connect(cache)) as connection:
        connection.execute("PRAGMA secure_delete=ON").fetchall()
        return connection.execute(statement, values).rowcount


def _empty_log(cache: diskcache.Cache) -> None:
    """No byte of what is deleted is left in the log."""
    with closing(_connect(cache)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _connect(cache: diskcache.Cache) -> sqlite3.Connection:
    return sqlite3.connect(Path(cache.directory) / DBNAME, timeout=LOCK_SECONDS, isolation_level=None)
