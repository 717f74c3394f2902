"""One open store directory: its database, how it is opened, written, and set aside when it is damaged.

Only the writer thread touches a volume's cache (sqlite connections belong to their thread). Several processes
may have the same directory open.
"""

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import diskcache

from gateway.store.bytes_disk import BytesDisk, sync_directory
from gateway.store.fault import Damaged, mapped_faults
from gateway.store.frame import render_frame
from gateway.store.pending import Op

# How long a write waits for another process; transactions are short, so longer means that something is stuck.
_LOCK_SECONDS = 10.0
_EXPIRE_ROWS = 200
_DATABASE_NAME = "cache.db"  # diskcache.core.DBNAME
_SETTINGS = {
    "eviction_policy": "none",  # only retention removes
    "size_limit": 1 << 60,
    "cull_limit": 0,  # expired rows are removed by expire_some, not by every write
    "statistics": 0,
    "tag_index": 0,
    "disk_min_file_size": 1 << 20,
    "sqlite_journal_mode": "wal",
    "sqlite_synchronous": 2,  # FULL: a pivot survives power loss once write_durably has returned
    "sqlite_mmap_size": 0,  # reading a mapped file that somebody truncates is SIGBUS, not an error
}
# For its index by age, which makes the oldest easy to find; `trim_some` removes them. What is written here is
# seldom read, and not worth pages in memory.
_BOUNDED = {"eviction_policy": "least-recently-stored", "sqlite_cache_size": 1 << 10}
_SETTING_NAMES = {*diskcache.DEFAULT_SETTINGS, "count", "size", "hits", "misses"}
_CACHE_COLUMNS = {
    *("rowid", "key", "raw", "store_time", "expire_time", "access_time"),
    *("access_count", "tag", "size", "mode", "filename", "value"),
}
_FIND_EXPIRED = (
    "SELECT expire_time FROM Cache WHERE 0 < expire_time AND expire_time < ?"
    " ORDER BY expire_time LIMIT 1 OFFSET ?"
)
_OLDEST_ROWS = 200
# What a row takes beside its value: columns, its key a second time, three indexes.
_ROW_BYTES = 300
_FIND_OLDEST = (
    "SELECT key, COALESCE(size, 0) + COALESCE(length(value), 0) FROM Cache"
    " WHERE raw = 1 AND typeof(key) = 'text' ORDER BY store_time LIMIT ?"
)


class Volume:
    """An open directory. Errors: Damaged, Locked, Unusable."""

    def __init__(self, directory: Path, cache: diskcache.Cache, max_bytes: int | None) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self.database = find_database(directory)
        self.disk: BytesDisk = cache.disk
        self._cache = cache
        self._identity = _read_identity(self.database)

    def is_current(self) -> bool:
        """False once the directory was set aside by another process, or removed."""
        return self._identity is not None and _read_identity(self.database) == self._identity

    def write(self, batch: Mapping[str, Op]) -> None:
        """All of it in one transaction, or nothing."""
        with self._undone_on_error(), mapped_faults(), self._cache.transact():
            for key, op in batch.items():
                self._write_op(key, op)
        self.disk.forget_doomed()

    def expire_some(self, now: float) -> bool:
        """Removes a small piece of what has expired. True if there may be more."""
        with self._undone_on_error(), mapped_faults():
            with closing(connect(self.database)) as connection:
                row = connection.execute(_FIND_EXPIRED, (now, _EXPIRE_ROWS)).fetchone()
            removed: int = self._cache.expire(now if row is None else math.nextafter(row[0], math.inf))
        self.disk.forget_doomed()
        return removed > 0

    def trim_some(self) -> bool:
        """Removes a small piece of what was written longest ago, where there is too much. True if there may
        be more."""
        if self._max_bytes is None:
            return False
        with self._undone_on_error(), mapped_faults():
            excess: int = self._cache.volume() - self._max_bytes
            removed = self._remove_oldest(excess) if excess > 0 else 0
        self.disk.forget_doomed()
        return removed > 0

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._cache.close()

    def _remove_oldest(self, excess_bytes: int) -> int:
        """Pages may be half empty: at most half of it at once, or too much would go."""
        with closing(connect(self.database)) as connection:
            oldest = connection.execute(_FIND_OLDEST, (_OLDEST_ROWS,)).fetchall()
        removed = 0
        with self._cache.transact():
            for key, size_bytes in oldest:
                removed += self._cache.delete(key)
                excess_bytes -= 2 * (size_bytes + _ROW_BYTES)
                if excess_bytes <= 0:
                    break
        return removed

    def _write_op(self, key: str, op: Op) -> None:
        # diskcache adds its own time.time(): whatever clock made expires_at, that is what the row holds.
        keep_seconds = op.expires_at - time.time()
        if op.value is None:
            self._cache.delete(key)
        else:
            self._cache.set(key, render_frame(key, op.value), expire=keep_seconds)

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # A COMMIT that fails leaves diskcache's connection inside the transaction; closing ends it.
            self.close()
            self.disk.forget_written()
            raise


def open_volume(directory: Path, max_bytes: int | None = None) -> Volume:
    """max_bytes: None where only time removes.

    Raises Damaged (see `_check`), Locked, or Unusable (cannot be created or written).
    """
    with mapped_faults():
        _check(directory)
        if not directory.exists():
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            sync_directory(directory.parent)
        settings = _SETTINGS if max_bytes is None else {**_SETTINGS, **_BOUNDED}
        cache = diskcache.Cache(str(directory), timeout=_LOCK_SECONDS, disk=BytesDisk, **settings)
    return Volume(directory, cache, max_bytes)


def set_aside(directory: Path) -> Path:
    """Renames what is damaged, never deletes it. Where the directory itself cannot be renamed (it is a mount
    point, or its parent belongs to somebody else), its content moves into a subdirectory."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    with mapped_faults():
        try:
            aside = _choose_free(directory.with_name(f"{directory.name}.damaged-{stamp}"))
            directory.rename(aside)
        except OSError:
            aside = _choose_free(directory / f"damaged-{stamp}")
            aside.mkdir(mode=0o700)
            for entry in [entry for entry in directory.iterdir() if not entry.name.startswith("damaged-")]:
                entry.rename(aside / entry.name)
    return aside


@contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """One process at a time replaces a store. Bounded: a second rename is better than hanging at start."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(directory.parent, os.O_RDONLY)
    try:
        if descriptor is not None:
            _lock(descriptor)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # gives the lock back


def find_database(directory: Path) -> Path:
    return directory / _DATABASE_NAME


def connect(database: Path) -> sqlite3.Connection:
    """To look, not to write; never creates the file."""
    uri = database.absolute().as_uri() + "?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.execute("PRAGMA query_only = 1")
    return connection


def _check(directory: Path) -> None:
    """Cases: nothing there yet · not a directory, or unreadable · database unreadable · not our schema.

    Tables may be missing: another process may be creating them right now.
    """
    if not directory.exists() and not directory.is_symlink():
        return
    if not (directory.is_dir() and os.access(directory, os.R_OK | os.X_OK)):
        raise Damaged("not a directory that can be read")
    database = find_database(directory)
    if not database.exists():
        return
    if not (database.is_file() and os.access(database, os.R_OK)):
        raise Damaged("the database is not a file that can be read")
    with closing(connect(database)) as connection:
        _check_schema(connection)


def _check_schema(connection: sqlite3.Connection) -> None:
    columns = {row[1] for row in connection.execute("PRAGMA table_info(Cache)")}
    if columns and columns != _CACHE_COLUMNS:
        raise Damaged("the database has another schema")
    if not connection.execute("PRAGMA table_info(Settings)").fetchall():
        return
    if not {row[0] for row in connection.execute("SELECT key FROM Settings")} <= _SETTING_NAMES:
        raise Damaged("the database has other settings")


def _read_identity(database: Path) -> tuple[int, int] | None:
    try:
        status = database.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _choose_free(path: Path) -> Path:
    """rename() silently replaces an empty directory, so look first."""
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
