"""Deletes everything of one tenant, or of one conversation: from the store, and from the memory of every
process, which hears of it from the store.

Names that an upstream has given stay with the tenant, without what they stand for, because its client may go
on with them; so do calibrations and limits, which belong to the model.
"""

from collections.abc import Awaitable, Callable

import msgspec

from gateway.originals.search import OriginalsSearch
from gateway.store.stores import Stores


class PurgeCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were deleted. state: with the compaction log, sessions and their diffs; in memory and
    on Redis with everything, and the others are 0.
    """

    state: int = 0
    originals: int = 0
    named: int = 0


class Purge:
    """prepare: deletes what is of a conversation and not kept with it; by the tag of its owner and its id."""

    def __init__(
        self,
        stores: Stores,
        search: OriginalsSearch,
        prepare: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._stores = stores
        self._search = search
        self._prepare = prepare

    async def run(self, tag: str) -> PurgeCount:
        """A tenant. Requests that it sends meanwhile leave new records. Raises StoreError."""
        count = await self._delete(tag, None)
        self._search.forget(tag)
        await self._search.finish_purging()
        return count

    async def run_conversation(self, tag: str, conversation_id: str) -> PurgeCount:
        """Others that began alike lose at worst a summary. Raises StoreError."""
        if self._prepare is not None:
            await self._prepare(tag, conversation_id)
        count = await self._delete(tag, conversation_id)
        self._search.forget(tag, conversation_id)
        await self._search.finish_deleting()
        return count

    async def _delete(self, tag: str, group: str | None) -> PurgeCount:
        """Large values twice: once its records are deleted, no process that knows of it writes more."""
        state, originals, named = self._stores.state, self._stores.originals, self._stores.named
        groups = [group] if group is not None else None
        counts = [await originals.delete(tag, groups), await named.delete(tag, groups)]
        records = await state.delete(tag, group)
        counts[0] += await originals.delete(tag, groups)
        counts[1] += await named.delete(tag, groups)
        return PurgeCount(state=records, originals=counts[0], named=counts[1])
