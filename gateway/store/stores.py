"""The stores of one gateway: that of its state, and beside it two for large values that may be lost."""

from dataclasses import dataclass
from typing import Final

from gateway.store.address import find_folder, make_store
from gateway.store.blobs import Blobs, NoBlobs, make_blobs
from gateway.store.interface import Store

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
