"""Whose a store directory is. What is not ours is refused and stays as it is.

A directory of ours holds a mark: a small file that names the program and the version of the layout. An
absent or empty directory becomes ours, and so does one that an earlier version wrote, which knew no marks.
Ours is private: mode 0700, its files 0600.
"""

import fcntl
import glob
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from diskcache.core import DBNAME

from gateway.store.errors import Foreign

MARK_NAME: Final = "gateway-store"
_MARK_START: Final = b"context-window-gateway store "
_MARK: Final = (
    _MARK_START + b"1\nThe gateway keeps the state of conversations here. It touches no files but its own.\n"
)
# Far more than any mark holds; a larger file is something else.
_MARK_BYTES: Final = 1_024
# What sqlite keeps beside a database.
_DATABASE_NAMES: Final = frozenset({DBNAME, f"{DBNAME}-wal", f"{DBNAME}-shm", f"{DBNAME}-journal"})
# Earlier versions wrote large values to files two directories deep.
_VALUES_NAME: Final = re.compile(r"[0-9a-f]{2}")
# What was set aside.
DAMAGED_PREFIX: Final = "damaged-"
# The store of the originals, inside that of the state.
_INNER_NAME: Final = "originals"
# The index over them.
_INDEX_NAME: Final = "search"
# A new ext4 volume holds this directory, so it is not empty.
_OF_THE_SYSTEM: Final = frozenset({"lost+found"})
# Every version of the gateway opens diskcache with this bound, and no other program does. In a row of sqlite
# the value of a key stands right behind it, so the bytes of the file show it without opening the database,
# which could change it. diskcache writes its settings first: they are in the first pages of the database or,
# before its first checkpoint, of its log.
SIZE_LIMIT: Final = 1 << 60
_SETTING: Final = b"size_limit" + SIZE_LIMIT.to_bytes(8, "big")
_SETTING_WITHIN_BYTES: Final = 1 << 20

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


def claim(directory: Path) -> None:
    """Makes a directory that is absent, and makes sure that one that exists is ours.

    Raises Foreign, before anything has been changed, or OSError.
    """
    names = _list_names(directory)
    if names is None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=_DIRECTORY_MODE)
            _sync(directory.parent)
        names = set()
    _refuse_links(directory, names)
    if names and MARK_NAME not in names:
        _refuse_unmarked(directory, names)
    _mark(directory)
    _make_private(directory, names)


class ShareLock:
    """Tells whether another process uses the same directory, which works, but is hardly ever wanted."""

    def __init__(self, directory: Path) -> None:
        self._mark = directory / MARK_NAME
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Held until `release`, for the mark that is there now. False if another process holds it. A file
        system without locks says nothing, which counts as True.
        """
        self.release()
        try:
            self._descriptor = os.open(self._mark, os.O_RDONLY | os.O_NOFOLLOW)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def remove_set_aside(directory: Path) -> list[Path]:
    """Deletes what was set aside as damaged, beside the directory and in it. Raises OSError."""
    found = [*directory.parent.glob(f"{glob.escape(directory.name)}.{DAMAGED_PREFIX}*")]
    found += directory.glob(f"{DAMAGED_PREFIX}*")
    removed = sorted(path for path in found if path.is_dir() and not path.is_symlink())
    for path in removed:
        shutil.rmtree(path)
    return removed


def is_open_to_all(directory: Path) -> bool:
    """Whether every user of this machine could put other files in the place of ours."""
    try:
        return bool(directory.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def find_own(directory: Path) -> list[Path]:
    """What holds the records of the store itself: not its mark, and not the store inside it."""
    return [path for path in _list_paths(directory) if _holds_records(path)]


def has_foreign(directory: Path) -> bool:
    """Whether a directory of ours also holds other things."""
    return any(not _is_known(path) for path in _list_paths(directory))


def _list_names(directory: Path) -> set[str] | None:
    """None if the directory does not exist."""
    try:
        names = set(os.listdir(directory))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise Foreign("it, or a folder above it, is a file") from None
    return names - _OF_THE_SYSTEM


def _list_paths(directory: Path) -> list[Path]:
    return [directory / name for name in sorted(_list_names(directory) or ())]


def _holds_records(path: Path) -> bool:
    return path.name in _DATABASE_NAMES or (
        _is_values_directory(path) and all(map(_is_values_directory, path.iterdir()))
    )


def _is_values_directory(path: Path) -> bool:
    return _VALUES_NAME.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _is_known(path: Path) -> bool:
    name = path.name
    return (
        name in (MARK_NAME, _INNER_NAME, _INDEX_NAME)
        or name.startswith(DAMAGED_PREFIX)
        or _holds_records(path)
    )


def _refuse_links(directory: Path, names: set[str]) -> None:
    """A link in place of one of our files could lead out of the directory."""
    for name in sorted(names & {MARK_NAME, *_DATABASE_NAMES}):
        if (directory / name).is_symlink():
            raise Foreign(f"its file {name!r} is a symbolic link")


def _refuse_unmarked(directory: Path, names: set[str]) -> None:
    """Only an empty directory, or the store of an earlier version with nothing beside it, is ours."""
    foreign = sorted(name for name in names if not _is_known(directory / name))
    if foreign or (names and not _is_written_by_us(directory)):
        shown = (foreign or sorted(names))[:3]
        raise Foreign(f"it holds files that are not the gateway's ({', '.join(map(ascii, shown))})")
    if _INNER_NAME in names:
        inner = directory / _INNER_NAME
        inner_names = _list_names(inner) or set()
        if MARK_NAME not in inner_names:
            _refuse_unmarked(inner, inner_names)


def _is_written_by_us(directory: Path) -> bool:
    """Whether the database, or the log that belongs to it, holds the settings that we give it."""
    return any(
        _SETTING in _read_start(directory / name, _SETTING_WITHIN_BYTES) for name in (DBNAME, f"{DBNAME}-wal")
    )


def _mark(directory: Path) -> None:
    path = directory / MARK_NAME
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
    except FileExistsError:
        found = _read_start(path, _MARK_BYTES)
        if found.startswith(_MARK):
            return
        # A crash may have left a part of the mark. An empty one is a part, too.
        if not _MARK.startswith(found):
            _refuse_mark(found)
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, _MARK)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_mark(found: bytes) -> None:
    if found.startswith(_MARK_START):
        version = found.removeprefix(_MARK_START).split(maxsplit=1)[0]
        raise Foreign(
            f"another version of the gateway wrote it (store version {version.decode(errors='replace')!a})"
        )
    raise Foreign(f"its file {MARK_NAME!r} is not the gateway's")


def _make_private(directory: Path, names: set[str]) -> None:
    """sqlite gives its log and index the mode of the database, so that must exist before sqlite makes it.

    A directory of another user keeps its mode: a volume of a container often belongs to root and to our
    group. The files in it are private nonetheless.
    """
    status = directory.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _DIRECTORY_MODE:
        directory.chmod(_DIRECTORY_MODE)
    for name in _DATABASE_NAMES & names:
        _make_file_private(directory / name)
    # Only if it is new: closing any descriptor of an open database would give up this process's locks on it
    # (https://www.sqlite.org/howtocorrupt.html, 2.2).
    with suppress(FileExistsError):
        os.close(
            os.open(directory / DBNAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
        )


def _make_file_private(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return  # sqlite removes log and index when the last connection closes.
    is_own_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if is_own_file and stat.S_IMODE(status.st_mode) != _FILE_MODE:
        path.chmod(_FILE_MODE)


def _read_start(path: Path, size: int) -> bytes:
    """Empty if it is absent, a link or not a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        raise
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
