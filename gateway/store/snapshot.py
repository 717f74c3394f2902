"""Reads records from the folder of a store that another process may be using, and changes nothing.

For commands that look at what a gateway has stored. A store that is absent, damaged or not readable has no
records.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway.store.folder import STATE_NAME
from gateway.store.interface import Key, ListedRecord, unseal

_LOCK_SECONDS: Final = 2.0
_SELECT: Final = "SELECT tag, name, grp, value FROM living WHERE kind = ? AND expires > ?"


def read_snapshot(folder: Path, kind: str) -> list[ListedRecord]:
    """All of a kind, of all owners."""
    address = f"file:{quote(str(folder / STATE_NAME))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_LOCK_SECONDS)) as connection:
            rows = connection.execute(_SELECT, (kind, time.time())).fetchall()
    except sqlite3.Error:
        return []
    found = []
    for tag, name, group, sealed in rows:
        value = unseal(key := Key(tag, kind, name), sealed)
        if value is not None:
            found.append(ListedRecord(key, group, value))
    return found
