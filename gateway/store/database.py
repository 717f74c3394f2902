"""The file of the store: who made it, what it holds, and what happens when it is damaged, removed or locked.

Each thread has a `Session`: a connection that is made anew when the file has been replaced. Only the writer's
makes files or sets them aside, under a lock of the folder.
"""

import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from gateway.store.folder import (
    DAMAGED,
    FILE_MODE,
    STATE_NAME,
    claim_folder,
    find_earlier,
    probe,
    refuse,
    sync_folder,
)
from gateway.store.interface import StoreError, Unknown, Unusable

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
FileIdentity = tuple[int, int]

# "Refo", https://www.sqlite.org/fileformat.html: bytes 68 to 71 of the file.
APPLICATION_ID: Final = 0x5265666F
VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE record(
    kind TEXT NOT NULL, tag TEXT NOT NULL, name TEXT NOT NULL, grp TEXT NOT NULL, expires REAL NOT NULL,
    known INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, tag, name)) WITHOUT ROWID;
CREATE INDEX record_group ON record(tag, grp);
CREATE INDEX record_expires ON record(expires);
CREATE TABLE lease(
    tag TEXT NOT NULL, name TEXT NOT NULL, fence INTEGER NOT NULL, expires REAL NOT NULL,
    PRIMARY KEY (tag, name)) WITHOUT ROWID;
CREATE TABLE counter(
    tag TEXT NOT NULL, name TEXT NOT NULL, slot INTEGER NOT NULL, used REAL NOT NULL, expires REAL NOT NULL,
    PRIMARY KEY (tag, name, slot)) WITHOUT ROWID;
CREATE TABLE place(
    tag TEXT NOT NULL, name TEXT NOT NULL, member TEXT NOT NULL, expires REAL NOT NULL,
    PRIMARY KEY (tag, name, member)) WITHOUT ROWID;
CREATE TABLE news(
    id INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, tag TEXT NOT NULL, text TEXT NOT NULL,
    at REAL NOT NULL);
CREATE TABLE purge(
    id INTEGER PRIMARY KEY, tag TEXT NOT NULL, grp TEXT, at REAL NOT NULL, is_done INTEGER NOT NULL);
CREATE INDEX purge_place ON purge(tag, grp, id);
-- Newer than each tombstone of its owner and its group: a purge is done at once for who reads, however long
-- it takes to remove everything.
CREATE VIEW living AS SELECT * FROM record
    WHERE NOT EXISTS (SELECT 1 FROM purge WHERE purge.tag=record.tag AND purge.grp IS NULL AND id>known)
    AND NOT EXISTS (SELECT 1 FROM purge WHERE purge.tag=record.tag AND purge.grp=record.grp AND id>known);
"""
# Fails on the tables of another hand.
_CHECKS: Final = (
    "SELECT kind, tag, name, grp, expires, known, value FROM living LIMIT 0",
    "SELECT tag, name, fence, expires FROM lease LIMIT 0",
    "SELECT tag, name, slot, used, expires FROM counter LIMIT 0",
    "SELECT tag, name, member, expires FROM place LIMIT 0",
    "SELECT id, sender, tag, text, at FROM news LIMIT 0",
    "SELECT id, tag, grp, at, is_done FROM purge LIMIT 0",
)
# What a long reader leaves in the log is given back.
_LOG_BYTES: Final = 16 << 20
# Transactions are short. Who waits longer for another process meets a stuck one.
LOCK_SECONDS: Final = 5.0
_LOCK_STEP_SECONDS: Final = (0.0002, 0.004)

_DAMAGE: Final = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
}
_LOCKS: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
# Other I/O errors (full, gone, refused) are not damage.
_DAMAGED_READS: Final = {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
_WRONG_TABLES: Final = ("no such", "no column", "malformed", "could not decode")


class Damaged(StoreError):
    """The database, or a table of it, is not as we wrote it."""


# sqlite says the first two when it has no memory, or a number is too large for it.
TROUBLE: Final = (MemoryError, OverflowError, OSError, sqlite3.Error)


def translate(error: Exception) -> StoreError:
    """In this order: damaged by its code · damaged by its text · locked · otherwise unusable."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, sqlite3.Error):
        return Unusable(text)
    # Python's own errors about a value that it cannot decode have no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF in _DAMAGE or code in _DAMAGED_READS:
        return Damaged(text)
    if code == sqlite3.SQLITE_ERROR and any(words in str(error).lower() for words in _WRONG_TABLES):
        return Damaged(text)
    return Unknown("another process has locked the database") if code & 0xFF in _LOCKS else Unusable(text)


@contextmanager
def mapped_errors() -> Iterator[None]:
    try:
        yield
    except TROUBLE as error:
        raise translate(error) from error


class FileState(Enum):
    """Of a file, by its first bytes."""

    OURS = "ours"
    ABSENT = "absent"
    DAMAGED = "damaged"
    OTHER_VERSION = "of another version"
    FOREIGN = "of another program"


def judge(path: Path) -> FileState:
    """Without opening it as a database, which could change it. Raises OSError."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return FileState.ABSENT
    except IsADirectoryError:
        return FileState.DAMAGED
    if not head.startswith(b"SQLite format 3\0"):
        return FileState.DAMAGED
    if len(head) < 100 or int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        return FileState.DAMAGED if len(head) < 100 else FileState.FOREIGN
    if int.from_bytes(head[60:64], "big") != VERSION:
        return FileState.OTHER_VERSION
    page_bytes = int.from_bytes(head[16:18], "big")
    is_short = size < page_bytes * int.from_bytes(head[28:32], "big")
    # A log holds what the file may lack.
    return FileState.DAMAGED if is_short and not _has_log(path) else FileState.OURS


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def begin(connection: sqlite3.Connection, until: float) -> None:
    """A transaction that writes. until: of `time.monotonic`. Raises sqlite3.OperationalError if locked."""
    pause, longest = _LOCK_STEP_SECONDS
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection, until: float, *, is_durable: bool = False) -> Iterator[None]:
    """is_durable: also a sudden end of the machine cannot lose it."""
    connection.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}").fetchall()
    begin(connection, until)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # sqlite may have rolled back already (disk full).
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@dataclass
class Session:
    """One connection of one thread."""

    connection: sqlite3.Connection | None = None
    identity: FileIdentity | None = None
    # Made while the disk had no room for what sqlite keeps beside the database: it sees no changes.
    is_provisional: bool = False

    def close(self) -> None:
        connection, self.connection, self.identity = self.connection, None, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


class Database:
    """folder: None for one in memory, of at most max_bytes. on_replaced: called in any thread when the
    records are lost.
    """

    def __init__(self, folder: Path | None, max_bytes: int, on_replaced: Callable[[], None]) -> None:
        self.folder = folder
        self._path = folder / STATE_NAME if folder is not None else None
        self._max_bytes = max_bytes
        self._on_replaced = on_replaced
        # The file whose header this process has read; others are not opened.
        self._checked: FileIdentity | None = None
        # The file that the writer used last.
        self._written: FileIdentity | None = None
        self._has_noted_earlier = False

    def find_identity(self) -> FileIdentity | None:
        """None if there is no file, or no folder."""
        return identify(self._path) if self._path is not None else (0, 0)

    def is_current(self, session: Session) -> bool:
        return session.connection is not None and session.identity == self.find_identity()

    def write(self, session: Session, call: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """In the writer's thread. What is damaged is set aside, and the call is made again on an empty one.

        Raises StoreError; StoreRefused if the file is not ours.
        """
        for _ in range(2):
            try:
                with mapped_errors():
                    return call(self._connect_writer(session))
            except Damaged as error:
                identity = session.identity or self.find_identity()
                session.close()
                self._set_aside(identity, str(error))
        raise Unusable("the database is damaged again and again")

    def read(self, session: Session, call: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """In another thread. Raises Unknown."""
        try:
            with mapped_errors():
                return call(self._connect_reader(session))
        except Damaged as error:
            identity = session.identity
            session.close()
            self._set_aside(identity, str(error))
            raise Unknown("the database was damaged, and is set aside") from error
        except Unusable as error:
            session.close()
            raise Unknown(str(error)) from error

    def _connect_writer(self, session: Session) -> sqlite3.Connection:
        if self.is_current(session) and session.connection is not None:
            return session.connection
        session.close()
        if self._path is None:
            session.connection, session.identity = self._open_in_memory(), (0, 0)
            return session.connection
        self._prepare()
        identity = self.find_identity()
        connection = self._open(self._path)
        try:
            connection.execute("PRAGMA secure_delete=ON").fetchall()
            connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}").fetchall()
            for check in _CHECKS:
                connection.execute(check)
        except sqlite3.Error:
            session.identity = identity
            connection.close()
            raise
        if identity is None or identity != self.find_identity():
            connection.close()
            raise Unknown("another process has replaced the database")
        session.connection, session.identity = connection, identity
        before, self._written = self._written, session.identity
        if before not in (None, session.identity):
            _log.warning("store %s has lost its records: what is in use is written again", self.folder)
            self._on_replaced()
        return connection

    def _connect_reader(self, session: Session) -> sqlite3.Connection:
        """It sets no pragma of the file, which needs the right to write."""
        if self.is_current(session) and session.connection is not None and not session.is_provisional:
            return session.connection
        identity = self.find_identity()
        if self._path is None or identity is None or identity != self._checked:
            raise Unknown("the database is being made")
        session.close()
        connection = self._open(self._path)
        session.is_provisional = False
        try:
            connection.execute("SELECT 1 FROM record LIMIT 1")
        except sqlite3.OperationalError as error:
            connection.close()
            if isinstance(translate(error), Damaged | Unknown) or _has_log(self._path):
                raise
            # A full disk has no room for the index of the log. Without a log none is needed.
            connection = self._open(self._path, "&immutable=1")
            session.is_provisional = True
        session.connection, session.identity = connection, identity
        return connection

    def _open(self, path: Path, options: str = "") -> sqlite3.Connection:
        """Never makes a file. The thread that closes it may be another one."""
        mode = "ro" if options else "rw"
        address = f"file:{quote(str(path))}?mode={mode}{options}"
        return sqlite3.connect(address, uri=True, timeout=0, isolation_level=None, check_same_thread=False)

    def _open_in_memory(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(_SCHEMA)
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count={max(64, self._max_bytes // page_bytes)}").fetchall()
        return connection

    def _prepare(self) -> None:
        """Afterwards there is a file, and it is ours. Raises StoreRefused, OSError or sqlite3.Error."""
        assert self.folder is not None and self._path is not None
        claim_folder(self.folder)
        with locked(self.folder):
            identity = self.find_identity()
            if identity is None or identity != self._checked:
                self._check(self.folder, self._path)
            self._checked = self.find_identity()

    def _check(self, folder: Path, path: Path) -> None:
        verdict = judge(path)
        if verdict is FileState.FOREIGN:
            reason = f"its file {STATE_NAME!r} is the database of another program; nothing in it was changed"
            raise refuse(folder, reason)
        if verdict in (FileState.DAMAGED, FileState.OTHER_VERSION):
            # The temporary file proves first that a new one can be made.
            probe(folder)
            move_aside(path, verdict.value)
        if verdict is not FileState.OURS:
            _create(path)
        if not self._has_noted_earlier and verdict is not FileState.OURS and find_earlier(folder):
            self._has_noted_earlier = True
            _log.warning(
                "store %s holds records of an earlier version: they are set aside, and stay beside the new"
                " ones until a tenant is purged",
                folder,
            )

    def _set_aside(self, identity: FileIdentity | None, reason: str) -> None:
        """Unless another process or thread was first."""
        if self.folder is None or self._path is None:
            return
        with mapped_errors(), locked(self.folder):
            if identity is not None and self.find_identity() == identity:
                move_aside(self._path, reason)


def identify(path: Path) -> FileIdentity | None:
    """None if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def locked(folder: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """One process and one thread at a time make or move files; with LOCK_SH, many keep them where they are.
    A file system without locks has none.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    until = time.monotonic() + LOCK_SECONDS
    try:
        while not _try_lock(descriptor, kind):
            if time.monotonic() >= until:
                raise Unknown("another process has locked the folder")
            time.sleep(_LOCK_STEP_SECONDS[1])
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def move_aside(path: Path, reason: str) -> None:
    """With its log and index. Raises OSError."""
    place = f"{path.name}{DAMAGED}{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{end}", path.with_name(f"{place}{end}"))
    _log.error(
        "store %s is set aside as %s (%s): it has lost its records and begins anew", path, place, reason
    )


def _create(path: Path) -> None:
    """Under another name first, so that nobody sees half of it. Raises OSError or sqlite3.Error."""
    for left in path.parent.glob(f"{path.name}.new*"):
        left.unlink(missing_ok=True)
    new = path.with_name(f"{path.name}.new")
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE))
        connection = sqlite3.connect(new, timeout=0, isolation_level=None)
        try:
            # The mark and the way of giving back pages come before the tables.
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL").fetchall()
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
            connection.execute(f"PRAGMA user_version={VERSION}").fetchall()
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            connection.execute("PRAGMA synchronous=FULL").fetchall()
            connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        finally:
            connection.close()
        for end in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{end}")
        os.rename(new, path)
        sync_folder(path.parent)
    except (OSError, sqlite3.Error):
        for left in path.parent.glob(f"{path.name}.new*"):
            left.unlink(missing_ok=True)
        raise
