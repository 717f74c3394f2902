"""The store: can it be written, is there space, is it damaged? Nothing of it is changed."""

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from diskcache.core import DBNAME

from gateway.doctor.finding import Diagnosis, Examined, blame, note_ok, warn
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
from gateway.store.redis_address import is_redis
from gateway.store.stores import NAMED_NAME, ORIGINALS_NAME

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
# A row of each database.
_STATE_ROW: Final = "SELECT 1 FROM record LIMIT 1"
_BLOB_ROW: Final = "SELECT 1 FROM Cache LIMIT 1"


async def check_store(examined: Examined) -> AsyncIterator[Diagnosis]:
    settings = examined.settings
    if is_redis(settings.store):
        if find_spec("redis") is None:
            yield blame("the package for Redis is not installed", "pip install 'refold[redis]'")
            return
        from gateway.doctor.store_redis import examine_redis  # it needs this package

        for finding in await examine_redis(settings):
            yield finding
    elif find_folder(settings.store) is None:
        yield note_ok("in memory: a restart forgets summaries, and clients go on without them")
    else:
        for finding in _examine_disk(settings):
            yield finding


def _examine_disk(settings: Settings) -> Iterator[Diagnosis]:
    directory, retention = find_folder(settings.store), settings.retention
    assert directory is not None
    # The directory, or the nearest one above it that exists.
    place = next(path for path in (directory, *directory.parents) if path.exists())
    refusal = _find_refusal(place)
    if refusal is not None:
        yield refusal
        return
    yield _examine_space(place, retention)
    if place != directory:
        yield note_ok(f"{directory} does not exist yet; it can be made")
        return
    reason = find_foreign(directory, list_names(directory) or set())
    if reason is not None:
        what = f"{directory} is not the gateway's, so it will not start: {reason}"
        yield blame(what, f'store: "disk:{directory}/gateway"  # a folder of its own')
        return
    yield from _examine_access(directory)
    yield from _examine_damage(directory)
    yield from _examine_bounds(directory, retention)
    # Its log is there as long as a process has it open, or if one was killed.
    if (directory / f"{STATE_NAME}-wal").exists():
        yield note_ok(f"a gateway is using {directory}")


def _find_refusal(place: Path) -> Diagnosis | None:
    """Why nothing can be written there; None if something can. What is written has no name and is gone."""
    if not place.is_dir():
        return blame(f"{place} is not a folder", 'store: "disk:PATH"  # name a folder')
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
        return blame(f"{place} cannot be written by user {user}: {reason}", fix)
    what = f"{place} takes no {_PROBE_BYTES >> 20} MB: {reason}"
    if "read-only" in reason.lower():
        return blame(what, 'store: "disk:/var/lib/gateway"  # a folder that can be written')
    return blame(what, f"free space or raise the quota there (df -h {place}; quota), or name another store")


def _examine_space(place: Path, retention: Retention) -> Diagnosis:
    free = shutil.disk_usage(place).free
    wanted = retention.originals_bytes + retention.search_bytes + retention.named_bytes + _STATE_BYTES
    if free < _LEAST_BYTES:
        return blame(f"{free >> 20:,} MB are free at {place}", f"free space there: df -h {place}")
    if free < wanted:
        fix = f"free space there, or lower retention.originals_bytes: {max(1, free // 4)}"
        return warn(f"{free >> 20:,} MB are free at {place}, it may take {wanted >> 20:,} MB", fix)
    return note_ok(f"{place} can be written; {free >> 30:,} GB are free")


def _examine_access(directory: Path) -> Iterator[Diagnosis]:
    status = directory.stat()
    if status.st_uid != os.geteuid():
        what = f"{directory} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        yield warn(what, f"run the gateway as that user, or: chown -R {os.geteuid()} {directory}")
    elif stat.S_IMODE(status.st_mode) & 0o077:
        yield warn(f"other users of this machine can read {directory}", f"chmod 700 {directory}")


def _examine_damage(directory: Path) -> Iterator[Diagnosis]:
    blobs = directory / BLOBS_NAME
    databases = {
        directory / STATE_NAME: _STATE_ROW,
        blobs / ORIGINALS_NAME / DBNAME: _BLOB_ROW,
        blobs / NAMED_NAME / DBNAME: _BLOB_ROW,
    }
    for database, find_row in databases.items():
        if database.is_file() and (damage := _find_damage(database, find_row)) is not None:
            what = f"{database} is damaged ({damage}): the next start moves it aside and begins anew"
            fix = f"stop the gateway, then restore {database.parent} from a backup or delete it"
            yield blame(what, fix)
    for path in find_set_aside(directory):
        yield warn(f"{path} was set aside as damaged", f"rm -r {path}  # when it is no longer needed")
    paths = " ".join(map(str, find_earlier(directory)))
    if paths:
        what = f"records of an earlier version are not used: {paths}"
        yield warn(what, f"rm -r {paths}  # when they are no longer needed")


def _find_damage(database: Path, find_row: str) -> str | None:
    """None if it is whole, as far as a check within some seconds shows, or busy."""
    ends_at = time.monotonic() + _CHECK_SECONDS
    # Without a log beside it the database is opened so that sqlite makes none.
    has_log = database.with_name(f"{database.name}-wal").exists()
    address = f"file:{quote(str(database))}?mode=ro{'' if has_log else '&immutable=1'}"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=2)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            connection.execute(find_row).fetchone()
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
            yield warn(what, f"retention: {{{setting}: {2 * most}}}")
