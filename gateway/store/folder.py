"""Whose the folder of a store is. What is not ours is refused and stays as it is. Ours is private.

An absent or empty folder becomes ours. The records of an earlier version are set aside: they stay beside ours
until a tenant is purged, because they hold texts.
"""

import errno
import os
import re
import shlex
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.store.interface import StoreRefused

STATE_NAME: Final = "state.db"
# Removals and named responses, see `blobs`.
BLOBS_NAME: Final = "blobs"
# Beside the name of a database: what was set aside.
DAMAGED: Final = ".damaged-"
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600

# Of the databases that may lie in a folder of ours, with what sqlite and we keep beside them.
_DATABASES: Final = re.compile(r"(state|history|search)\.db([-.].*)?")
_FOLDERS: Final = frozenset({BLOBS_NAME, "search"})
# Versions until November 2026 kept their records in these.
_EARLIER: Final = re.compile(
    r"cache\.db(-wal|-shm|-journal)?|gateway-store|originals|named|damaged-.*|[0-9a-f]{2}"
)
_EARLIER_MARK: Final = b"context-window-gateway store "
# They opened diskcache with this bound, and no other program does. The bytes show it without opening the
# database, which could change it: in its first pages or, before its first checkpoint, of its log.
_EARLIER_SETTING: Final = b"size_limit" + (1 << 60).to_bytes(8, "big")
_EARLIER_WITHIN_BYTES: Final = 1 << 20
# A new ext4 volume holds it, so it is not empty.
_OF_THE_SYSTEM: Final = frozenset({"lost+found"})
_PROBE_BYTES: Final = 1 << 16
# A quota, or a limit of this process for the size of files, is a full disk as well.
FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def choose_folder(path: str) -> Path:
    """`~` and `$VAR` are expanded. A link is followed once, here, so that the store stays where it is."""
    return Path(os.path.realpath(os.path.expandvars(os.path.expanduser(path))))


def claim_folder(folder: Path) -> None:
    """Makes a folder that is absent, and makes sure that one that exists is ours.

    Raises StoreRefused before anything has been changed, or OSError.
    """
    names = list_names(folder)
    if names is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
            sync_folder(folder.parent)
        names = set()
    refusal = find_foreign(folder, names)
    if refusal is not None:
        raise refuse(folder, f"{refusal}; nothing in it was changed")
    # What somebody has made read-only stays so.
    if not os.access(folder, os.W_OK | os.X_OK):
        probe(folder)
    _make_private(folder, names)


def refuse(folder: Path, reason: str) -> StoreRefused:
    return StoreRefused(f"store {folder} is not used: {reason}: name an empty or a new folder")


def list_names(folder: Path) -> set[str] | None:
    """None if the folder does not exist. Raises StoreRefused if it is a file, or OSError."""
    try:
        return set(os.listdir(folder)) - _OF_THE_SYSTEM
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        reason = "it, or a folder above it, is a file; nothing was changed"
        raise refuse(folder, reason) from None


def find_foreign(folder: Path, names: set[str]) -> str | None:
    """Why a folder is not ours; None if it is. Whose `state.db` is, its header says."""
    for name in sorted(names):
        if _DATABASES.fullmatch(name) and (folder / name).is_symlink():
            return f"its file {name!r} is a symbolic link"
    if STATE_NAME in names or _is_marked(folder):
        return None
    foreign = sorted(name for name in names if not _is_known(name))
    if not foreign and "cache.db" in names and not _is_written_by_us(folder):
        foreign = ["cache.db"]
    if not foreign:
        return None
    return f"it holds files that are not the gateway's ({', '.join(map(ascii, foreign[:3]))})"


def find_earlier(folder: Path) -> list[Path]:
    """What an earlier version has left, if it is ours."""
    names = list_names(folder) or set()
    if not (_is_marked(folder) or ("cache.db" in names and _is_written_by_us(folder))):
        return []
    beside = folder.parent.glob(f"{folder.name}.damaged-*")
    return [folder / name for name in sorted(names) if _EARLIER.fullmatch(name)] + sorted(beside)


def find_set_aside(folder: Path) -> list[Path]:
    """Databases of ours that were damaged, or written by another version."""
    beside = folder.glob(f"{STATE_NAME}{DAMAGED}*")
    return sorted([*beside, *folder.glob(f"{BLOBS_NAME}/*{DAMAGED}*")])


def remove_set_aside(folder: Path) -> None:
    """It cannot be searched, so it goes as a whole. Raises OSError."""
    for path in (*find_set_aside(folder), *find_earlier(folder)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def probe(folder: Path) -> None:
    """Raises OSError if nothing can be written there. What is written has no name and is gone."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in FULL_ERRORS


def describe_refusal(folder: Path, error: Exception) -> str:
    """Why a store cannot be opened, and what to do about it, for the operator."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    other = 'name another folder (store: "disk:PATH")'
    if is_full(error):
        return f"store {folder} cannot be written: {reason}; make room on this disk, or {other}"
    user, path = os.geteuid(), shlex.quote(str(folder))
    # Not `Path.exists`, which raises for a folder that this user may not even look at.
    is_there = os.path.exists(folder)
    command = f"chown -R {user} {path}" if is_there else f"mkdir -p {path} && chown {user} {path}"
    return (
        f"store {folder} cannot be used by user {user}: {reason}; let this user write there "
        f"({command}; for a container, chown the mounted folder on the host), {other}, or keep state only "
        'until the next restart (store: "memory:")'
    )


def sync_folder(folder: Path) -> None:
    """What was made or renamed in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_known(name: str) -> bool:
    return name in _FOLDERS or any(form.fullmatch(name) for form in (_DATABASES, _EARLIER))


def _is_marked(folder: Path) -> bool:
    return _read_start(folder / "gateway-store", 1_024).startswith(_EARLIER_MARK)


def _is_written_by_us(folder: Path) -> bool:
    starts = (_read_start(folder / name, _EARLIER_WITHIN_BYTES) for name in ("cache.db", "cache.db-wal"))
    return any(_EARLIER_SETTING in start for start in starts)


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


def _make_private(folder: Path, names: set[str]) -> None:
    """A folder of another user keeps its mode: a volume of a container often belongs to root and to our
    group. The files in it are private nonetheless.
    """
    status = folder.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != FOLDER_MODE:
        folder.chmod(FOLDER_MODE)
    for name in names:
        # Not by opening it: closing any descriptor of an open database gives up this process's locks on it
        # (https://www.sqlite.org/howtocorrupt.html, 2.2).
        if name.startswith(STATE_NAME):
            with suppress(FileNotFoundError):
                _make_file_private(folder / name)


def _make_file_private(path: Path) -> None:
    status = path.lstat()
    is_own_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if is_own_file and stat.S_IMODE(status.st_mode) != FILE_MODE:
        path.chmod(FILE_MODE)
