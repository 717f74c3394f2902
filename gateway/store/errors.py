"""The errors of a store, and the one place where those of sqlite, diskcache and the file system become them.

StoreError
├── Damaged    the directory or its database is damaged: the writer moves it out of the way
├── Foreign    the directory is not the gateway's: nothing in it may be touched
├── Locked     another process is writing: try again later
└── Unusable   cannot be written: full, read-only, closed
"""

import errno
import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import diskcache


class StoreError(Exception):
    """The store could not do what it was asked. The message never holds content."""


class Damaged(StoreError): ...


class Foreign(StoreError): ...


class Locked(StoreError): ...


class Unusable(StoreError): ...


# Primary result codes, https://www.sqlite.org/rescode.html.
_DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
}
_LOCKS = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
# Extended codes for damage in the file system; other I/O errors (full, gone, refused) are not damage.
_DAMAGED_READS = {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
# What sqlite says when tables are not the ones that diskcache made.
_WRONG_TABLES = ("no such", "no column", "malformed", "syntax error", "could not decode")


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Foreign exceptions become a StoreError."""
    try:
        yield
    except (sqlite3.Error, diskcache.Timeout, OSError) as error:
        raise translate(error) from error


def translate(error: BaseException) -> StoreError:
    """In this order: damaged by its code · damaged by its text · locked · otherwise unusable."""
    root = _find_root(error)
    text = f"{type(root).__name__}: {root}"
    if not isinstance(root, sqlite3.Error):
        return Locked(text) if isinstance(root, diskcache.Timeout) else Unusable(text)
    # Python's own errors about a value that it cannot decode have no code.
    code: int = getattr(root, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF in _DAMAGE or code in _DAMAGED_READS:
        return Damaged(text)
    if code == sqlite3.SQLITE_ERROR and any(words in str(root).lower() for words in _WRONG_TABLES):
        return Damaged(text)
    return Locked(text) if code & 0xFF in _LOCKS else Unusable(text)


def _find_root(error: BaseException) -> BaseException:
    """The first error of the chain. diskcache turns any failure of BEGIN into Timeout, and a ROLLBACK after
    sqlite has already rolled back (disk full) fails with an error of its own."""
    while isinstance(error.__context__, (sqlite3.Error, OSError)):
        error = error.__context__
    return error


def describe_refusal(directory: Path, error: StoreError) -> str:
    """Why a store cannot be opened, and what to do about it, for the operator."""
    if isinstance(error, Foreign):
        fix = "name an empty or a new folder"
        return f"store {directory} is not used: {error}; nothing in it was changed: {fix}"
    root = _find_root(error.__cause__ or error)
    reason = root.strerror if isinstance(root, OSError) else str(root)
    other = 'name another folder (store: "disk:PATH")'
    if _is_full(root):
        return f"store {directory} cannot be written: {reason}; make room on this disk, or {other}"
    user, path = os.geteuid(), shlex.quote(str(directory))
    # Not `Path.exists`, which raises for a folder that this user may not even look at.
    is_there = os.path.exists(directory)
    command = f"chown -R {user} {path}" if is_there else f"mkdir -p {path} && chown {user} {path}"
    return (
        f"store {directory} cannot be used by user {user}: {reason}; let this user write there "
        f"({command}; for a container, chown the mounted folder on the host), {other}, or keep state only "
        'until the next restart (store: "memory:")'
    )


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
