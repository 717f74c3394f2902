"""Records of one kind with memory in front: what is found there is not asked for again."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Generic, NamedTuple

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.kinds import StateRecords
from gateway.state.memory import Memory, Whose
from gateway.state.records import K, Records
from gateway.state.trip import Trip
from gateway.store.interface import LATEST, Lease, Store, Unknown
from gateway.store.keys import make_tag

# What a record takes in memory beside its texts.
RECORD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600
_ABSENT_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300
# A record in use is written again once a day, or it would expire.
_REFRESH_SECONDS: Final = 86_400.0


class Storage:
    """What every part of the state is built on."""

    def __init__(
        self,
        store: Store,
        keep_seconds: float,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """keep_seconds: a record that is not written again for so long is dropped. max_bytes: of memory, for
        each kind of record. clock: monotonic.
        """
        self.store = store
        self.records = StateRecords(store, keep_seconds)
        self.memory = Memory()
        self.keep_seconds = keep_seconds
        self.max_bytes = max_bytes
        self.clock = clock

    def is_old(self, written_seconds: float) -> bool:
        """Whether a record that is still in use must be written again."""
        return self.clock() - written_seconds >= min(_REFRESH_SECONDS, self.keep_seconds / 4)

    @property
    def generation(self) -> int:
        return self.memory.generation

    def begin_trip(self, owner: str, wait: float = LATEST) -> Trip:
        """Look-ups for one request."""
        return Trip(self.store, self.memory, owner, wait)


class _Held(NamedTuple, Generic[K]):
    """A record in memory."""

    whose: Whose
    # None if the store had none when it was asked.
    record: K | None
    # None for a record that was loaded, because its age is not known, and for one in memory alone.
    written_seconds: float | None
    # In which generation the store was last known to have it, or not; None if it never was.
    generation: int | None
    # Another process has changed it.
    is_outdated: bool = False


class Cached(Generic[K]):
    """Records of one kind with memory in front."""

    def __init__(
        self,
        storage: Storage,
        records: Records[K],
        *,
        weigh: Callable[[K], int] | None = None,
        is_better: Callable[[K, K], bool] | None = None,
        on_held: Callable[[K], None] | None = None,
        on_lost: Callable[[K], None] | None = None,
    ) -> None:
        """weigh: bytes that a record takes in memory. is_better: whether the first record, from the store,
        takes the place of the second one in memory. on_held, on_lost: are told of records that come into
        memory, and of those that have to make room.
        """
        self.records = records
        self._storage = storage
        self._weigh = weigh or (lambda _: RECORD_WEIGHT_BYTES)
        self._is_better = is_better or (lambda *_: False)
        self._on_held, self._on_lost = on_held, on_lost
        self._held: Lru[str, _Held[K]] = storage.memory.shelf(lambda held: (held.whose,), storage.max_bytes)

    def find(self, key: str) -> K | None:
        """In memory alone."""
        held = self._held.get(key)
        return held.record if held is not None else None

    def is_current(self, key: str) -> bool:
        """Whether memory has it, and no other process is known to have changed it."""
        held = self._held.peek(key)
        return held is not None and held.record is not None and not held.is_outdated

    def is_missing(self, key: str) -> bool:
        """Whether memory lacks it, and the store may have it."""
        held = self._held.peek(key)
        if held is None or held.is_outdated:
            return True
        return held.record is None and held.generation != self._storage.generation

    def is_stored(self, key: str) -> bool:
        """Whether the store had it in this generation."""
        held = self._held.peek(key)
        return held is not None and held.record is not None and held.generation == self._storage.generation

    def ask(self, trip: Trip, owner: str, key: str) -> None:
        """For what the store has, also if memory has something."""
        before = self._held.peek(key)

        def take(_: str, stored: K | None) -> None:
            if stored is None and before is not None and self._held.peek(key) is before:
                # What memory has is the newest.
                self._held.put(key, before._replace(is_outdated=False), self._weigh_held(before))
            self.hold_loaded(owner, key, stored)

        trip.ask(self.records, (key,), take)

    def ask_missing(self, trip: Trip, owner: str, keys: Iterable[str]) -> None:
        """For those of these that memory lacks."""
        for key in keys:
            if self.is_missing(key):
                self.ask(trip, owner, key)

    async def load(self, owner: str, keys: Sequence[str], wait: float = LATEST) -> list[K]:
        """Those of these that exist, in their order. Suspends only for what is not in memory, or was changed
        by another process. What memory has if the store says nothing in `wait` seconds.
        """
        if any(map(self.is_missing, keys)):
            trip = self._storage.begin_trip(owner, wait)
            self.ask_missing(trip, owner, keys)
            with suppress(Unknown):
                await trip.run()
        return [record for key in keys if (record := self.find(key)) is not None]

    def hold(self, owner: str, key: str, record: K) -> None:
        """In memory alone."""
        self._hold(key, _Held(self._name(owner, record), record, None, None))

    def hold_loaded(self, owner: str, key: str, loaded: K | None) -> None:
        """What the store has, or has not. A record in memory may have been saved while the store was asked.
        It wins, unless it is worse, or outdated.
        """
        held = self._held.peek(key)
        if loaded is None:
            if held is None or held.record is None:
                self._hold(key, _Held(Whose(make_tag(owner)), None, None, self._storage.generation))
        elif held is None or held.record is None or held.is_outdated or self._is_better(loaded, held.record):
            self.hold_stored(owner, key, loaded)

    def hold_stored(self, owner: str, key: str, record: K) -> None:
        """In memory, as what the store has."""
        self._hold(key, _Held(self._name(owner, record), record, None, self._storage.generation))

    def save(self, owner: str, key: str, record: K) -> None:
        """In memory at once, in the store a moment later."""
        self._hold_written(owner, key, record)
        self.records.put(owner, key, record, group=_find_group(record))

    async def put_durable(
        self, owner: str, key: str, record: K, *, if_absent: bool = False, lease: Lease | None = None
    ) -> K | None:
        """Into the store alone, as `Records` does. Raises StoreError, also if it is deleted meanwhile."""
        memory, whose = self._storage.memory, self._name(owner, record)
        since = memory.purges
        try:
            stored = await self.records.put_durable(
                owner, key, record, group=whose.group, if_absent=if_absent, lease=lease
            )
        except Unknown:
            memory.check_kept(since, whose)
            raise
        memory.check_kept(since, whose)
        return stored

    async def save_durably(self, owner: str, key: str, record: K, lease: Lease | None = None) -> K | None:
        """What the key stands for from now on, durably and in memory: the record; without a lease what was
        stored there before, or what this process saves meanwhile. None if the lease was lost.

        While the store is away it is this record, and what the store turns out to have later. Raises
        StoreError if the store refuses it, or it is deleted meanwhile.
        """
        before = self._held.peek(key)
        try:
            stored = await self.put_durable(owner, key, record, if_absent=lease is None, lease=lease)
        except Unknown:
            self.hold(owner, key, record)
            return record
        held = self._held.peek(key)
        if lease is None and held is not None and held is not before and held.record is not None:
            return held.record
        if stored is not None:
            self._hold_written(owner, key, stored)
        return stored

    def refresh(self, owner: str, key: str, record: K) -> None:
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
        """The next look-up asks the store."""
        held = self._held.peek(key)
        if held is not None:
            self._held.put(key, held._replace(is_outdated=True), self._weigh_held(held))

    def _name(self, owner: str, record: K) -> Whose:
        return Whose(make_tag(owner), _find_group(record))

    def _hold_written(self, owner: str, key: str, record: K) -> None:
        storage = self._storage
        self._hold(key, _Held(self._name(owner, record), record, storage.clock(), storage.generation))

    def _hold(self, key: str, held: _Held[K]) -> None:
        if self._on_held is not None and held.record is not None:
            self._on_held(held.record)
        for gone in self._held.put(key, held, self._weigh_held(held)):
            if self._on_lost is not None and gone.record is not None:
                self._on_lost(gone.record)

    def _weigh_held(self, held: _Held[K]) -> int:
        return self._weigh(held.record) if held.record is not None else _ABSENT_WEIGHT_BYTES


def _find_group(record: object) -> str:
    """Its conversation, if it belongs to one."""
    group: str = getattr(record, "conversation", "")
    return group
