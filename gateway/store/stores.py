"""The stores of one gateway: that of its state, and beside it two for large values that may be lost."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from gateway.store.address import find_folder, make_store
from gateway.store.blobs import Blobs, NoBlobs, make_blobs
from gateway.store.interface import Store, StoreError

# The index over the originals, beside the state.
SEARCH_NAME: Final = "search"
# Of the large values.
ORIGINALS_NAME: Final = "original"
NAMED_NAME: Final = "named"


@dataclass(frozen=True, kw_only=True)
class Stores:
    state: Store
    # Messages that were removed from what is sent, and diffs.
    originals: Blobs
    # Threads and responses that requests only name.
    named: Blobs

    async def open(self) -> None:
        """Raises StoreRefused."""
        await self.state.open()
        await self.originals.open()
        await self.named.open()

    async def close(self) -> None:
        await self.state.close()
        await self.named.close()
        await self.originals.close()


def make_stores(url: str, *, originals_bytes: int, named_bytes: int, keep_seconds: float) -> Stores:
    """Not opened yet. Bounds and seconds are those of what lies beside the state. Raises StoreRefused for an
    unknown kind.
    """
    store, folder = make_store(url), find_folder(url)
    originals = make_blobs(
        store, folder, ORIGINALS_NAME, max_bytes=originals_bytes, keep_seconds=keep_seconds
    )
    # What is named is kept in memory once, by the caches.
    if url == "memory:":
        return Stores(state=store, originals=originals, named=NoBlobs())
    named = make_blobs(store, folder, NAMED_NAME, max_bytes=named_bytes, keep_seconds=keep_seconds)
    return Stores(state=store, originals=originals, named=named)


P = ParamSpec("P")
T = TypeVar("T")

# The name of an operation, its seconds, and whether it has raised StoreError.
NoteOperation = Callable[[str, float, bool], None]


class TimedStore:
    """The same store. note: called at the end of each operation."""

    def __init__(self, store: Store, note: NoteOperation) -> None:
        self._store = store
        self.open, self.close, self.put, self.drop = store.open, store.close, store.put, store.drop
        self.claim, self.renew, self.release = store.claim, store.renew, store.release
        self.until_free, self.count = store.until_free, store.count
        self.hold, self.let_go = store.hold, store.let_go
        self.publish, self.subscribe = store.publish, store.subscribe
        self.get = _time(store.get, "read", note)
        self.put_durable = _time(store.put_durable, "write", note)
        self.take = _time(store.take, "take", note)
        self.delete = _time(store.delete, "purge", note)
        self.list = _time(store.list, "scan", note)

    @property
    def is_shared(self) -> bool:
        return self._store.is_shared


class TimedBlobs:
    """The same values. note: as above."""

    def __init__(self, blobs: Blobs, note: NoteOperation) -> None:
        self.open, self.close = blobs.open, blobs.close
        self.get = _time(blobs.get, "read", note)
        self.put = _time(blobs.put, "write", note)
        self.delete = _time(blobs.delete, "purge", note)


def _time(
    operation: Callable[P, Awaitable[T]], name: str, note: NoteOperation
) -> Callable[P, Coroutine[Any, Any, T]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        begun_seconds, has_failed = time.monotonic(), False
        try:
            return await operation(*args, **kwargs)
        except StoreError:
            has_failed = True
            raise
        finally:
            note(name, time.monotonic() - begun_seconds, has_failed)

    return call


def time_stores(stores: Stores, note: NoteOperation) -> Stores:
    """The same stores. note: called at the end of each operation."""
    return Stores(
        state=TimedStore(stores.state, note),
        originals=TimedBlobs(stores.originals, note),
        named=TimedBlobs(stores.named, note),
    )
