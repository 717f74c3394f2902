"""A store that forgets everything at exit: for tests, a first try, and systems without a disk to write to.

It is bounded in bytes. The records that were not used for the longest time are dropped first.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.store.errors import StoreError, Unusable
from gateway.store.keys import find_tag
from gateway.store.leases import Leases, LocalLeases
from gateway.store.news import News, NoNews
from gateway.store.record import check_key

# A thousand long conversations (measured: about 200 KB of state each); a small container has that much.
_MAX_BYTES = 256 << 20
# Memory beside key and value: dictionary slot, two object headers, the record.
_OVERHEAD_BYTES = 300


@dataclass(frozen=True, slots=True)
class _Record:
    value: bytes
    expires_at: float
    cost_bytes: int


class MemoryStore:
    is_shared = False

    def __init__(self, *, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.time) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._clock = clock
        self._is_open = False
        self.leases: Leases = LocalLeases(self)
        self.news: News = NoNews()

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._records.clear()
        self._used_bytes = 0

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        for key in keys:
            value = self._read(key)
            if value is not None:
                return key, value
        return None

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        return [await self.read_first(keys) for keys in groups]

    async def read(self, key: str) -> bytes | None:
        return self._read(key)

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        now = self._clock()
        return sorted(
            (key, record.value)
            for key, record in self._records.items()
            if key.startswith(prefix) and record.expires_at > now
        )

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        check_key(key)
        self._forget(key)
        cost_bytes = len(key) + len(value) + _OVERHEAD_BYTES
        if not self._is_open or cost_bytes > self._max_bytes:
            return
        self._records[key] = _Record(value, self._clock() + keep_seconds, cost_bytes)
        self._used_bytes += cost_bytes
        while self._used_bytes > self._max_bytes:
            self._forget(next(iter(self._records)))

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Kept as long as this process runs."""
        if not self._is_open:
            raise Unusable("the store is closed")
        self.write(key, value, keep_seconds=keep_seconds)
        if key not in self._records:
            raise StoreError(f"a record of {len(value)} bytes is larger than the store")

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        known = self._read(key)
        if known is None:
            await self.write_durably(key, value, keep_seconds=keep_seconds)
        return value if known is None else known

    async def take(self, key: str) -> bytes | None:
        value = self._read(key)
        self._forget(key)
        return value

    async def purge(self, tag: str) -> int:
        keys = [key for key in self._records if find_tag(key) == tag]
        for key in keys:
            self._forget(key)
        return len(keys)

    def delete(self, key: str) -> None:
        check_key(key)
        self._forget(key)

    def _read(self, key: str) -> bytes | None:
        record = self._records.get(key)
        if record is None:
            return None
        if record.expires_at <= self._clock():
            self._forget(key)
            return None
        self._records.move_to_end(key)
        return record.value

    def _forget(self, key: str) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self._used_bytes -= record.cost_bytes
