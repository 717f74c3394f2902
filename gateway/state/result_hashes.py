"""The hashes by which a pivot is found behind tool results that its client has cleared.

Rarely needed, so they are not held in memory.
"""

from collections.abc import Sequence

from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.state.record_cache import RecordStore, Storage
from gateway.state.trip import Finding, Trip


class StoredResultHashes:
    def __init__(self, storage: Storage) -> None:
        self._records = RecordStore(ResultHashesRecord, "outline", storage)

    def ask(self, trip: Trip, owner: str, keys: Sequence[str]) -> Finding[ResultHashesRecord]:
        """For those of the first key that has any."""
        return trip.ask(self._records, owner, keys)

    async def load(self, owner: str, keys: Sequence[str]) -> ResultHashesRecord | None:
        """Those of the first key that has any."""
        found = await self._records.load_first(owner, keys)
        return found[1] if found is not None else None

    def save(self, hashes: ResultHashesRecord) -> None:
        self._records.save(hashes.owner, hashes.key, hashes)
