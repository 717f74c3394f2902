"""Looks records up: first what is pending, then the database. Runs in one thread of its own.

Writes nothing; a damaged volume is reported, and whatever was asked for counts as absent.
"""

import json
import logging
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import takewhile

from gateway.store.fault import Damaged, StoreError, mapped_faults
from gateway.store.frame import read_frame
from gateway.store.key import choose_end
from gateway.store.pending import Pending
from gateway.store.volume import Volume, connect
from gateway.store.writer import Writer

_log = logging.getLogger(__name__)

# CROSS JOIN: sqlite keeps this nesting, so rows come lazily and in the order of the keys asked for, and the
# statement is left at the first whole one. One point look-up per key otherwise; no text is made from keys.
_FIND_FIRST = (
    "SELECT asked.value, mode, filename, Cache.value FROM json_each(?) AS asked CROSS JOIN Cache"
    " ON Cache.key = asked.value AND raw = 1 WHERE expire_time > ?"
)
_SCAN = (
    "SELECT key, mode, filename, value FROM Cache"
    " WHERE key >= ? AND key < ? AND raw = 1 AND expire_time > ? ORDER BY key"
)
_Row = tuple[str, object, object, object]


class Reader:
    """Every method belongs to the reader thread."""

    def __init__(self, writer: Writer, pending: Pending, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._pending = pending
        self._clock = clock
        self._volume: Volume | None = None
        self._connection: sqlite3.Connection | None = None
        self._said: set[str] = set()

    def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        """A queued operation hides what the disk holds, be it a delete or expired."""
        now = self._clock()
        queued = self._pending.find(keys)
        values = {key: value for key, op in queued.items() if (value := op.read(now)) is not None}
        asked = [key for key in takewhile(lambda key: key not in values, keys) if key not in queued]
        with closing(self._records(_FIND_FIRST, (json.dumps(asked), now))) as records:
            found = next(records, None) if asked else None
        if found is not None:
            return found
        return next(((key, values[key]) for key in keys if key in values), None)

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        now = self._clock()
        queued = self._pending.find_prefix(prefix)
        values = dict(self._records(_SCAN, (prefix, choose_end(prefix), now)))
        for key, op in queued.items():
            values.pop(key, None)
            value = op.read(now)
            if value is not None:
                values[key] = value
        return sorted(values.items())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._volume = None

    def _records(
        self, query: str, parameters: tuple[object, ...]
    ) -> Generator[tuple[str, bytes], None, None]:
        """Whole records only. Ends early where the database fails."""
        try:
            with mapped_faults():
                yield from self._rows(query, parameters)
        except Damaged:
            if self._volume is not None:
                self._writer.report(self._volume)
        except StoreError as fault:
            self._warn("a read failed", str(fault))

    def _rows(self, query: str, parameters: tuple[object, ...]) -> Generator[tuple[str, bytes], None, None]:
        connection = self._connect()
        if connection is None:
            return
        # Closing ends the read transaction, which would keep the write-ahead log from shrinking.
        with closing(connection.execute(query, parameters)) as rows:
            for row in rows:
                payload = self._read_payload(connection, row)
                if payload is not None:
                    yield row[0], payload

    def _read_payload(self, connection: sqlite3.Connection, row: _Row) -> bytes | None:
        key, record = row[0], self._fetch(row)
        if record is None:
            # The file of a large value goes when its row is replaced: look at the new row, once.
            again = connection.execute(_FIND_FIRST, (json.dumps([key]), self._clock())).fetchone()
            record = None if again is None else self._fetch(again)
        payload = None if record is None else read_frame(key, record)
        if payload is None:
            self._warn("a damaged record counts as absent", key.partition(":")[0])
        return payload

    def _fetch(self, row: _Row) -> bytes | None:
        if self._volume is None:
            return None
        try:
            return self._volume.disk.fetch(*row[1:], read=False)
        except (OSError, ValueError):
            return None

    def _connect(self) -> sqlite3.Connection | None:
        """To the volume now in use; None while there is none."""
        volume = self._writer.volume
        if volume is not self._volume:
            self.close()
        if volume is None:
            return None
        if not volume.is_current():
            # Another process set it aside; the writer moves on to the new one.
            self._writer.report(volume)
        if self._connection is None:
            self._volume = volume
            self._connection = connect(volume.database)
        return self._connection

    def _warn(self, text: str, detail: str) -> None:
        if text not in self._said:
            _log.warning("store: %s (%s); said once", text, detail)
        self._said.add(text)
