"""Heads: what was known at the end of each request.

A head is found by walking back along the chain of a later request, in memory or in the store.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head, is_comparable, is_worth_saving
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.record_cache import RecordStore, Storage

# Heads are written a moment later, only the newest of each conversation: a lost one costs an estimate.
_LINGER_SECONDS: Final = 2.0
_HEAD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 950
# The name of a batch of marks: 64 hexadecimal digits.
_KEY_WEIGHT_BYTES: Final = 130
# A side call and the main call may end at one chain; more than this many scopes there are noise.
_MAX_SCOPES: Final = 4
# A pivot's key, and the keys of batches.
_Names = tuple[str | None, tuple[str, ...]]


class Heads:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._records = RecordStore(Head, "head", storage)
        # By chain: one head for each scope that ended there, the newest first. Keys are those of the chain
        # itself, because a search looks up the whole of it.
        self._held: Lru[bytes, tuple[Head, ...]] = Lru(storage.max_bytes)
        self._unwritten: dict[tuple[str, str], Head] = {}
        # The newest head of each branch that the store has, or will have in a moment, and since when.
        self._written: Lru[tuple[str, str], tuple[Head, float]] = Lru(storage.max_bytes)
        # What the newest durable head of each branch names: its pivot and its batches.
        self._durable: Lru[str, _Names] = Lru(storage.max_bytes)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        return self._held.size_bytes

    def find(self, conversation: Conversation, scope: str) -> Head | None:
        """The head in memory nearest to the end of the chain. Of several at one place it is the one of this
        scope, else the newest.
        """
        for key in reversed(conversation.known_chain):
            heads = self._held.get(key)
            if heads is not None:
                return _choose(heads, scope)
        return None

    async def load(self, owner: str, conversation: Conversation, scope: str) -> Head | None:
        """The same after looking in the store, for what another process has seen, or this one before a
        restart.
        """
        keys = (key.hex() for key in reversed(conversation.known_chain))
        found = await self._records.load_first(owner, keys)
        if found is not None:
            self.hold(found[1])
            self._note_durable(found[1])
        return self.find(conversation, scope)

    def find_past(self, conversation: Conversation, scope: str) -> list[Head]:
        """All heads of this scope on the chain that have a usage and are in memory, the oldest first."""
        found = map(self._held.get, conversation.known_chain)
        past = [head for heads in found if heads for head in heads]
        return [
            head
            for head in past
            if head.scope == scope and head.prompt_tokens and is_comparable(head, conversation)
        ]

    def find_sent_with(self, pivots: Collection[str]) -> list[Head]:
        """Heads in memory that name one of these pivots, in no order."""
        return [head for heads in self._held.values() for head in heads if head.pivot in pivots]

    def is_worth_saving(self, head: Head, threshold_tokens: int = 0) -> bool:
        """Whether it says more than the head of its branch in the store, or that one is a day old: it would
        expire.
        """
        written = self._written.get((head.conversation, head.scope))
        if written is None or self._storage.is_old(written[1]):
            return True
        return is_worth_saving(head, written[0], threshold_tokens)

    def hold(self, head: Head) -> None:
        """In memory alone."""
        if not head.length:
            # Every conversation begins with the empty chain: this would be a head of all of them.
            return
        key, others = bytes.fromhex(head.key), []
        for other in self._held.get(key) or ():
            if other.scope != head.scope:
                others.append(other)
            elif head.followed_by is None:
                head.followed_by = other.followed_by
        heads = (head, *others[: _MAX_SCOPES - 1])
        self._held.put(key, heads, sum(map(_weigh, heads)))

    def save(self, head: Head) -> None:
        """In memory at once; in the store a moment later, if no newer head of its branch comes first."""
        if not head.length:
            return
        self.hold(head)
        branch = head.conversation, head.scope
        self._unwritten[branch] = head
        self._written.put(branch, (head, self._storage.clock()), _weigh(head))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.flush)

    def is_durable(self, conversation_id: str, pivot: str | None, batches: tuple[str, ...]) -> bool:
        """Whether a head of this branch names these in the store, where no sudden end can lose it."""
        return self._durable.get(conversation_id) == (pivot, batches)

    async def save_durably(self, head: Head) -> None:
        """In the store when this returns, and not in memory. Raises StoreError."""
        await self._records.save_durably(head.owner, head.key, head)
        self._note_durable(head)
        branch = head.conversation, head.scope
        waiting = self._unwritten.get(branch)
        if waiting is not None and waiting.key == head.key:
            # It was made before this one, and would take its place.
            del self._unwritten[branch]

    def _note_durable(self, head: Head) -> None:
        weight_bytes = _HEAD_WEIGHT_BYTES + 100 * len(head.batches)
        self._durable.put(head.conversation, (head.pivot, head.batches), weight_bytes)

    def save_held(self, key: str) -> None:
        """Saves what memory has at this chain."""
        for head in self._held.get(bytes.fromhex(key)) or ():
            self.save(head)

    def flush(self) -> None:
        """Hands everything that lingers to the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for head in self._unwritten.values():
            self._records.save(head.owner, head.key, head)
        self._unwritten.clear()


def _weigh(head: Head) -> int:
    return _HEAD_WEIGHT_BYTES + _KEY_WEIGHT_BYTES * len(head.batches)


def _choose(heads: Sequence[Head], scope: str) -> Head:
    for head in heads:
        if head.scope == scope:
            return head
    return heads[0]


def claim_continuation(head: Head, key: str) -> str:
    """The chain of the request that went on from this head first: `key`, if there was none before."""
    if head.followed_by is None:
        head.followed_by = key
    return head.followed_by


def find_continuation(head: Head, key: str) -> str:
    """The same without a claim: a later request may still be the first."""
    return head.followed_by or key
