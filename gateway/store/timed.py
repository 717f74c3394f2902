"""Stores whose operations are timed. Only those that wait for something are."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from gateway.store.blobs import Blobs
from gateway.store.interface import LATEST, SOON, Found, Key, Lease, ListedRecord, Lookup, Store, StoreError
from gateway.store.stores import Stores

T = TypeVar("T")

# The name of an operation, its seconds, and whether it has raised StoreError.
NoteOperation = Callable[[str, float, bool], None]


class _Timer:
    """note: called at the end of each operation."""

    def __init__(self, note: NoteOperation) -> None:
        self._note = note

    async def time(self, name: str, operation: Awaitable[T]) -> T:
        begun_seconds, has_failed = time.monotonic(), False
        try:
            return await operation
        except StoreError:
            has_failed = True
            raise
        finally:
            self._note(name, time.monotonic() - begun_seconds, has_failed)


class TimedStore:
    """The same store."""

    def __init__(self, store: Store, note: NoteOperation) -> None:
        self._store = store
        self._time = _Timer(note).time
        self.open, self.close, self.put, self.drop = store.open, store.close, store.put, store.drop
        self.claim, self.renew, self.release = store.claim, store.renew, store.release
        self.until_free, self.count = store.until_free, store.count
        self.hold, self.let_go = store.hold, store.let_go
        self.publish, self.subscribe = store.publish, store.subscribe

    @property
    def is_shared(self) -> bool:
        return self._store.is_shared

    async def get(self, tag: str, lookups: Sequence[Lookup], *, wait: float = SOON) -> list[Found | None]:
        return await self._time("read", self._store.get(tag, lookups, wait=wait))

    async def put_durable(  # noqa: PLR0913  # as in the interface
        self,
        key: Key,
        value: bytes,
        ttl: float,
        *,
        group: str = "",
        if_absent: bool = False,
        lease: Lease | None = None,
        wait: float = LATEST,
    ) -> bytes | None:
        writing = self._store.put_durable(
            key, value, ttl, group=group, if_absent=if_absent, lease=lease, wait=wait
        )
        return await self._time("write", writing)

    async def take(self, key: Key, *, wait: float = LATEST) -> bytes | None:
        return await self._time("take", self._store.take(key, wait=wait))

    async def delete(self, tag: str, group: str | None = None) -> int:
        return await self._time("purge", self._store.delete(tag, group))

    async def list(
        self, kind: str, tag: str | None = None, group: str | None = None, *, wait: float = LATEST
    ) -> list[ListedRecord]:
        return await self._time("scan", self._store.list(kind, tag, group, wait=wait))


class TimedBlobs:
    """The same values."""

    def __init__(self, blobs: Blobs, note: NoteOperation) -> None:
        self._blobs = blobs
        self._time = _Timer(note).time
        self.open, self.close = blobs.open, blobs.close

    async def get(self, tag: str, group: str, names: Sequence[str]) -> Mapping[str, bytes]:
        return await self._time("read", self._blobs.get(tag, group, names))

    async def put(
        self, tag: str, group: str, values: Mapping[str, bytes], *, keep_seconds: float | None = None
    ) -> None:
        await self._time("write", self._blobs.put(tag, group, values, keep_seconds=keep_seconds))

    async def delete(self, tag: str, groups: Collection[str] | None = None) -> int:
        return await self._time("purge", self._blobs.delete(tag, groups))


def time_stores(stores: Stores, note: NoteOperation) -> Stores:
    """The same stores. note: called at the end of each operation."""
    return Stores(
        state=TimedStore(stores.state, note),
        originals=TimedBlobs(stores.originals, note),
        named=TimedBlobs(stores.named, note),
    )
