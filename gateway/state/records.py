"""Typed records of one kind on a store: found, absent, or unknown, which is an exception.

No memory: what is read often is held in front of it. The owner of a record is in its key, and the store binds
key and value with a checksum. A record that does not fit its type counts as absent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gateway.store.interface import (
    LATEST,
    SOON,
    Found,
    Key,
    Lease,
    ListedRecord,
    Lookup,
    Store,
    StoreError,
)
from gateway.store.keys import make_tag

K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[K]):
    """name: in the store. keep_seconds: a record that is not written again for so long is dropped.
    linger: seconds in which a later record of the same name replaces one that is queued.
    """

    name: str
    type: type[K]
    keep_seconds: float
    linger: float = 0.0


class Purged(StoreError):
    """What was to be stored belongs to what was deleted meanwhile."""


class Stored(NamedTuple, Generic[K]):
    name: str
    record: K


class TaggedRecord(NamedTuple, Generic[K]):
    """tag: of its owner. group: its conversation."""

    tag: str
    group: str
    name: str
    record: K


class Records(Generic[K]):
    """Names are printable ASCII without spaces. What raises is StoreError, mostly Unknown: see `Store`."""

    def __init__(self, store: Store, kind: Kind[K]) -> None:
        self.kind = kind
        self._store = store
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(kind.type)

    async def get(self, owner: str, name: str, *, wait: float = SOON) -> K | None:
        """Raises Unknown after `wait` seconds."""
        (found,) = await self._store.get(make_tag(owner), [self.lookup((name,))], wait=wait)
        stored = self.parse(found)
        return stored.record if stored is not None else None

    async def get_each(self, owner: str, names: Sequence[str], *, wait: float = SOON) -> dict[str, K]:
        """Those of the names that exist, in one round trip. Raises Unknown."""
        if not names:
            return {}
        lookups = [self.lookup((name,)) for name in names]
        found = await self._store.get(make_tag(owner), lookups, wait=wait)
        read = [self.parse(each) for each in found if each is not None]
        return {each.name: each.record for each in read if each is not None}

    def lookup(self, names: Sequence[str]) -> Lookup:
        """For several kinds in one round trip, see `Store.get` and `parse`."""
        return Lookup(self.kind.name, names)

    def parse(self, found: Found | None) -> Stored[K] | None:
        if found is None:
            return None
        record = self._decode(found.value)
        return Stored(found.name, record) if record is not None else None

    def parse_listed(self, listed: Iterable[ListedRecord]) -> Iterator[TaggedRecord[K]]:
        """Those that are whole."""
        for key, group, value in listed:
            record = self._decode(value)
            if record is not None:
                yield TaggedRecord(key.tag, group, key.name, record)

    def put(
        self, owner: str, name: str, record: K, *, group: str = "", keep_seconds: float | None = None
    ) -> None:
        """Queued: the store has it a moment later, and reads of this process see it at once."""
        seconds = self.kind.keep_seconds if keep_seconds is None else keep_seconds
        value, linger = self._encode(record), self.kind.linger
        self._store.put(self._key(owner, name), value, seconds, group=group, linger=linger)

    async def put_durable(
        self,
        owner: str,
        name: str,
        record: K,
        *,
        group: str = "",
        if_absent: bool = False,
        lease: Lease | None = None,
    ) -> K | None:
        """What the name stands for now, durably: the record, or with if_absent what was there before. None if
        the lease was lost, and nothing is written.

        Raises Purged if its owner or its conversation is deleted meanwhile, unless there is a lease, and
        Unusable, and nothing is written; Unknown if the store is away, then it is written later if the
        store has nothing by then.
        """
        key, value, seconds = self._key(owner, name), self._encode(record), self.kind.keep_seconds
        stored = await self._store.put_durable(
            key, value, seconds, group=group, if_absent=if_absent, lease=lease
        )
        if stored is None and lease is None:
            raise Purged("it was deleted meanwhile")
        if stored is None or stored == value:
            return record if stored is not None else None
        before = self._decode(stored)
        return record if before is None else before

    def drop(self, owner: str, name: str) -> None:
        """Queued, in order with the writes of the same name."""
        self._store.drop(self._key(owner, name))

    async def take(self, owner: str, name: str, *, wait: float = LATEST) -> K | None:
        """Reads and deletes. Of several processes one gets it. Raises StoreError."""
        value = await self._store.take(self._key(owner, name), wait=wait)
        return self._decode(value) if value is not None else None

    async def list(self, tag: str, group: str) -> list[TaggedRecord[K]]:
        """All of one conversation of an owner. Raises Unknown."""
        return [*self.parse_listed(await self._store.list(self.kind.name, tag, group, wait=LATEST))]

    def _key(self, owner: str, name: str) -> Key:
        return Key(make_tag(owner), self.kind.name, name)

    def _decode(self, value: bytes) -> K | None:
        try:
            return self._decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
