"""A purge while gateways run: all of them forget the tenant, or the conversation, and what they had queued
goes nowhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from gateway.originals.index import OriginalsIndex
from gateway.purge.conversation import ConversationPurge, purge_conversation
from gateway.purge.stored import PurgeCount, purge_stores
from gateway.state.news import StateNews
from gateway.store.stores import Stores

# By then other processes have heard the news, and what they had sent to the store before has arrived.
SETTLE_SECONDS: Final = 1.5


class WritesLater(Protocol):
    """What has a queue of its own before the stores."""

    async def finish(self) -> None:
        """Returns once everything that is queued is with the stores."""


class LivePurge:
    """settle: waits until other processes have forgotten the tenant; None: for a moment."""

    def __init__(
        self,
        stores: Stores,
        news: StateNews,
        search: OriginalsIndex,
        queues: Sequence[WritesLater] = (),
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stores = stores
        self._news = news
        self._search = search
        self._queues = queues
        self._settle = settle or partial(asyncio.sleep, SETTLE_SECONDS)

    async def run(self, tag: str) -> PurgeCount:
        """Requests that this tenant sends meanwhile leave new records. Raises StoreError."""
        return await self._repeat(partial(self._purge, tag))

    async def run_conversation(self, purge: ConversationPurge) -> PurgeCount:
        """The same for one conversation. Others that began alike lose at worst a summary."""
        known = purge

        async def purge_again() -> PurgeCount:
            nonlocal known
            count, known = await self._purge_conversation(known)
            return count

        return await self._repeat(purge_again)

    async def _repeat(self, purge: Callable[[], Awaitable[PurgeCount]]) -> PurgeCount:
        count = await purge()
        if self._stores.main.is_shared:
            await self._settle()
            count = count.plus(await purge())
        return count

    async def _purge(self, tag: str) -> PurgeCount:
        self._news.announce_purge(tag)
        await self._finish_queues()
        count = await purge_stores(self._stores, tag)
        self._search.forget(tag)
        await self._search.finish_deleting()
        return count

    async def _purge_conversation(self, purge: ConversationPurge) -> tuple[PurgeCount, ConversationPurge]:
        """And what is known of it by now."""
        self._news.announce_conversation(purge.tag, purge.conversation_id)
        await self._finish_queues()
        purged = await purge_conversation(self._stores, purge)
        self._search.forget_conversation(purge.tag, purge.conversation_id)
        await self._search.finish_deleting()
        for pivot in purged.traces.pivots:
            self._news.announce_deleted(purge.tag, pivot)
        return purged.count, replace(purge, traces=purged.traces)

    async def _finish_queues(self) -> None:
        """What is queued for the stores has to be there to be deleted."""
        for queue in self._queues:
            await queue.finish()
