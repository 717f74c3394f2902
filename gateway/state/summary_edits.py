"""Versions of summaries, and who may change a summary at a time.

A person edits a summary while compactions build on it. An edit, and the storing of a pivot that was made from
another, first hold the names of all pivots that they concern, over all processes, and read what the store has
of them. So an edit and a compaction never overwrite one another unseen.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from gateway.core.history.pivot import Pivot
from gateway.core.history.versions import VersionsRecord, with_version
from gateway.state.compaction_leases import CompactionLeases
from gateway.state.pivots import Pivots
from gateway.state.record_cache import RecordStore, Storage
from gateway.store.errors import StoreError
from gateway.store.leases import Held, Lease

# The kind of the records. No other kind begins like this, so a scan finds them alone.
VERSIONS_KIND: Final = "versions"
_LEASE_PREFIX: Final = "edit-"
# A holder writes two records. One that has died is waited for until its lease ends, some six seconds.
_MOST_SECONDS: Final = 20.0


class SummaryEdits:
    def __init__(self, storage: Storage, pivots: Pivots, leases: CompactionLeases) -> None:
        self._pivots = pivots
        self._leases = leases
        self._versions = RecordStore(VersionsRecord, VERSIONS_KIND, storage)
        # A store of one process grants every lease.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, owner: str, keys: Sequence[str]) -> AsyncIterator[dict[str, Lease]]:
        """No other edit or compaction changes these pivots meanwhile. Raises StoreError after a long wait."""
        leases: dict[str, Lease] = {}
        async with AsyncExitStack() as stack:
            # In one order, so that two who hold several never wait for one another.
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
                leases[key] = await self._claim(owner, key)
                stack.push_async_callback(self._leases.release, leases[key])
            yield leases

    async def _claim(self, owner: str, key: str) -> Lease:
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                lease = await self._leases.claim(owner, _LEASE_PREFIX + key)
                while isinstance(lease, Held):
                    await self._leases.wait(lease)
                    lease = await self._leases.claim(owner, _LEASE_PREFIX + key)
                return lease
        except TimeoutError:
            raise StoreError("another process is changing this summary") from None

    async def has_changed(self, known: Pivot) -> bool:
        """Whether a person has edited this summary, or the digest whose place it is to take. To be asked
        while its name is held.
        """
        stored = await self._pivots.load_again(known.owner, known.key)
        return stored is not None and stored.is_edited and _say(stored) != _say(known)

    async def load_versions(self, owner: str, key: str) -> VersionsRecord:
        """Those before the one in use."""
        return await self._versions.load(owner, key) or VersionsRecord(owner=owner, key=key)

    async def save(self, lease: Lease, before: Pivot, edited: Pivot) -> bool:
        """Both versions are durable when this returns, and other processes are told. False, and the pivot is
        as it was, if the lease was lost. Raises StoreError.
        """
        versions = with_version(await self.load_versions(before.owner, before.key), before)
        await self._versions.save_durably(before.owner, before.key, versions)
        return await self._pivots.save_edited(lease, edited)


def _say(pivot: Pivot) -> tuple[int, str]:
    return pivot.version, pivot.summary
