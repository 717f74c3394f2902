"""Records of one kind: as JSON in the store under `prefix:key`, and decoded in memory in front of it.

A record that cannot be parsed, names another owner, or names another key than it is stored under counts as
absent.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, NamedTuple

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.records import R, parse_record, render_record
from gateway.store import Store

# What a record takes in memory beside its texts.
RECORD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600
# The store looks up so many keys at a time, in a few milliseconds. A conversation of 100,000 messages has as
# many keys, and looking all of them up at once would keep other conversations from the store for seconds.
_LOOKUP_KEYS: Final = 500
# A record in use is written again once a day, or it would expire.
_REFRESH_SECONDS: Final = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What every repository is built on.

    keep_seconds: a record that is not written again for so long is dropped. max_bytes: of memory, for each
    kind of record. clock: monotonic.
    """

    store: Store
    keep_seconds: float
    max_bytes: int
    clock: Callable[[], float] = time.monotonic

    def is_old(self, written_seconds: float) -> bool:
        """Whether a record that is still in use must be written again."""
        return self.clock() - written_seconds >= min(_REFRESH_SECONDS, self.keep_seconds / 4)


class RecordStore(Generic[R]):
    """Records that are not held in memory, or that their repository holds in memory itself."""

    def __init__(self, kind: type[R], prefix: str, storage: Storage) -> None:
        self._storage = storage
        self._kind = kind
        self._prefix = prefix

    async def load(self, owner: str, key: str) -> R | None:
        data = await self._storage.store.read(self._name(key))
        return self._parse(owner, key, data) if data is not None else None

    async def load_first(self, owner: str, keys: Iterable[str]) -> tuple[str, R] | None:
        """The first key that exists, and its record."""
        left = iter(keys)
        while some := list(islice(left, _LOOKUP_KEYS)):
            names = {self._name(key): key for key in some}
            found = await self._storage.store.read_first(list(names))
            if found is not None:
                key = names[found[0]]
                record = self._parse(owner, key, found[1])
                return (key, record) if record is not None else None
        return None

    def save(self, owner: str, key: str, record: R) -> None:
        """Queued for the store, which writes it a moment later."""
        data = render_record(owner, record)
        self._storage.store.write(self._name(key), data, keep_seconds=self._storage.keep_seconds)

    async def save_durably(self, owner: str, key: str, record: R) -> None:
        """Durable when this returns. Raises StoreError."""
        data = render_record(owner, record)
        await self._storage.store.write_durably(
            self._name(key), data, keep_seconds=self._storage.keep_seconds
        )

    def delete(self, key: str) -> None:
        self._storage.store.delete(self._name(key))

    def _name(self, key: str) -> str:
        return f"{self._prefix}:{key}"

    def _parse(self, owner: str, key: str, data: bytes) -> R | None:
        record = parse_record(self._kind, owner, data)
        return record if getattr(record, "key", key) == key else None


class _Held(NamedTuple, Generic[R]):
    """written_seconds: None for a record that was loaded; its age is not known."""

    record: R
    written_seconds: float | None


class RecordCache(Generic[R]):
    """The same with memory in front. weigh: bytes that a record takes in memory."""

    def __init__(
        self, kind: type[R], prefix: str, storage: Storage, weigh: Callable[[R], int] | None = None
    ) -> None:
        self._records = RecordStore(kind, prefix, storage)
        self._storage = storage
        self._weigh = weigh or _weigh_plain
        self._held: Lru[str, _Held[R]] = Lru(storage.max_bytes)

    @property
    def evictions(self) -> int:
        """How often memory has lost a record that the store may still have."""
        return self._held.evictions

    @property
    def size_bytes(self) -> int:
        return self._held.size_bytes

    def find(self, key: str) -> R | None:
        """In memory alone."""
        held = self._held.get(key)
        return held.record if held is not None else None

    def list_all(self) -> list[R]:
        """Everything in memory."""
        return [held.record for held in self._held.values()]

    async def load(self, owner: str, key: str) -> R | None:
        """From memory without suspending, else from the store."""
        known = self.find(key)
        if known is not None:
            return known
        return self._hold_loaded(key, await self._records.load(owner, key))

    async def load_first(self, owner: str, keys: Iterable[str]) -> None:
        """Brings the record of the first key that the store has into memory."""
        found = await self._records.load_first(owner, keys)
        if found is not None:
            self._hold_loaded(*found)

    def hold(self, key: str, record: R) -> None:
        """In memory alone."""
        self._hold(key, record, None)

    def save(self, owner: str, key: str, record: R) -> None:
        """In memory at once, in the store a moment later."""
        self._hold(key, record, self._storage.clock())
        self._records.save(owner, key, record)

    async def save_durably(self, owner: str, key: str, record: R) -> None:
        """Durable when this returns, and only then in memory. Raises StoreError."""
        await self._records.save_durably(owner, key, record)
        self._hold(key, record, self._storage.clock())

    async def save_held_durably(self, owner: str, key: str, record: R) -> None:
        """Durable when this returns, also if it was in memory alone. Raises StoreError."""
        held = self._held.peek(key)
        if held is None or held.written_seconds is None:
            await self.save_durably(owner, key, record)

    def refresh(self, owner: str, key: str, record: R) -> None:
        """Writes a record that is in use again, once a day."""
        held = self._held.peek(key)
        if held is None or held.written_seconds is None or self._storage.is_old(held.written_seconds):
            self.save(owner, key, record)

    def _hold_loaded(self, key: str, loaded: R | None) -> R | None:
        """A newer record may have been saved while the store was asked; it wins."""
        known = self.find(key)
        if known is None and loaded is not None:
            self.hold(key, loaded)
        return known or loaded

    def _hold(self, key: str, record: R, written_seconds: float | None) -> None:
        self._held.put(key, _Held(record, written_seconds), self._weigh(record))


def _weigh_plain(_: object) -> int:
    return RECORD_WEIGHT_BYTES
