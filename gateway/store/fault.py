"""What went wrong with a store, in three words: damaged, locked, unusable.

The one place where errors of sqlite, diskcache and the file system are translated.

    StoreError
    ├── Damaged    the database is not one, or no longer: it is set aside
    ├── Locked     another process is writing: try again later
    └── Unusable   cannot be written: full, read-only, closed
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import diskcache


class StoreError(Exception):
    """The store could not do what it was asked. The message never holds content."""


class Damaged(StoreError): ...


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
# Extended codes of the file system's own damage; other I/O errors (full, gone, refused) are not.
_DAMAGED_READS = {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}


@contextmanager
def mapped_faults() -> Iterator[None]:
    """Foreign exceptions become one of the three."""
    try:
        yield
    except (sqlite3.Error, diskcache.Timeout, OSError) as error:
        raise choose_fault(error) from error


def choose_fault(error: BaseException) -> StoreError:
    """Cases: damage by code · a table or column missing (wrong schema) · locked · all else is unusable."""
    root = _find_root(error)
    text = f"{type(root).__name__}: {root}"
    if not isinstance(root, sqlite3.Error):
        return Locked(text) if isinstance(root, diskcache.Timeout) else Unusable(text)
    code: int = getattr(root, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in _DAMAGE or code in _DAMAGED_READS or _is_wrong_schema(code, str(root)):
        return Damaged(text)
    return Locked(text) if code & 0xFF in _LOCKS else Unusable(text)


def _find_root(error: BaseException) -> BaseException:
    """The first error of the chain: diskcache turns any failure of BEGIN into Timeout, and a ROLLBACK that
    sqlite has already done itself (disk full) fails with an error of its own."""
    while isinstance(error.__context__, (sqlite3.Error, OSError)):
        error = error.__context__
    return error


def _is_wrong_schema(code: int, text: str) -> bool:
    return code == sqlite3.SQLITE_ERROR and ("no such" in text or "no column" in text or "malformed" in text)
