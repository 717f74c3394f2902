"""Who may change a summary at a time.

A person edits a summary while compactions build on it. A compaction holds the lease of what it builds on, and
an edit takes the same lease. So an edit and a compaction never overwrite one another unseen.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gateway.core.history.pivot import Pivot
from gateway.state.pivots import Pivots
from gateway.state.single import Single
from gateway.store.interface import HeldLease, Lease, StoreError, Unknown

# A compaction that builds on the summary may take longer: then the person tries again later.
_MOST_SECONDS: Final = 20.0


class SummaryEdits:
    def __init__(self, pivots: Pivots, single: Single) -> None:
        self._pivots = pivots
        self._single = single

    @asynccontextmanager
    async def hold(self, owner: str, key: str) -> AsyncIterator[Lease]:
        """No other edit of this pivot, and no compaction that builds on it, is made meanwhile. Raises
        StoreError after a long wait.
        """
        lease = await self._claim(owner, key)
        async with self._single.holding(lease):
            yield lease

    async def _claim(self, owner: str, key: str) -> Lease:
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                lease = await self._single.claim(owner, key)
                while isinstance(lease, HeldLease):
                    await self._single.wait(lease)
                    lease = await self._single.claim(owner, key)
                return lease
        except TimeoutError:
            raise BeingReplaced("this summary is being changed, or replaced") from None

    async def has_changed(self, known: Pivot) -> bool:
        """Whether a person has edited this summary; no if the store does not say."""
        stored = await self._load(known)
        return stored is not None and stored.is_edited and stored.version != known.version

    async def has_text_of_a_person(self, pivot: Pivot) -> bool:
        """Whether a person has edited what stands in its place; no if the store does not say."""
        stored = await self._load(pivot)
        return stored is not None and stored.is_edited

    async def _load(self, pivot: Pivot) -> Pivot | None:
        try:
            return await self._pivots.load_again(pivot.owner, pivot.key)
        except Unknown:
            return None


class BeingReplaced(StoreError):
    """The lease of the summary was held for too long."""
