"""This process as the leader of one compaction: it holds the lease, renews it, and stores the pivot under it.

A lease runs out while its process is paused, and is gone if the store comes back empty. If no other process
has taken over by then, the leader claims it again and goes on: the summary is paid for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.core.compaction.cut import Cut
from gateway.core.compaction.rivals import find_cut_key, list_newer_keys, list_rival_keys
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Pivot
from gateway.state import State
from gateway.state.chain_places import ChainPlace
from gateway.state.compaction_leases import CompactionLeases
from gateway.store import StoreError
from gateway.store.leases import Held, Lease


class Leader:
    """lease: None until it is granted."""

    def __init__(self, state: State, owner: str, conversation: Conversation, cut: Cut) -> None:
        self._news = state.news
        self._pivots = state.pivots
        self._leases = state.leases
        self._owner = owner
        self._key = find_cut_key(conversation, cut)
        self._place = ChainPlace(self._key, cut.covers)
        self._rivals = list_rival_keys(conversation, cut)
        self._newer = list_newer_keys(conversation, cut)
        self._lease: Lease | None = None
        # Renewing and saving may both find the lease lost.
        self._regaining = asyncio.Lock()

    async def claim(self) -> Held | None:
        """None if this process is the leader now, otherwise the lease that is in its way."""
        claimed = await self._leases.claim(self._owner, self._key, self._rivals)
        if isinstance(claimed, Held):
            return claimed
        self._lease = claimed
        self._news.announce_place("compacting", self._owner, self._place)
        return None

    async def find_newer(self) -> Pivot | None:
        """A pivot that makes this compaction needless, which another process may have made meanwhile.

        A digest of the same messages does not: a client that could not wait got it, and the summary replaces
        it.
        """
        newest = await self._pivots.load_newest(self._owner, self._newer)
        is_own_digest = newest is not None and newest.is_digest and newest.key == self._key
        return None if is_own_digest else newest

    async def find_failure(self, held: Held) -> str | None:
        """Why the process that held this lease has made no pivot; None if it has stopped or still works."""
        return await self._leases.find_failure(self._owner, held)

    async def wait(self, held: Held) -> None:
        """Until the other leader may be done."""
        await self._leases.wait(held)

    async def keep(self) -> None:
        """Renews the lease. Returns when another process has taken over."""
        while True:
            await asyncio.sleep(self._leases.times.renew_seconds)
            lease = self._lease
            if lease is None or not (await self._leases.renew(lease) or await self._regain(lease)):
                return

    async def save(self, pivot: Pivot) -> bool:
        """False, and nothing is stored, if another process has taken over. Raises StoreError."""
        while self._lease is not None:
            lease = self._lease
            if await self._pivots.save_leased(lease, pivot):
                return True
            if not await self._regain(lease):
                return False
        return False

    async def note_failure(self, reason: str) -> None:
        """Those who wait for this leader need not make the same calls."""
        if self._lease is not None:
            with suppress(StoreError):
                await self._leases.note_failure(self._owner, self._lease, reason)

    async def release(self) -> None:
        if self._lease is not None:
            await self._leases.release(self._lease)
            self._news.announce_place("idle", self._owner, self._place)
            self._lease = None

    async def _regain(self, lost: Lease) -> bool:
        async with self._regaining:
            if self._lease is not lost:
                return self._lease is not None
            # Another leader may have stored its pivot meanwhile.
            return await self.claim() is None and await self.find_newer() is None


@asynccontextmanager
async def holding(leases: CompactionLeases, lease: Lease) -> AsyncIterator[None]:
    """Renews a lease, and releases it at the end. What is done inside is done even if the lease is lost."""
    keeping = asyncio.create_task(_keep(leases, lease))
    try:
        yield
    finally:
        keeping.cancel()
        await leases.release(lease)


async def _keep(leases: CompactionLeases, lease: Lease) -> None:
    while True:
        await asyncio.sleep(leases.times.renew_seconds)
        await leases.renew(lease)
