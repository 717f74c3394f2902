"""Reads records from the directory of a store that another process may be using, and writes none.

For commands that look at what a gateway has stored. A store that is absent, damaged or not readable has no
records.
"""

import time
from pathlib import Path
from typing import Final

from gateway.store.errors import StoreError
from gateway.store.ownership import MARK_NAME
from gateway.store.record import parse_record
from gateway.store.volume import open_volume

_LOCK_SECONDS: Final = 2.0


def read_snapshot(directory: Path, prefix: str) -> list[tuple[str, bytes]]:
    """Key and payload of each whole record whose key begins so."""
    try:
        if not (directory / MARK_NAME).is_file():
            return []
        volume = open_volume(directory, lock_seconds=_LOCK_SECONDS)
    except (StoreError, OSError):
        return []
    try:
        found = [(key, volume.read(key, time.time())) for key in volume.list_keys(prefix)]
    except StoreError:
        return []
    finally:
        volume.close()
    payloads = [(key, parse_record(key, record)) for key, record in found if record is not None]
    return [(key, payload) for key, payload in payloads if payload is not None]
