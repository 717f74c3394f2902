"""Recalls: what is inserted into branches for good. Heads name them.

Of two recalls under one key the first that is stored is used by all: later requests repeat its bytes. So
other processes need not be told of them.
"""

from collections.abc import Sequence

from gateway.core.history.recall import Recall
from gateway.lru import weigh_texts
from gateway.state.cached import RECORD_WEIGHT_BYTES, Cached, Storage
from gateway.state.trip import Trip


class Recalls:
    def __init__(self, storage: Storage) -> None:
        self._records = Cached(
            storage, storage.records.recalls, weigh=_weigh, group_of=lambda recall: recall.conversation
        )

    def hold(self, recall: Recall) -> None:
        """In memory alone, unless one is known under its key."""
        if self._records.find(recall.key) is None:
            self._records.hold(recall.owner, recall.key, recall)

    async def secure(self, recalls: Sequence[Recall]) -> None:
        """Durable when this returns, as far as they are not known to be in the store. Raises StoreError."""
        await self._records.secure((recall.owner, recall.key, recall) for recall in recalls)

    def is_secure(self, recalls: Sequence[Recall]) -> bool:
        """Whether the store is known to have them."""
        return all(self._records.is_stored(recall.key) for recall in recalls)

    def refresh(self, recalls: Sequence[Recall]) -> None:
        """What is in use is written again once a day; what is not used for `retention` is dropped."""
        for recall in recalls:
            self._records.refresh(recall.owner, recall.key, recall)

    def lacks(self, keys: Sequence[str]) -> bool:
        """Whether memory lacks one of these that the store may have."""
        return bool(keys) and any(self._records.is_missing(key) for key in keys)

    def ask(self, trip: Trip, owner: str, keys: Sequence[str]) -> None:
        """For those of these that memory lacks."""
        self._records.ask_missing(trip, owner, keys)

    async def load(self, owner: str, keys: Sequence[str]) -> list[Recall]:
        """Those of these that exist, in their order. Suspends only for what is not in memory, which has all
        that there is if the store does not say.
        """
        return await self._records.load(owner, keys)


def _weigh(recall: Recall) -> int:
    return RECORD_WEIGHT_BYTES + weigh_texts(recall.text)
