"""The files of the search index: one for each conversation, in a directory for each tenant, bounded in bytes.

Beside a store on disk all processes share them. Otherwise they belong to one process, and go with it. The
file that was used longest ago is deleted first; what is searched again is made again from the store.
Everything here waits for the disk, so it runs in threads.
"""

import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from gateway.originals.file_locks import LOCK_SECONDS, FileLocks
from gateway.originals.index_file import drop_expired, drop_oldest, open_index

_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")
_ENDING: Final = ".sqlite"
# Beside a file that is to be deleted, and could not be yet. Nothing reads it any more.
_MARK: Final = ".deleted"
_LOCKS_NAME: Final = "locks"
# Of the private directory of a process, and of the file in it that its process holds a lock on.
_PREFIX: Final = "gateway-search-"
_OWNER_NAME: Final = "owner"
# Errors that say nothing about the file: it is busy, the disk is full, or the process may not.
_OUTER_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
_PRIMARY: Final = 0xFF


class IndexDamaged(Exception):
    """The file was deleted; it is to be made again."""


class IndexBounds(NamedTuple):
    """In bytes of files: of all tenants together, and of one."""

    total: int
    tenant: int


class _File(NamedTuple):
    used_seconds: float
    size_bytes: int
    path: Path


def is_indexed_name(conversation_id: str) -> bool:
    """Whether a conversation may have this id: what a model or a client names may be anything."""
    return _NAME.fullmatch(conversation_id) is not None


class IndexFiles:
    """directory: None for a private one, made when it is first needed."""

    def __init__(self, directory: Path | None, bounds: IndexBounds) -> None:
        # What could not be deleted, also where it could not be marked.
        self._left: set[Path] = set()
        self._directory = directory
        self._is_private = directory is None
        self._bounds = bounds
        self._owner: int | None = None
        self._locks: FileLocks | None = None

    def has_file(self, tag: str, conversation_id: str) -> bool:
        """Cheap."""
        path = self._find_path(tag, conversation_id)
        return path is not None and path.exists() and not self._is_left(path)

    @contextmanager
    def reading(self, tag: str, conversation_id: str) -> Iterator[sqlite3.Connection | None]:
        """None if there is no file. Raises IndexDamaged, sqlite3.Error and OSError."""
        path = self._find_path(tag, conversation_id)
        if path is None or not self.has_file(tag, conversation_id):
            yield None
            return
        with self._deleted_if_damaged(path), self._find_locks().shared(path.name):
            if not path.exists() or self._is_left(path):
                yield None
                return
            os.utime(path)
            with open_index(path) as index:
                yield index

    @contextmanager
    def writing(self, tag: str, conversation_id: str) -> Iterator[sqlite3.Connection]:
        """Makes the file if there is none. Raises IndexDamaged, sqlite3.Error and OSError."""
        path = self._make_path(tag, conversation_id)
        with self._deleted_if_damaged(path), self._find_locks().exclusive(path.name):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if self._is_left(path):
                self._unlink(path)
            with open_index(path) as index:
                drop_oldest(index, min(self._bounds))
                yield index

    def delete(self, tag: str, conversation_id: str) -> int:
        """How many files are left, see `delete_left`."""
        path = self._find_path(tag, conversation_id)
        return self._delete_all([path]) if path is not None else 0

    def delete_tenant(self, tag: str) -> int:
        """The same for all files of a tenant."""
        left = self._delete_all([*self._list_marked(tag), *(file.path for file in self._list_tenant(tag))])
        self._remove_empty([tag])
        return left

    def delete_left(self) -> int:
        """Tries again, without waiting. How many files are still left: they are locked, or the disk fails.

        Nothing reads them. They are marked, so that any process can do this.
        """
        marked = [path for tag in self._list_tags() for path in self._list_marked(tag)]
        left = self._delete_all([*self._left, *marked], 0.0)
        self._remove_empty(self._list_tags())
        return left

    def trim(self, kept: tuple[str, str]) -> None:
        """Deletes what was used longest ago until the bounds hold. kept: tag and id of the conversation whose
        file has just been written; it stays.
        """
        stays = self._find_path(*kept)
        for tag in self._list_tags():
            self._trim(self._list_tenant(tag), self._bounds.tenant, stays)
        everything = [file for tag in self._list_tags() for file in self._list_tenant(tag)]
        self._trim(everything, self._bounds.total, stays)

    def sweep(self, now: float) -> None:
        """Deletes what was left, and what has expired from all files. now: Unix time."""
        self.delete_left()
        for tag in self._list_tags():
            for file in self._list_tenant(tag):
                with suppress(IndexDamaged, sqlite3.Error, OSError):
                    self._sweep(file, now)

    def close(self) -> None:
        """A private directory is deleted."""
        owner, self._owner = self._owner, None
        if self._is_private and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = self._locks = None
        if owner is not None:
            os.close(owner)

    def _sweep(self, file: _File, now: float) -> None:
        with self._deleted_if_damaged(file.path), self._find_locks().exclusive(file.path.name):
            if not file.path.exists():
                return
            with open_index(file.path) as index:
                left = drop_expired(index, now)
            if not left:
                self._unlink(file.path)
            else:
                # This was no use of it.
                os.utime(file.path, (file.used_seconds, file.used_seconds))

    def _trim(self, files: list[_File], most_bytes: int, stays: Path | None) -> None:
        size = sum(file.size_bytes for file in files)
        for file in sorted(files):
            if size <= most_bytes:
                return
            if file.path != stays:
                self._delete_file(file.path)
                size -= file.size_bytes

    def _delete_all(self, paths: list[Path], longest_seconds: float = LOCK_SECONDS) -> int:
        """How many are left. A file that cannot be deleted keeps none of the others."""
        left = 0
        for path in dict.fromkeys(paths):
            try:
                self._delete_file(path, longest_seconds)
            except OSError:
                left, longest_seconds = left + 1, 0.0
                self._left.add(path)
                with suppress(OSError):
                    _name_mark(path).touch(mode=0o600)
        return left

    def _delete_file(self, path: Path, longest_seconds: float = LOCK_SECONDS) -> None:
        if path.exists() or _name_mark(path).exists():
            with self._find_locks().exclusive(path.name, longest_seconds):
                self._unlink(path)
        self._left.discard(path)

    def _unlink(self, path: Path) -> None:
        """With what SQLite keeps beside it. The mark goes last."""
        for each in (path, path.with_name(f"{path.name}-journal"), _name_mark(path)):
            each.unlink(missing_ok=True)
        self._left.discard(path)

    def _remove_empty(self, tags: list[str]) -> None:
        """The folders of tenants."""
        for tag in filter(is_indexed_name, tags):
            if self._directory is not None:
                with suppress(OSError):
                    (self._directory / tag).rmdir()

    def _is_left(self, path: Path) -> bool:
        return path in self._left or _name_mark(path).exists()

    def _list_marked(self, tag: str) -> list[Path]:
        if self._directory is None:
            return []
        folder = self._directory / tag
        return [folder / name.removesuffix(_MARK) for name in _list_names(folder) if name.endswith(_MARK)]

    @contextmanager
    def _deleted_if_damaged(self, path: Path) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if not _says_damage(error):
                raise
            self._delete_file(path)
            raise IndexDamaged(str(error)) from error

    def _list_tags(self) -> list[str]:
        return _list_names(self._directory) if self._directory is not None else []

    def _list_tenant(self, tag: str) -> list[_File]:
        if self._directory is None:
            return []
        found = []
        for name in _list_names(self._directory / tag):
            path = self._directory / tag / name
            with suppress(OSError):
                if name.endswith(_ENDING):
                    status = path.stat()
                    found.append(_File(status.st_mtime, status.st_size, path))
        return found

    def _find_path(self, tag: str, conversation_id: str) -> Path | None:
        """None for an id that no conversation has, or before anything was written."""
        if self._directory is None or not (is_indexed_name(conversation_id) and is_indexed_name(tag)):
            return None
        return self._directory / tag / f"{conversation_id}{_ENDING}"

    def _make_path(self, tag: str, conversation_id: str) -> Path:
        if self._directory is None:
            self._directory, self._owner = _make_private_directory()
        path = self._find_path(tag, conversation_id)
        if path is None:
            raise OSError("not the id of a conversation")
        return path

    def _find_locks(self) -> FileLocks:
        """The directories are made again if they were deleted, as a cache may be. Not a private one: in a
        folder of all users another user may have taken its name.
        """
        assert self._directory is not None
        place = self._directory / _LOCKS_NAME
        if self._locks is None or not self._is_private:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            place.mkdir(mode=0o700, exist_ok=True)
        if self._locks is None:
            self._locks = FileLocks(place)
        return self._locks


def _name_mark(path: Path) -> Path:
    return path.with_name(f"{path.name}{_MARK}")


def _says_damage(error: sqlite3.Error) -> bool:
    """Whether another file would do better."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & _PRIMARY not in _OUTER_ERRORS


def _list_names(directory: Path) -> list[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [name for name in names if name != _LOCKS_NAME]


def _make_private_directory() -> tuple[Path, int]:
    """And the descriptor that holds it. Those of processes that were killed are deleted first."""
    root = Path(tempfile.gettempdir())
    for path in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _delete_abandoned(path)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    descriptor = os.open(directory / _OWNER_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return directory, descriptor


def _delete_abandoned(path: Path) -> None:
    """Does nothing if its process lives, or if it is another user's."""
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        return
    descriptor = os.open(path / _OWNER_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
