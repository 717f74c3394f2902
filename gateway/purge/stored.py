"""Deletes what the stores hold of a tenant."""

import msgspec

from gateway.reporting.compaction_log import load_places
from gateway.store.stores import Stores


class PurgeCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were deleted. state: with the compaction log."""

    state: int = 0
    originals: int = 0
    named: int = 0

    def plus(self, other: "PurgeCount") -> "PurgeCount":
        return PurgeCount(
            state=self.state + other.state,
            originals=self.originals + other.originals,
            named=self.named + other.named,
        )


async def purge_stores(stores: Stores, tag: str) -> PurgeCount:
    """Raises StoreError; what is deleted by then stays so."""
    places = await load_places(stores.main, tag)
    for key in places:
        stores.main.delete(key)
    return PurgeCount(
        state=len(places) + await stores.main.purge(tag),
        originals=await stores.originals.purge(tag),
        named=await stores.named.purge(tag),
    )
