"""One open store directory: how it is opened, read, written, and moved out of the way when it is damaged.

The directory is a diskcache.Cache, used through its public interface. Each thread has its own connection in
it. Several processes may have the same directory open.
"""

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeGuard
from urllib.parse import quote

import diskcache
from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW, UNKNOWN

from gateway.store.errors import Damaged, Locked, mapped_errors
from gateway.store.ownership import DAMAGED_PREFIX, SIZE_LIMIT, claim, find_own, has_foreign
from gateway.store.pending import Op
from gateway.store.record import render_record

_SETTINGS = {
    "eviction_policy": "none",  # records leave when they expire
    "size_limit": SIZE_LIMIT,
    "cull_limit": 0,  # expire_some and trim_some remove records, not every write
    "statistics": 0,
    "tag_index": 0,
    "sqlite_journal_mode": "wal",
    "sqlite_synchronous": 2,  # FULL: a pivot survives power loss once write_durably has returned
    "sqlite_mmap_size": 0,  # reading a mapped file that another process truncates is SIGBUS, not an error
}
# A bounded store is seldom read, so its pages are not worth memory.
_BOUNDED = {"eviction_policy": "least-recently-stored", "sqlite_cache_size": 1 << 10}
# Public attributes that diskcache sets from its table of settings.
_SETTING_NAMES = {*diskcache.DEFAULT_SETTINGS, "count", "size", "hits", "misses"}
# Records that expired within one of these steps are removed in one go. What is older goes with the first.
_EXPIRE_STEP_SECONDS = 3_600.0
_LONGEST_DOWNTIME_SECONDS = 30 * 86_400.0
# What is removed in one go from a store that is too large.
_TRIM_BYTES = 1 << 20
# What Disk.filename makes. Anything else in a row could point out of the directory.
_FILE_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # the base class is untyped
    """Serialization of str keys and bytes values only. Nothing is ever pickled or unpickled.

    The reason is CVE-2025-69872: diskcache unpickles every row that claims to be a pickle, so write access
    to the directory would be enough to run code here. Values are stored in the database itself. Files are
    read and removed only for large values that an older version wrote.
    """

    def __init__(self, directory: str, min_file_size: int = 0, pickle_protocol: int = 0) -> None:
        super().__init__(directory, min_file_size, pickle_protocol)
        self._root = Path(directory)

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
        """Empty for a row that `store` does not write; that is never a whole record. Raises OSError if a file
        is gone.
        """
        if mode == MODE_RAW and type(value) is bytes and not read:
            return value
        if mode == MODE_BINARY and _is_file_name(filename) and not read:
            return (self._root / filename).read_bytes()
        return b""

    def remove(self, file_path: object) -> None:
        if _is_file_name(file_path):
            super().remove(file_path)


def _is_file_name(name: object) -> TypeGuard[str]:
    return type(name) is str and _FILE_NAME.fullmatch(name) is not None


class Volume:
    """An open directory. Errors: Damaged, Locked, Unusable. The writer thread and the reader thread use it,
    and each must close it.
    """

    def __init__(
        self, directory: Path, cache: diskcache.Cache, max_bytes: int | None, lock_seconds: float
    ) -> None:
        self._cache = cache
        self._lock_seconds = lock_seconds
        self._max_bytes = max_bytes
        self._database = directory / DBNAME
        self._identity = _read_identity(self._database)
        self._expired_until = 0.0

    def is_current(self) -> bool:
        """False once another process has moved the directory away, or it was removed."""
        return self._identity is not None and _read_identity(self._database) == self._identity

    def read(self, key: str, now: float) -> bytes | None:
        """The record as it was written; it may be damaged. None if it is absent or has expired."""
        with mapped_errors():
            record, expires_at = self._cache.get(key, default=None, expire_time=True)
        is_expired = expires_at is not None and expires_at <= now
        return None if is_expired else record

    def read_expiring(self, key: str, now: float) -> tuple[bytes | None, float]:
        """The same with the time at which it expires."""
        with mapped_errors():
            record, expires_at = self._cache.get(key, default=None, expire_time=True)
        return (None, 0.0) if expires_at is None or expires_at <= now else (record, expires_at)

    def list_in_order(self) -> list[str]:
        """All keys, in the order in which they were first written."""
        with mapped_errors():
            return [key for key in self._cache if key is not None]

    def list_keys(self, prefix: str) -> list[str]:
        """In descending order. Takes time for each key from the prefix on, so the prefix should sort last."""
        keys: list[str] = []
        with mapped_errors():
            for key in self._cache.iterkeys(reverse=True):
                if key is not None and key < prefix:
                    break
                if key is not None and key.startswith(prefix):
                    keys.append(key)
        return keys

    def write(self, batch: Mapping[str, Op]) -> None:
        """All of it in one transaction, or nothing."""
        with self._closed_on_error(), mapped_errors(), self._cache.transact():
            for key, op in batch.items():
                self._write_op(key, op)

    def expire_some(self, now: float) -> bool:
        """Removes a small piece of what has expired. True if there may be more."""
        with self._closed_on_error(), mapped_errors():
            while self._expired_until < now:
                start = max(self._expired_until, now - _LONGEST_DOWNTIME_SECONDS)
                until = min(now, start + _EXPIRE_STEP_SECONDS)
                # Of many records with one and the same time, diskcache may leave some for the next call.
                if self._cache.expire(until):
                    return True
                self._expired_until = until
        return False

    def trim_some(self) -> bool:
        """Removes a small piece of what was written longest ago, if the store is too large. True if there may
        be more.
        """
        if self._max_bytes is None:
            return False
        with self._closed_on_error(), mapped_errors():
            volume: int = self._cache.volume()
            if volume <= self._max_bytes:
                return False
            target = max(self._max_bytes, volume - _TRIM_BYTES)
            self._cache.reset("size_limit", target, update=False)
            removed: int = self._cache.cull()
        return removed > 0

    def scrub(self) -> None:
        """No byte of deleted records is left in the files of the store: sqlite writes the database anew,
        without the pages that are free, and empties its log.
        """
        self.close()
        with mapped_errors(), closing(_connect(self._database, self._lock_seconds)) as connection:
            connection.execute("VACUUM")
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise Locked("another process reads the database")

    def close(self) -> None:
        """For this thread."""
        with suppress(sqlite3.Error):
            self._cache.close()

    def _write_op(self, key: str, op: Op) -> None:
        if op.value is None:
            self._cache.delete(key)
            return
        # diskcache adds its own time.time(), so that the row holds expires_at.
        keep_seconds = op.expires_at - time.time()
        self._cache.set(key, render_record(key, op.value), expire=keep_seconds)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """A COMMIT that fails leaves diskcache's connection inside the transaction; closing ends it."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def open_volume(directory: Path, *, lock_seconds: float, max_bytes: int | None = None) -> Volume:
    """lock_seconds: how long a write waits for another process. max_bytes: None if records leave only when
    they expire.

    Raises Damaged, Foreign, Locked, or Unusable (cannot be created or written).
    """
    with mapped_errors():
        claim(directory)
        if not (directory / DBNAME).is_file():
            raise Damaged("the database is not a file")
        settings = _SETTINGS if max_bytes is None else {**_SETTINGS, **_BOUNDED}
        cache = _open_cache(directory, lock_seconds, settings)
    return Volume(directory, cache, max_bytes, lock_seconds)


def quarantine(directory: Path) -> Path:
    """Renames a damaged directory and returns its new place. If it cannot be renamed (it is a mount point, or
    its parent belongs to another user), or holds other things too, our own files move into a subdirectory.
    Nothing is deleted.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    with mapped_errors():
        if not has_foreign(directory):
            with suppress(OSError):
                place = _choose_free(directory.with_name(f"{directory.name}.damaged-{stamp}"))
                return directory.rename(place)
        place = _choose_free(directory / f"{DAMAGED_PREFIX}{stamp}")
        place.mkdir(mode=0o700)
        for path in find_own(directory):
            path.rename(place / path.name)
    return place


@contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """One process at a time replaces a store. The wait is bounded: a second rename is better than hanging at
    start.
    """
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(directory.parent, os.O_RDONLY)
    try:
        if descriptor is not None:
            _lock(descriptor)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # releases the lock


def _open_cache(directory: Path, lock_seconds: float, settings: Mapping[str, object]) -> diskcache.Cache:
    """diskcache makes an attribute of every setting that it finds; unknown ones would replace its methods."""
    try:
        cache = diskcache.Cache(str(directory), timeout=lock_seconds, disk=BytesDisk, **settings)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Damaged(f"the database cannot be opened: {type(error).__name__}") from error
    if {name for name in vars(cache) if not name.startswith("_")} - _SETTING_NAMES:
        raise Damaged("the database has other settings")
    return cache


def _connect(database: Path, lock_seconds: float) -> sqlite3.Connection:
    """As any other process connects to it."""
    return sqlite3.connect(
        f"file:{quote(str(database))}?mode=rw", uri=True, timeout=lock_seconds, isolation_level=None
    )


def _read_identity(database: Path) -> tuple[int, int] | None:
    try:
        status = database.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _choose_free(path: Path) -> Path:
    """rename() silently replaces an empty directory, so the path must not exist."""
    number, free = 1, path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _lock(descriptor: int) -> None:
    for _ in range(50):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.1)
