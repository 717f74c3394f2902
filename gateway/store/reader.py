"""Looks records up: first among the pending operations, then in the volume. Runs in one thread of its own.

Writes nothing. It reports a damaged volume to the writer, and records that it cannot read count as absent.
"""

import logging
from collections.abc import Callable, Sequence

from gateway.store.errors import Damaged, StoreError
from gateway.store.keys import find_tag
from gateway.store.pending import Pending
from gateway.store.record import parse_record
from gateway.store.volume import Volume
from gateway.store.writer import Writer

_log = logging.getLogger(__name__)


class Reader:
    """Every method belongs to the reader thread."""

    def __init__(self, writer: Writer, pending: Pending, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._pending = pending
        self._clock = clock
        # None if there is none, and after an error until the next call.
        self._volume: Volume | None = None
        self._logged: set[str] = set()

    def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        """A pending operation hides what the volume holds, even if it deletes or has expired."""
        now, pending = self._clock(), self._pending.find(keys)
        self._attach()
        for key in keys:
            op = pending.get(key)
            value = self._read(key, now) if op is None else op.read(now)
            if value is not None:
                return key, value
        return None

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        now, pending = self._clock(), self._pending.find_prefix(prefix)
        self._attach()
        found = {key: self._read(key, now) for key in self._list_keys(prefix) if key not in pending}
        found |= {key: op.read(now) for key, op in pending.items()}
        return sorted((key, value) for key, value in found.items() if value is not None)

    def list_tagged(self, tag: str) -> list[str]:
        """The keys of every record with this tag."""
        self._attach()
        keys = {*self._list_keys(""), *self._pending.find_prefix("")}
        return sorted(key for key in keys if find_tag(key) == tag)

    def close(self) -> None:
        if self._volume is not None:
            self._volume.close()
        self._volume = None

    def _attach(self) -> None:
        """To the volume that is in use now."""
        volume = self._writer.volume
        if volume is not self._volume:
            self.close()
            self._volume = volume
        if volume is not None and not volume.is_current():
            # Another process moved it away; the writer opens the new one.
            self._writer.report(volume)

    def _list_keys(self, prefix: str) -> list[str]:
        if self._volume is None:
            return []
        try:
            return self._volume.list_keys(prefix)
        except StoreError as error:
            self._detach(self._volume, error)
            return []

    def _read(self, key: str, now: float) -> bytes | None:
        if self._volume is None:
            return None
        try:
            record = self._volume.read(key, now)
        except StoreError as error:
            self._detach(self._volume, error)
            return None
        if record is None:
            return None
        payload = parse_record(key, record)
        if payload is None:
            self._warn("a damaged record counts as absent", key.partition(":")[0])
        return payload

    def _detach(self, volume: Volume, error: StoreError) -> None:
        self.close()
        if isinstance(error, Damaged):
            self._writer.report(volume)
        else:
            self._warn("a read failed", str(error))

    def _warn(self, text: str, detail: str) -> None:
        if text not in self._logged:
            _log.warning("store: %s (%s); further cases are not logged", text, detail)
        self._logged.add(text)
