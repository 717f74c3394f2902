"""The hashes by which a pivot is found behind tool results that its client has cleared.

Rarely needed, so they are not held in memory.
"""

from collections.abc import Sequence

from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.state.cached import Storage
from gateway.state.trip import Finding, Trip
from gateway.store.interface import LATEST


class StoredResultHashes:
    def __init__(self, storage: Storage) -> None:
        self._records = storage.records.result_hashes

    def ask(self, trip: Trip, keys: Sequence[str]) -> Finding[ResultHashesRecord]:
        """For those of the first key that has any."""
        return trip.ask(self._records, keys)

    async def load(self, owner: str, keys: Sequence[str]) -> ResultHashesRecord | None:
        """Those of the first key that has any. Raises Unknown."""
        found = await self._records.get(owner, keys, wait=LATEST)
        return found.record if found is not None else None

    def save(self, hashes: ResultHashesRecord, conversation_id: str) -> None:
        """conversation_id: of the pivot that the newest of them are about."""
        self._records.put(hashes.owner, hashes.key, hashes, group=conversation_id)
