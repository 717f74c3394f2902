"""Heads: what was known at the end of each request.

A head is found by walking back along the chain of a later request, in memory or in the store. Which request
continued a head first is known to each process for itself: two that go on from one head through different
processes may both keep its conversation's id, which is a label. What is stored is found by chains alone.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.core.history.conversation import Conversation, list_links
from gateway.core.history.head import Head, is_comparable, is_worth_saving
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.record_cache import RecordStore, Storage
from gateway.state.trip import Trip
from gateway.store.keys import make_tag

# In a store of one process heads are written a moment later, only the newest of each conversation: a lost one
# costs an estimate. Other processes need them for the very next request.
_LINGER_SECONDS: Final = 2.0
_HEAD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 1_250
# The name of a batch of marks, or of a recall: 64 hexadecimal digits.
_KEY_WEIGHT_BYTES: Final = 130
# A side call and the main call may end at one chain; more than this many scopes there are noise.
_MAX_SCOPES: Final = 4
# A head that says little more than the one before it is for the next request alone, whichever process gets
# that: people pause for less.
_STEP_SECONDS: Final = 3_600.0


class _LinkHeads(msgspec.Struct, frozen=True):
    """Heads at one link. generation: in which the newest of them was put here."""

    heads: tuple[Head, ...]
    generation: int


class _Written(NamedTuple):
    """The newest head of a branch that the store has, or will have in a moment, and since when."""

    head: Head
    since_seconds: float
    generation: int


class Heads:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        # Its generation is asked for twice in each request.
        self._news = storage.store.news
        self._records = RecordStore(Head, "head", storage)
        # By chain: one head for each scope that ended there, the newest first. Keys are those of the chain
        # itself, because a search looks up the whole of it.
        self._held: Lru[bytes, _LinkHeads] = Lru(storage.max_bytes)
        self._unwritten: dict[tuple[str, str], Head] = {}
        self._written: Lru[tuple[str, str], _Written] = Lru(storage.max_bytes)
        # By branch, the newest head that no sudden end can lose, and the generation in which it was written.
        self._durable: Lru[str, tuple[Head, int]] = Lru(storage.max_bytes)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        return self._held.size_bytes

    def find(self, conversation: Conversation, scope: str) -> Head | None:
        """The head in memory nearest to the end of the chain. Of several at one place it is the one of this
        scope, else the newest.
        """
        for key in reversed(conversation.known_chain):
            held = self._held.get(key)
            if held is not None:
                return _choose(held.heads, scope)
        return None

    def is_current(self, head: Head) -> bool:
        """Whether nothing can have been missed since this head was recorded here."""
        if not self._news.generation:
            return True
        held = self._held.peek(bytes.fromhex(head.key))
        return held is not None and held.generation == self._news.generation

    def ask(self, trip: Trip, owner: str, conversation: Conversation, scope: str) -> None:
        """For what another process has seen, or this one before a restart: the newest head behind the one
        that memory has, or in its place.
        """
        nearest = self.find(conversation, scope)
        links = list_links(conversation, nearest.length if nearest is not None else 1)
        trip.ask(self._records, owner, (link.hex() for link in links), self._take)

    async def load(self, owner: str, conversation: Conversation, scope: str) -> Head | None:
        """As `find`, after looking in the store."""
        trip = Trip(self._storage.store)
        self.ask(trip, owner, conversation, scope)
        await trip.run()
        return self.find(conversation, scope)

    def _take(self, _: str, stored: Head | None) -> None:
        """A stored head takes the place of another one of its scope if it names something else: it was
        written later. Otherwise it may say less, because it was written before its response.
        """
        if stored is None:
            return
        held = self._held.peek(bytes.fromhex(stored.key))
        known = [head for head in held.heads if head.scope == stored.scope] if held is not None else []
        if not known or not known[0].prompt_tokens or _name(known[0]) != _name(stored):
            self.hold(stored)
        self._note_durable(stored)

    def find_past(self, conversation: Conversation, scope: str) -> list[Head]:
        """All heads of this scope on the chain that have a usage and are in memory, the oldest first."""
        found = map(self._held.get, conversation.known_chain)
        past = [head for held in found if held is not None for head in held.heads]
        return [
            head
            for head in past
            if head.scope == scope and head.prompt_tokens and is_comparable(head, conversation)
        ]

    def find_sent_with(self, pivots: Collection[str]) -> list[Head]:
        """Heads in memory that name one of these pivots, in no order."""
        return [head for held in self._held.values() for head in held.heads if head.pivot in pivots]

    def is_worth_saving(self, head: Head, threshold_tokens: int = 0) -> bool:
        """Whether it says more than the head of its branch in the store, or that one is a day old: it would
        expire.
        """
        written = self._written.get((head.conversation, head.scope))
        if written is None or self._storage.is_old(written.since_seconds):
            return True
        if written.generation != self._news.generation:
            return True
        return is_worth_saving(head, written.head, threshold_tokens)

    def hold(self, head: Head) -> None:
        """In memory alone."""
        if not head.length:
            # Every conversation begins with the empty chain: this would be a head of all of them.
            return
        key, others = bytes.fromhex(head.key), []
        held = self._held.get(key)
        for other in held.heads if held is not None else ():
            if other.scope != head.scope:
                others.append(other)
            elif head.followed_by is None and head.session == other.session:
                head.followed_by = other.followed_by
        heads = (head, *others[: _MAX_SCOPES - 1])
        self._held.put(key, _LinkHeads(heads, self._news.generation), sum(map(_weigh, heads)))

    def hold_step(self, head: Head) -> None:
        """A head that is not worth saving. Where other processes may get the next request, the store has it
        for a while.
        """
        self.hold(head)
        if head.length and self._storage.store.is_shared and not self._is_newest_durable(head):
            seconds = min(_STEP_SECONDS, self._storage.keep_seconds)
            self._records.save(head.owner, head.key, head, seconds)

    def save(self, head: Head) -> None:
        """In memory at once; in the store a moment later, if no newer head of its branch comes first."""
        if not head.length:
            return
        self.hold(head)
        branch = head.conversation, head.scope
        written = _Written(head, self._storage.clock(), self._news.generation)
        self._written.put(branch, written, _weigh(head))
        if self._storage.store.is_shared:
            self._records.save(head.owner, head.key, head)
            return
        self._unwritten[branch] = head
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.flush)

    def find_at(self, key: str, scope: str) -> Head | None:
        """In memory, exactly at this chain and of this scope."""
        held = self._held.peek(bytes.fromhex(key))
        return next((head for head in held.heads if head.scope == scope), None) if held is not None else None

    def is_durable(
        self,
        conversation_id: str,
        pivot: str | None,
        batches: tuple[str, ...],
        recalls: tuple[str, ...] = (),
    ) -> bool:
        """Whether a head of this branch names these in the store, where no sudden end can lose it."""
        known = self._durable.get(conversation_id)
        if known is None or known[1] != self._news.generation:
            return False
        return _name(known[0]) == (pivot, batches, recalls)

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
        self._durable.put(head.conversation, (head, self._news.generation), _weigh(head))

    def _is_newest_durable(self, head: Head) -> bool:
        known = self._durable.peek(head.conversation)
        return known is not None and known[0].key == head.key

    def save_held(self, key: str) -> None:
        """Saves what memory has at this chain."""
        held = self._held.get(bytes.fromhex(key))
        for head in held.heads if held is not None else ():
            self.save(head)

    def flush(self) -> None:
        """Hands everything that lingers to the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for head in self._unwritten.values():
            self._records.save(head.owner, head.key, head)
        self._unwritten.clear()

    def list_of(self, conversation_id: str) -> list[Head]:
        """Those of one conversation in memory. Looks at all."""
        held = [head for held in self._held.values() for head in held.heads]
        known = [*held, *(written.head for written in self._written.values())]
        return [head for head in known if head.conversation == conversation_id]

    def forget_conversation(self, conversation_id: str) -> None:
        """It leaves memory, and so do the heads of others at its links."""
        self._held.drop_where(lambda held: any(each.conversation == conversation_id for each in held.heads))
        self._written.drop_where(lambda written: written.head.conversation == conversation_id)
        self._durable.drop_where(lambda durable: durable[0].conversation == conversation_id)
        for branch in [branch for branch in self._unwritten if branch[0] == conversation_id]:
            del self._unwritten[branch]

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory."""
        self._held.drop_where(lambda held: make_tag(held.heads[0].owner) == tag)
        self._written.drop_where(lambda written: make_tag(written.head.owner) == tag)
        self._durable.drop_where(lambda durable: make_tag(durable[0].owner) == tag)
        gone = [branch for branch, head in self._unwritten.items() if make_tag(head.owner) == tag]
        for branch in gone:
            del self._unwritten[branch]


def _weigh(head: Head) -> int:
    return _HEAD_WEIGHT_BYTES + _KEY_WEIGHT_BYTES * (len(head.batches) + len(head.recalls))


def _name(head: Head) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """What it was sent with."""
    return head.pivot, head.batches, head.recalls


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
