"""Records of one kind: as JSON in the store under `prefix:key`, and decoded in memory in front of it.

A record that cannot be parsed, names another owner, or names another key than it is stored under counts as
absent.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.records import R, parse_record, render_record
from gateway.state.trip import Stored, Trip
from gateway.store import Store, StoreError
from gateway.store.keys import make_key, make_tag
from gateway.store.leases import Lease

# What a record takes in memory beside its texts.
RECORD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600
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

    @property
    def generation(self) -> int:
        """What was written or read in an earlier generation may be gone from the store."""
        return self.store.news.generation


class RecordStore(Generic[R]):
    """Records that are not held in memory, or that their repository holds in memory itself."""

    def __init__(self, kind: type[R], prefix: str, storage: Storage) -> None:
        self._storage = storage
        self._kind = kind
        self._prefix = prefix

    async def load(self, owner: str, key: str) -> R | None:
        data = await self._storage.store.read(self.name(owner, key))
        return self._parse(owner, key, data) if data is not None else None

    async def load_all(self, owner: str, keys: Sequence[str]) -> dict[str, R]:
        """Those of the keys that the store has, in one round trip. One is parsed at a time, because each may
        be large.
        """
        names = [(self.name(owner, key),) for key in keys]
        found: dict[str, R] = {}
        for stored in await self._storage.store.read_groups(names) if names else ():
            record = self.read_stored(owner, stored) if stored is not None else None
            if record is not None:
                found[record[0]] = record[1]
            await asyncio.sleep(0)
        return found

    async def load_first(self, owner: str, keys: Iterable[str]) -> tuple[str, R] | None:
        """The first key that exists, and its record."""
        found: list[tuple[str, R]] = []
        trip = Trip(self._storage.store)
        trip.ask(self, owner, keys, lambda key, record: found.append((key, record)) if record else None)
        await trip.run()
        return found[0] if found else None

    def save(self, owner: str, key: str, record: R, keep_seconds: float | None = None) -> None:
        """Queued for the store, which writes it a moment later."""
        data = render_record(owner, record)
        seconds = self._storage.keep_seconds if keep_seconds is None else keep_seconds
        self._storage.store.write(self.name(owner, key), data, keep_seconds=seconds)

    async def save_durably(self, owner: str, key: str, record: R) -> None:
        """Durable when this returns. Raises StoreError."""
        data = render_record(owner, record)
        await self._storage.store.write_durably(
            self.name(owner, key), data, keep_seconds=self._storage.keep_seconds
        )

    async def save_leased(self, lease: Lease, owner: str, key: str, record: R) -> bool:
        """Durable when this returns True; False if the lease was lost. Raises StoreError."""
        name, data = self.name(owner, key), render_record(owner, record)
        return await self._storage.store.leases.write(
            lease, name, data, keep_seconds=self._storage.keep_seconds
        )

    async def save_new(self, owner: str, key: str, record: R) -> R:
        """What the key stands for from now on: the record, or what was stored before. Raises StoreError.

        If the store cannot be reached, the record is kept until then as one of a process alone.
        """
        name, data = self.name(owner, key), render_record(owner, record)
        try:
            stored = await self._storage.store.write_new(name, data, keep_seconds=self._storage.keep_seconds)
        except StoreError:
            await self.save_leased(Lease(name, 0), owner, key, record)
            return record
        found = self._parse(owner, key, stored) if stored != data else record
        return found if found is not None else record

    async def take(self, owner: str, key: str) -> R | None:
        """The record, which is deleted. Of several processes one gets it."""
        data = await self._storage.store.take(self.name(owner, key))
        return self._parse(owner, key, data) if data is not None else None

    def delete(self, owner: str, key: str) -> None:
        self._storage.store.delete(self.name(owner, key))

    def name(self, owner: str, key: str) -> str:
        """Under which the store has it."""
        return make_key(make_tag(owner), self._prefix, key)

    def read_stored(self, owner: str, stored: Stored) -> tuple[str, R] | None:
        """A record by the name that the store has it under."""
        key = stored[0].partition("}")[2]
        record = self._parse(owner, key, stored[1])
        return (key, record) if record is not None else None

    def _parse(self, owner: str, key: str, data: bytes) -> R | None:
        record = parse_record(self._kind, owner, data)
        return record if getattr(record, "key", key) == key else None


class _Held(NamedTuple, Generic[R]):
    """A record in memory."""

    tag: str
    record: R
    # None for a record that was loaded, because its age is not known, and for one in memory alone.
    written_seconds: float | None
    # In which generation the store was last known to have it; None if it never was.
    generation: int | None
    # Another process has changed it.
    is_outdated: bool = False


class RecordCache(Generic[R]):
    """The same with memory in front."""

    def __init__(
        self,
        kind: type[R],
        prefix: str,
        storage: Storage,
        weigh: Callable[[R], int] | None = None,
        is_better: Callable[[R, R], bool] | None = None,
    ) -> None:
        """weigh: bytes that a record takes in memory. is_better: whether the first record, from the store,
        takes the place of the second one in memory.
        """
        self.stored = RecordStore(kind, prefix, storage)
        self._storage = storage
        self._weigh = weigh or _weigh_plain
        self._is_better = is_better or _is_never
        # Is told of records that had to make room.
        self.on_lost: Callable[[R], None] | None = None
        self._held: Lru[str, _Held[R]] = Lru(storage.max_bytes)

    @property
    def size_bytes(self) -> int:
        return self._held.size_bytes

    def find(self, key: str) -> R | None:
        """In memory alone."""
        held = self._held.get(key)
        return held.record if held is not None else None

    def is_current(self, key: str) -> bool:
        """Whether memory has it, and no other process is known to have changed it."""
        held = self._held.peek(key)
        return held is not None and not held.is_outdated

    def is_stored(self, key: str) -> bool:
        """Whether the store had it in this generation."""
        held = self._held.peek(key)
        return held is not None and held.generation == self._storage.generation

    def list_all(self) -> list[R]:
        """Everything in memory."""
        return [held.record for held in self._held.values()]

    async def load(self, owner: str, key: str) -> R | None:
        """From memory without suspending, else from the store, also what another process has changed."""
        if self.is_current(key):
            return self.find(key)
        before = self._held.peek(key)
        loaded = await self.stored.load(owner, key)
        if loaded is None and before is not None and self._held.peek(key) is before:
            # What memory has is the newest.
            self._held.put(key, before._replace(is_outdated=False), self._weigh(before.record))
        return self.hold_loaded(owner, key, loaded)

    def hold(self, owner: str, key: str, record: R) -> None:
        """In memory alone."""
        self._hold(key, _Held(make_tag(owner), record, None, None))

    def hold_loaded(self, owner: str, key: str, loaded: R | None) -> R | None:
        """A record in memory may have been saved while the store was asked. It wins, unless it is worse, or
        outdated.
        """
        held = self._held.peek(key)
        if loaded is not None and (held is None or held.is_outdated or self._is_better(loaded, held.record)):
            self.hold_stored(owner, key, loaded)
        return self.find(key)

    def hold_stored(self, owner: str, key: str, record: R) -> None:
        """In memory, as what the store has."""
        self._hold(key, _Held(make_tag(owner), record, None, self._storage.generation))

    def save(self, owner: str, key: str, record: R) -> None:
        """In memory at once, in the store a moment later."""
        self._hold_written(owner, key, record)
        self.stored.save(owner, key, record)

    async def save_durably(self, owner: str, key: str, record: R) -> None:
        """Durable when this returns, and only then in memory. Raises StoreError."""
        await self.stored.save_durably(owner, key, record)
        self._hold_written(owner, key, record)

    async def save_new(self, owner: str, key: str, record: R) -> R:
        """What the key stands for from now on, durably and in memory: the record, or what was stored before.

        One that this process saves meanwhile wins. Raises StoreError.
        """
        before = self._held.peek(key)
        stored = await self.stored.save_new(owner, key, record)
        held = self._held.peek(key)
        if held is not None and held is not before:
            return held.record
        self._hold_written(owner, key, stored)
        return stored

    async def save_leased(self, lease: Lease, owner: str, key: str, record: R) -> bool:
        """Durable when this returns True, and only then in memory; False if the lease was lost.

        Raises StoreError.
        """
        is_saved = await self.stored.save_leased(lease, owner, key, record)
        if is_saved:
            self._hold_written(owner, key, record)
        return is_saved

    def refresh(self, owner: str, key: str, record: R) -> None:
        """Writes a record that is in use again, once a day, and when the store may have lost it."""
        held = self._held.peek(key)
        if (
            held is None
            or held.written_seconds is None
            or held.generation != self._storage.generation
            or self._storage.is_old(held.written_seconds)
        ):
            self.save(owner, key, record)

    def outdate(self, key: str) -> None:
        """The next `load` asks the store."""
        held = self._held.peek(key)
        if held is not None:
            self._held.put(key, held._replace(is_outdated=True), self._weigh(held.record))

    def drop(self, key: str) -> None:
        """Out of memory."""
        self._held.pop(key)

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory."""
        self._held.drop_where(lambda held: held.tag == tag)

    def _hold_written(self, owner: str, key: str, record: R) -> None:
        storage = self._storage
        self._hold(key, _Held(make_tag(owner), record, storage.clock(), storage.generation))

    def _hold(self, key: str, held: _Held[R]) -> None:
        gone = self._held.put(key, held, self._weigh(held.record))
        if gone and self.on_lost is not None:
            for each in gone:
                self.on_lost(each.record)


def _is_never(*_: object) -> bool:
    return False


def _weigh_plain(_: object) -> int:
    return RECORD_WEIGHT_BYTES
