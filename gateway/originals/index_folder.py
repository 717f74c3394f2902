"""The file of the search index: where it lies, who may open it, and what happens when it is damaged.

Beside a store on disk all processes of the machine share it. Otherwise it belongs to one process, and goes
with it. Everything here waits for the disk, so it runs in threads.
"""

import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from gateway.originals.index import open_index
from gateway.store.database import Damaged, locked, translate

T = TypeVar("T")

_FILE_NAME: Final = "index.sqlite"
# Of the private folder of a process, and of the file in it that its process holds a lock on.
_PREFIX: Final = "gateway-search-"
_OWNER_NAME: Final = "owner"


class IndexFolder:
    """folder: None for a private one, made when it is first needed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._is_private = folder is None
        self._owner: int | None = None
        # Several threads may need a private folder at once.
        self._making = threading.Lock()

    def has_file(self) -> bool:
        return self._folder is not None and (self._folder / _FILE_NAME).exists()

    def run(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """Makes the file if there is none. Raises Damaged, and then the file was deleted; Unknown if another
        process has locked it for too long; sqlite3.Error and OSError.

        Whoever has the file open holds the lock of the folder together with others, and whoever deletes it
        alone: SQLite's own locks end with the file, so a process that has a deleted one open would disturb
        those that have made a new one under its name.
        """
        folder = self._make_folder()
        path, identity = folder / _FILE_NAME, 0
        try:
            with locked(folder, fcntl.LOCK_SH):
                path.touch(mode=0o600, exist_ok=True)
                identity = path.stat().st_ino
                with closing(open_index(path)) as index:
                    return call(index)
        except (Damaged, sqlite3.Error) as error:
            damaged = error if isinstance(error, Damaged) else translate(error)
            if not isinstance(damaged, Damaged):
                raise
        with locked(folder), suppress(FileNotFoundError):
            if path.stat().st_ino == identity:
                path.with_name(f"{_FILE_NAME}-journal").unlink(missing_ok=True)
                path.unlink()
        raise damaged

    def close(self) -> None:
        """A private folder is deleted."""
        owner, self._owner = self._owner, None
        if self._is_private and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if owner is not None:
            os.close(owner)

    def _make_folder(self) -> Path:
        """Again if it was deleted, as a cache may be. Not a private one: in a folder of all users another
        user may have taken its name.
        """
        if self._is_private:
            with self._making:
                if self._folder is None:
                    self._folder, self._owner = _make_private_folder()
                return self._folder
        assert self._folder is not None
        if not self.has_file():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            # Of earlier versions: a folder for each tenant, and one of locks.
            for entry in self._folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
        return self._folder


def _make_private_folder() -> tuple[Path, int]:
    """And the descriptor that holds it. Those of processes that were killed are deleted first."""
    root = Path(tempfile.gettempdir())
    for path in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _delete_abandoned(path)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    descriptor = os.open(folder / _OWNER_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return folder, descriptor


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
