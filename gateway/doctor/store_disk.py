"""Can the store on disk be written, is there space, is it damaged? Nothing of it is changed."""

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from diskcache.core import DBNAME

from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.settings import Retention, Settings
from gateway.store.address import find_folder
from gateway.store.folder import (
    BLOBS_NAME,
    STATE_NAME,
    find_earlier,
    find_foreign,
    find_set_aside,
    list_names,
)
from gateway.store.stores import NAMED_NAME, ORIGINALS_NAME

_SUBJECT: Final = "store"
# What is written to see whether something can be: more than a block, so that a quota or a full disk shows.
_PROBE_BYTES: Final = 1 << 20
# Beside what originals, their index and named responses may take, for the state of conversations.
_STATE_BYTES: Final = 256 << 20
_LEAST_BYTES: Final = 64 << 20
# A bounded store is trimmed to its bound, so it is as good as full from here on.
_FULL: Final = 0.95
# A large database takes longer; then only a part of it is checked.
_CHECK_SECONDS: Final = 10.0
_STEPS: Final = 100_000
_FIND: Final = {"record": "SELECT 1 FROM record LIMIT 1", "Cache": "SELECT 1 FROM Cache LIMIT 1"}


def examine_disk(settings: Settings) -> Iterator[Diagnosis]:
    """For `disk:PATH`."""
    directory = find_folder(settings.store)
    assert directory is not None
    place = _find_existing(directory)
    refusal = _find_refusal(place)
    if refusal is not None:
        yield refusal
        return
    yield from _examine_space(place, settings.retention)
    if place != directory:
        yield note_ok(_SUBJECT, f"{directory} does not exist yet; it can be made")
        return
    foreign = _find_foreign(directory)
    if foreign is not None:
        yield foreign
        return
    yield from _examine_access(directory)
    yield from _examine_damage(directory)
    yield from _examine_bounds(directory, settings.retention)
    if _is_in_use(directory):
        yield note_ok(_SUBJECT, f"a gateway is using {directory}")


def _is_in_use(directory: Path) -> bool:
    """Its log is there as long as a process has it open, or if one was killed."""
    return (directory / f"{STATE_NAME}-wal").exists()


def _find_existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def _find_refusal(place: Path) -> Diagnosis | None:
    """Why nothing can be written there; None if something can. What is written has no name and is gone."""
    if not place.is_dir():
        return blame(_SUBJECT, f"{place} is not a folder", 'store: "disk:PATH"  # name a folder')
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _explain_refusal(place, error)
    return None


def _explain_refusal(place: Path, error: OSError) -> Diagnosis:
    reason = error.strerror or type(error).__name__
    if isinstance(error, PermissionError):
        user = os.geteuid()
        fix = f"chmod u+rwx {place}" if place.stat().st_uid == user else f"chown -R {user} {place}"
        return blame(_SUBJECT, f"{place} cannot be written by user {user}: {reason}", fix)
    what = f"{place} takes no {_PROBE_BYTES >> 20} MB: {reason}"
    if "read-only" in reason.lower():
        return blame(_SUBJECT, what, 'store: "disk:/var/lib/gateway"  # a folder that can be written')
    return blame(
        _SUBJECT, what, f"free space or raise the quota there (df -h {place}; quota), or name another store"
    )


def _examine_space(place: Path, retention: Retention) -> Iterator[Diagnosis]:
    free = shutil.disk_usage(place).free
    wanted = retention.originals_bytes + retention.search_bytes + retention.named_bytes + _STATE_BYTES
    if free < _LEAST_BYTES:
        yield blame(_SUBJECT, f"{free >> 20:,} MB are free at {place}", f"free space there: df -h {place}")
    elif free < wanted:
        fix = f"free space there, or lower retention.originals_bytes: {max(1, free // 4)}"
        yield warn(_SUBJECT, f"{free >> 20:,} MB are free at {place}, it may take {wanted >> 20:,} MB", fix)
    else:
        yield note_ok(_SUBJECT, f"{place} can be written; {free >> 30:,} GB are free")


def _find_foreign(directory: Path) -> Diagnosis | None:
    reason = find_foreign(directory, list_names(directory) or set())
    if reason is None:
        return None
    what = f"{directory} is not the gateway's, so it will not start: {reason}"
    return blame(_SUBJECT, what, f'store: "disk:{directory}/gateway"  # a folder of its own')


def _examine_access(directory: Path) -> Iterator[Diagnosis]:
    status = directory.stat()
    if status.st_uid != os.geteuid():
        what = f"{directory} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        yield warn(_SUBJECT, what, f"run the gateway as that user, or: chown -R {os.geteuid()} {directory}")
    elif stat.S_IMODE(status.st_mode) & 0o077:
        yield warn(_SUBJECT, f"other users of this machine can read {directory}", f"chmod 700 {directory}")


def _examine_damage(directory: Path) -> Iterator[Diagnosis]:
    blobs = directory / BLOBS_NAME
    tables = {
        directory / STATE_NAME: "record",
        blobs / ORIGINALS_NAME / DBNAME: "Cache",
        blobs / NAMED_NAME / DBNAME: "Cache",
    }
    for database, table in tables.items():
        if database.is_file() and (damage := _find_damage(database, table)) is not None:
            what = f"{database} is damaged ({damage}): the next start moves it aside and begins anew"
            yield blame(
                _SUBJECT,
                what,
                f"stop the gateway, then restore {database.parent} from a backup or delete it",
            )
    for path in find_set_aside(directory):
        yield warn(
            _SUBJECT, f"{path} was set aside as damaged", f"rm -r {path}  # when it is no longer needed"
        )
    earlier = find_earlier(directory)
    if earlier:
        paths = " ".join(map(str, earlier))
        what = f"records of an earlier version are not used: {paths}"
        yield warn(_SUBJECT, what, f"rm -r {paths}  # when they are no longer needed")


def _find_damage(database: Path, table: str) -> str | None:
    """None if it is whole, as far as a check within some seconds shows, or busy."""
    ends_at = time.monotonic() + _CHECK_SECONDS
    # Without a log beside it the database is opened so that sqlite makes none.
    has_log = database.with_name(f"{database.name}-wal").exists()
    address = f"file:{quote(str(database))}?mode=ro{'' if has_log else '&immutable=1'}"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=2)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            connection.execute(_FIND[table]).fetchone()
    except sqlite3.OperationalError as error:
        return "its tables are missing" if "no such table" in str(error) else None
    except sqlite3.DatabaseError:
        return "it is not a database, or a part of it is"
    return None if result == "ok" else "its pages do not fit together"


def _examine_bounds(directory: Path, retention: Retention) -> Iterator[Diagnosis]:
    bounds = {
        "originals_bytes": (ORIGINALS_NAME, retention.originals_bytes),
        "named_bytes": (NAMED_NAME, retention.named_bytes),
    }
    for setting, (name, most) in bounds.items():
        database = directory / BLOBS_NAME / name / DBNAME
        size = database.stat().st_size if database.is_file() else 0
        if size >= _FULL * most:
            what = f"{database.parent} is full ({size >> 20:,} MB): the oldest records go before their time"
            yield warn(_SUBJECT, what, f"retention: {{{setting}: {2 * most}}}")
