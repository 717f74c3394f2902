"""The stores of one gateway: that of its state, and beside it two for records that may be lost."""

import asyncio
from dataclasses import dataclass
from typing import Final

from gateway.store import Store, open_bounded_store, open_store

# The directory of the originals, beside the state.
ORIGINALS_NAME: Final = "originals"
# The index over them.
SEARCH_NAME: Final = "search"
# That of the threads and responses that requests only name.
NAMED_NAME: Final = "named"


@dataclass(frozen=True, kw_only=True)
class Stores:
    main: Store
    # Messages that were removed from what is sent.
    originals: Store
    # Threads and responses that requests only name.
    named: Store

    async def open(self) -> None:
        """Raises StoreError."""
        await self.main.open()
        await asyncio.gather(self.originals.open(), self.named.open())

    async def close(self) -> None:
        await self.main.close()
        await self.named.close()
        await self.originals.close()


def make_stores(url: str, *, originals_bytes: int, named_bytes: int) -> Stores:
    """Not opened yet. The numbers are bounds of the two stores. Raises StoreError for an unknown kind."""
    # What is named is kept in memory once, by the caches.
    is_in_memory = url == "memory:"
    return Stores(
        main=open_store(url),
        originals=open_bounded_store(url, ORIGINALS_NAME, originals_bytes),
        named=open_bounded_store(url, NAMED_NAME, 0 if is_in_memory else named_bytes),
    )
