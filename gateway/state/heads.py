"""Heads: what was known at the end of each request, and of each branch what the store has of it.

A head is found by walking back along the chain of a later request, in memory or in the store. Which request
continued a head first is known to each process for itself: two that go on from one head through different
processes may both keep its conversation's id, which is a label. What is stored is found by chains alone.
"""

from typing import Final, NamedTuple

import msgspec

from gateway.core.history.conversation import Conversation, list_links
from gateway.core.history.head import Head, is_comparable, is_worth_saving
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.cached import Storage
from gateway.state.memory import Whose
from gateway.state.trip import Trip
from gateway.store.keys import make_tag

# No generation of memory.
_UNSURE: Final = -1
_HEAD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 1_250
# With two heads that are mostly held at their links, too.
_BRANCH_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 1_500
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
    """A head that the store has, or will have in a moment, and since when."""

    head: Head
    since_seconds: float
    generation: int


class BranchRecord:
    """What is known of a branch under its id, which is a label: others may have it, too."""

    __slots__ = ("durable", "end_key", "newest", "saved_end", "whose", "written")

    def __init__(self, whose: Whose) -> None:
        self.whose = whose
        # Of its newest answered request.
        self.newest: Head | None = None
        self.written: _Written | None = None
        # The newest head that no sudden end can lose, and the generation in which it was written.
        self.durable: tuple[Head, int] | None = None
        # See `state.histories`: the key of its end in memory; the one in the store, with its length and the
        # generation in which it was written.
        self.end_key = ""
        self.saved_end: tuple[str, int, int] | None = None


class Heads:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        # Its generation is asked for twice in each request.
        self._memory = memory = storage.memory
        self._records = storage.records.heads
        # By chain: one head for each scope that ended there, the newest first. Keys are those of the chain
        # itself, because a search looks up the whole of it.
        self._held: Lru[bytes, _LinkHeads] = memory.shelf(
            lambda held: map(_name_owner, held.heads), storage.max_bytes
        )
        self._branches: Lru[str, BranchRecord] = memory.shelf(
            lambda branch: (branch.whose,), storage.max_bytes
        )

    def find(self, conversation: Conversation, scope: str) -> Head | None:
        """The head in memory nearest to the end of the chain. Of several at one place it is the one of this
        scope, else the newest.
        """
        held = None
        for key in reversed(conversation.known_chain):
            held = self._held.get(key)
            if held is not None:
                break
        for head in held.heads if held is not None else ():
            if head.scope == scope:
                return head
        return held.heads[0] if held is not None else None

    def find_branch(self, head: Head) -> BranchRecord:
        """That of the head's id, as the most recently used one."""
        branch = self._branches.get(head.conversation)
        if branch is None:
            branch = BranchRecord(_name_owner(head))
            self._branches.put(head.conversation, branch, _BRANCH_WEIGHT_BYTES)
        return branch

    def find_latest(self, conversation_id: str) -> Head | None:
        """That of the newest answered request of a conversation, in memory alone."""
        branch = self._branches.peek(conversation_id)
        return branch.newest if branch is not None else None

    def is_current(self, head: Head) -> bool:
        """Whether nothing can have been missed since this head was recorded here."""
        held = self._held.peek(bytes.fromhex(head.key))
        return held is not None and held.generation == self._memory.generation

    def ask(self, trip: Trip, conversation: Conversation, scope: str) -> None:
        """For what another process has seen, or this one before a restart: the newest head behind the one
        that memory has, or in its place.
        """
        nearest = self.find(conversation, scope)
        links = list_links(conversation, nearest.length if nearest is not None else 1)
        trip.ask(self._records, (link.hex() for link in links), self._take)

    def _take(self, _: str, stored: Head | None) -> None:
        """A stored head takes the place of another one of its scope if it names something else: it was
        written later. Otherwise it may say less, because it was written before its response.
        """
        if stored is None:
            return
        held = self._held.peek(bytes.fromhex(stored.key))
        known = [head for head in held.heads if head.scope == stored.scope] if held is not None else []
        if not known or not known[0].prompt_tokens or _name(known[0]) != _name(stored):
            self._put_at_link(stored, self._memory.generation)
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

    def is_worth_saving(self, head: Head, threshold_tokens: int = 0) -> bool:
        """Whether it says more than the head of its branch in the store, or that one is a day old: it would
        expire.
        """
        written = self.find_branch(head).written
        if written is None or written.head.scope != head.scope:
            return True
        if written.generation != self._memory.generation or self._storage.is_old(written.since_seconds):
            return True
        return is_worth_saving(head, written.head, threshold_tokens)

    def hold(self, head: Head, *, is_unsure: bool = False) -> None:
        """In memory alone. is_unsure: the store did not say what it knows, so the next request asks again."""
        if head.length:
            # Every conversation begins with the empty chain: that would be a head of all of them.
            self._put_at_link(head, _UNSURE if is_unsure else self._memory.generation)
            self.find_branch(head).newest = head

    def _put_at_link(self, head: Head, generation: int) -> None:
        key, others = bytes.fromhex(head.key), []
        held = self._held.get(key)
        for other in held.heads if held is not None else ():
            if other.scope != head.scope:
                others.append(other)
            elif head.followed_by is None and head.session == other.session:
                head.followed_by = other.followed_by
        heads = (head, *others[: _MAX_SCOPES - 1])
        self._held.put(key, _LinkHeads(heads, generation), sum(map(_weigh, heads)))

    def hold_step(self, head: Head) -> None:
        """A head that is not worth saving. Where other processes may get the next request, the store has it
        for a while.
        """
        self.hold(head)
        if head.length and self._storage.store.is_shared:
            durable = self.find_branch(head).durable
            if durable is None or durable[0].key != head.key:
                self._put(head, min(_STEP_SECONDS, self._storage.keep_seconds))

    def save(self, head: Head) -> None:
        """In memory at once, in the store a moment later."""
        if head.length:
            self._put_at_link(head, self._memory.generation)
            branch = self.find_branch(head)
            branch.newest = head
            branch.written = _Written(head, self._storage.clock(), self._memory.generation)
            self._put(head)

    def _put(self, head: Head, keep_seconds: float | None = None) -> None:
        self._records.put(head.owner, head.key, head, group=head.conversation, keep_seconds=keep_seconds)

    def is_durable(self, head: Head) -> bool:
        """Whether a head of its branch names the same in the store, where no sudden end can lose it."""
        branch = self._branches.get(head.conversation)
        if branch is None or branch.durable is None or branch.durable[1] != self._memory.generation:
            return False
        return _name(branch.durable[0]) == _name(head)

    async def save_durably(self, head: Head) -> None:
        """In the store when this returns, and not in memory. Raises StoreError."""
        since = self._memory.purges
        await self._records.put_durable(head.owner, head.key, head, group=head.conversation)
        self._memory.check_kept(since, _name_owner(head))
        self._note_durable(head)

    def _note_durable(self, head: Head) -> None:
        self.find_branch(head).durable = head, self._memory.generation

    def save_held(self, key: str) -> None:
        """Saves what memory has at this chain."""
        held = self._held.get(bytes.fromhex(key))
        for head in held.heads if held is not None else ():
            self.save(head)

    async def find_newest(self, tag: str, conversation_id: str) -> Head | None:
        """The newest one of a conversation that the store has. Raises Unknown."""
        heads = [each.record for each in await self._records.list(tag, conversation_id)]
        return max(heads, key=_tell_age, default=None)


def _name_owner(head: Head) -> Whose:
    return Whose(make_tag(head.owner), head.conversation)


def _tell_age(head: Head) -> tuple[float, int]:
    """When it was answered, and its length where that is not known."""
    return head.ledger.answered_seconds if head.ledger is not None else 0.0, head.length


def _weigh(head: Head) -> int:
    return _HEAD_WEIGHT_BYTES + _KEY_WEIGHT_BYTES * (len(head.batches) + len(head.recalls))


def _name(head: Head) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """What it was sent with."""
    return head.pivot, head.batches, head.recalls


def claim_continuation(head: Head, key: str) -> str:
    """The chain of the request that went on from this head first: `key`, if there was none before."""
    if head.followed_by is None:
        head.followed_by = key
    return head.followed_by


def find_continuation(head: Head, key: str) -> str:
    """The same without a claim: a later request may still be the first."""
    return head.followed_by or key
