"""A purge while gateways run: all of them forget the tenant, and what they had queued goes nowhere."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from gateway.purge.stored import PurgeCount, purge_stores
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.originals import OriginalsArchive
from gateway.state.news import StateNews
from gateway.store.stores import Stores

# By then other processes have heard the news, and what they had sent to the store before has arrived.
_SETTLE_SECONDS: Final = 1.5


class LivePurge:
    """settle: waits until other processes have forgotten the tenant; None: for a moment."""

    def __init__(
        self,
        stores: Stores,
        news: StateNews,
        log_writer: CompactionLogWriter,
        archive: OriginalsArchive,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stores = stores
        self._news = news
        self._log_writer = log_writer
        self._archive = archive
        self._settle = settle or partial(asyncio.sleep, _SETTLE_SECONDS)

    async def run(self, tag: str) -> PurgeCount:
        """Requests that this tenant sends meanwhile leave new records. Raises StoreError."""
        count = await self._purge(tag)
        if self._stores.main.is_shared:
            await self._settle()
            count = count.plus(await self._purge(tag))
        return count

    async def _purge(self, tag: str) -> PurgeCount:
        self._news.announce_purge(tag)
        # What is queued for the stores has to be there to be deleted.
        await self._log_writer.finish()
        await self._archive.finish()
        return await purge_stores(self._stores, tag)
