"""A store whose operations are timed. Only those that wait for something are."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gateway.store import Store, StoreError
from gateway.store.leases import Leases
from gateway.store.news import News
from gateway.store.stores import Stores

T = TypeVar("T")

# The name of an operation, its seconds, and whether it has raised StoreError.
NoteOperation = Callable[[str, float, bool], None]


class TimedStore:
    """The same store. note: called at the end of each operation."""

    def __init__(self, store: Store, note: NoteOperation) -> None:
        self._store = store
        self._note = note

    @property
    def is_shared(self) -> bool:
        return self._store.is_shared

    @property
    def leases(self) -> Leases:
        return self._store.leases

    @property
    def news(self) -> News:
        return self._store.news

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        return await self._time("read", self._store.read_first(keys))

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        return await self._time("read", self._store.read_groups(groups))

    async def read(self, key: str) -> bytes | None:
        return await self._time("read", self._store.read(key))

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        return await self._time("scan", self._store.scan(prefix))

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        self._store.write(key, value, keep_seconds=keep_seconds)

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        await self._time("write", self._store.write_durably(key, value, keep_seconds=keep_seconds))

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        return await self._time("write", self._store.write_new(key, value, keep_seconds=keep_seconds))

    def delete(self, key: str) -> None:
        self._store.delete(key)

    async def take(self, key: str) -> bytes | None:
        return await self._time("take", self._store.take(key))

    async def purge(self, tag: str) -> int:
        return await self._time("purge", self._store.purge(tag))

    async def _time(self, name: str, operation: Awaitable[T]) -> T:
        begun_seconds, has_failed = time.monotonic(), False
        try:
            return await operation
        except StoreError:
            has_failed = True
            raise
        finally:
            self._note(name, time.monotonic() - begun_seconds, has_failed)


def time_stores(stores: Stores, note: NoteOperation) -> Stores:
    """The same stores. What they are, such as ones on a server, is seen in the others only."""
    return Stores(
        main=TimedStore(stores.main, note),
        originals=TimedStore(stores.originals, note),
        named=TimedStore(stores.named, note),
    )
