"""Pivots, mark batches, and the hashes by which a pivot is found behind cleared tool results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot, is_on_chain
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.heads import Heads
from gateway.state.record_cache import RECORD_WEIGHT_BYTES, RecordCache, RecordStore, Storage

_SEARCHED_BYTES: Final = 1 << 20
_SEARCHED_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300


class Pivots:
    def __init__(self, storage: Storage, heads: Heads) -> None:
        self._heads = heads
        self._pivots = RecordCache(Pivot, "pivot", storage, _weigh_pivot)
        self._batches = RecordCache(Batch, "batch", storage, _weigh_batch)
        # Rarely needed, so they are not held in memory.
        self._result_hashes = RecordStore(ResultHashesRecord, "outline", storage)
        # Manual pivots that no request has been sent with yet, by branch.
        self.manual: Lru[str, Pivot] = Lru(storage.max_bytes)
        # Branches already looked up in the store, with the eviction count at that time; after a later
        # eviction, look again.
        self._searched: Lru[tuple[str, str], int] = Lru(_SEARCHED_BYTES)

    @property
    def size_bytes(self) -> int:
        return self._pivots.size_bytes + self._batches.size_bytes

    # Pivots

    def find(self, key: str | None) -> Pivot | None:
        """In memory alone."""
        return self._pivots.find(key) if key else None

    async def load(self, owner: str, key: str) -> Pivot | None:
        return await self._pivots.load(owner, key)

    def has_on_chain(self, conversation: Conversation) -> bool:
        """In memory alone."""
        return any(self._pivots.find(key.hex()) is not None for key in conversation.known_chain)

    async def load_on_chain(
        self, owner: str, conversation: Conversation, branch: str, named: str | None
    ) -> list[Pivot]:
        """Every pivot in memory whose key is on the chain, in the order of the chain.

        Among them are the newest one in the store, which is looked up once for each branch, and the one that
        a head names.
        """
        keys = [key.hex() for key in conversation.known_chain]
        evictions = self._pivots.evictions
        if self._searched.get((owner, branch)) != evictions:
            await self._pivots.load_first(owner, keys[::-1])
            self._searched.put((owner, branch), evictions, _SEARCHED_WEIGHT_BYTES)
        if named:
            await self.load(owner, named)
        found = (self._pivots.find(key) for key in keys)
        return [pivot for pivot in found if pivot is not None]

    async def save(self, pivot: Pivot) -> None:
        """Durable when this returns. Raises StoreError; the pivot must not be used then."""
        await self._pivots.save_durably(pivot.owner, pivot.key, pivot)

    def hold(self, pivot: Pivot) -> None:
        """In memory alone."""
        self._pivots.hold(pivot.key, pivot)

    async def save_held(self, pivot: Pivot) -> None:
        """Durable when this returns, if it was in memory alone. Raises StoreError."""
        await self._pivots.save_held_durably(pivot.owner, pivot.key, pivot)

    def refresh(self, pivot: Pivot | None, batches: Sequence[Batch]) -> None:
        """What is in use is written again once a day; what is not used for `retention` is dropped."""
        # As they were made: what a request is sent with may be fitted to what its client still sends.
        if pivot is not None:
            self._pivots.refresh(pivot.owner, pivot.key, self._pivots.find(pivot.key) or pivot)
        for batch in batches:
            self._batches.refresh(batch.owner, batch.key, self._batches.find(batch.key) or batch)

    def find_followers(self, pivot: Pivot) -> list[Head]:
        """Heads in memory that were sent with this pivot, under any of its keys; in no order."""
        keys = {other.key for other in self._pivots.list_all() if _content(other) == _content(pivot)}
        return self._heads.find_sent_with(keys)

    # Manual pivots

    def activate_manual(self, branch: str, pivot: Pivot, head: Head | None) -> None:
        """The pivot is active from the branch's next request on, even below the thresholds.

        head: the newest one that the pivot was made for. It is saved with the pivot, for after a restart.
        """
        self.manual.put(branch, pivot, _weigh_pivot(pivot))
        if head is not None:
            self._heads.save(_with_pivot(head, pivot))

    def apply_manual(self, branch: str, conversation: Conversation, head: Head | None) -> Head | None:
        """The head, with the manual pivot of the branch unless it names that one or a later one already."""
        made = self.manual.peek(branch)
        if made is None or head is None or not is_on_chain(conversation, made.key, made.covers):
            return head
        known = self.find(head.pivot)
        if known is not None and known.covers >= made.covers:
            self.manual.pop(branch)
            return head
        return _with_pivot(head, made)

    # Result hashes

    async def load_result_hashes(self, owner: str, keys: Sequence[str]) -> ResultHashesRecord | None:
        """Those of the first key that has any."""
        found = await self._result_hashes.load_first(owner, keys)
        return found[1] if found is not None else None

    def save_result_hashes(self, hashes: ResultHashesRecord) -> None:
        self._result_hashes.save(hashes.owner, hashes.key, hashes)

    # Mark batches

    async def load_batches(self, owner: str, keys: Sequence[str]) -> list[Batch] | None:
        """All of them, or None if one is absent."""
        batches: list[Batch] = []
        for key in keys:
            batch = await self._batches.load(owner, key)
            if batch is None:
                return None
            batches.append(batch)
        return batches

    async def save_batch_durably(self, batch: Batch) -> None:
        """Durable when this returns. Raises StoreError."""
        await self._batches.save_durably(batch.owner, batch.key, batch)

    def save_batch(self, batch: Batch) -> None:
        self._batches.save(batch.owner, batch.key, batch)


def _with_pivot(head: Head, pivot: Pivot) -> Head:
    """Without its usage, which was counted for another array of messages."""
    return replace(head, pivot=pivot.key, prompt_tokens=0, output_tokens=0)


def _content(pivot: Pivot) -> tuple[str, int, float, str]:
    """Equal for two pivots that differ in their key alone."""
    return pivot.owner, pivot.covers, pivot.created_seconds, pivot.summary


def _weigh_pivot(pivot: Pivot) -> int:
    return RECORD_WEIGHT_BYTES + weigh_texts(pivot.summary, pivot.question, pivot.resume)


def _weigh_batch(batch: Batch) -> int:
    return RECORD_WEIGHT_BYTES + 96 * len(batch.marks) + weigh_texts(batch.placeholder)
