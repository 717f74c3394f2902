"""Gives records another name, in the directory of a store that this process has not opened yet.

Knows nothing of what the records hold. A record is written under its new name and deleted under its old one
in one transaction, some hundreds at a time. After a crash the next call does the rest.
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from diskcache.core import DBNAME

from gateway.store.keys import find_tag
from gateway.store.ownership import MARK_NAME
from gateway.store.pending import Op
from gateway.store.record import parse_record
from gateway.store.volume import Volume, only_process, open_volume

_STEP_BYTES: Final = 8 << 20
_STEP_RECORDS: Final = 500
_LOCK_SECONDS: Final = 10.0
# One step in the index of the keys for each kind: "{" sorts behind every name without a tag.
_FIND: Final = "SELECT 1 FROM Cache WHERE key >= ? AND key < ? LIMIT 1"

# The names and payloads that take the place of a record; empty if it is dropped.
Rename = Callable[[str, bytes], Sequence[tuple[str, bytes]]]


def has_untagged(directory: Path, kinds: Collection[str]) -> bool:
    """Whether a store may hold records of these kinds without a tag. Quick, however many records it has."""
    database = directory / DBNAME
    if not database.is_file():
        return False
    if database.is_symlink() or not (directory / MARK_NAME).is_file():
        # Whether it is ours is not known yet.
        return True
    try:
        with closing(_connect(database)) as connection:
            return any(connection.execute(_FIND, (f"{kind}:", f"{kind}:{{")).fetchone() for kind in kinds)
    except sqlite3.Error:
        # Opening the store will say what is wrong with it.
        return False


def rename_untagged(directory: Path, rename: Rename) -> int:
    """The number of records that had no tag. Raises StoreError; what was renamed before stays so."""
    with only_process(directory):
        volume = open_volume(directory, lock_seconds=_LOCK_SECONDS)
        try:
            return sum(_rename_some(volume, keys, rename) for keys in _list_steps(volume))
        finally:
            volume.close()


def _list_steps(volume: Volume) -> Iterator[Sequence[str]]:
    """What was written first comes first, as a bounded store drops the oldest."""
    keys = [key for key in volume.list_in_order() if find_tag(key) is None]
    for start in range(0, len(keys), _STEP_RECORDS):
        yield keys[start : start + _STEP_RECORDS]


def _rename_some(volume: Volume, keys: Sequence[str], rename: Rename) -> int:
    batch: dict[str, Op] = {}
    size_bytes, now = 0, time.time()
    for key in keys:
        record, expires_at = volume.read_expiring(key, now)
        payload = parse_record(key, record) if record is not None else None
        for name, renamed in rename(key, payload) if payload is not None else ():
            batch[name] = Op(renamed, expires_at)
            size_bytes += len(renamed)
        batch[key] = Op(None)
        if size_bytes >= _STEP_BYTES:
            volume.write(batch)
            batch, size_bytes = {}, 0
    volume.write(batch)
    return len(keys)


def _connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, timeout=_LOCK_SECONDS)
