"""How answered requests ended, by which a history is recognized after its client has dropped parts of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gateway.core.history.conversation import GONE_WEIGHT_BYTES, Conversation
from gateway.core.history.ends import STORED_LINKS, HistoryEnd, make_history_end
from gateway.core.history.head import Head
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.cached import Storage
from gateway.state.heads import Heads
from gateway.state.memory import Whose
from gateway.state.trip import Trip
from gateway.store.interface import LATEST, Unknown

# Some fifty thousand messages, most of which are also kept with the bodies.
_NEWEST_BYTES: Final = 24 << 20
# Some ten thousand keys.
_ENDED_BYTES: Final = 4 << 20
_END_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 200
_REQUEST_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 400
# The facts of a message, a place and a chain link.
_MESSAGE_WEIGHT_BYTES: Final = 520
# A stored end is so many messages old at most. The older it is, the sooner another history has it, too.
_BEHIND_MESSAGES: Final = 16


class _Ended(NamedTuple):
    """Which history has ended with a key: `whose` was the last one."""

    whose: Whose
    # Empty if there were several, which cannot be told apart.
    chain: bytes


class _Newest(NamedTuple):
    whose: Whose
    conversation: Conversation


class Histories:
    def __init__(self, storage: Storage, heads: Heads) -> None:
        self._storage = storage
        self._heads = heads
        self._records = storage.records.histories
        self._newest: Lru[str, _Newest] = storage.memory.shelf(lambda newest: (newest.whose,), _NEWEST_BYTES)
        # Also of histories that went on, or had to make room: another one must not be taken for one of them
        # when it comes there later.
        self._ended: Lru[str, _Ended] = storage.memory.shelf(lambda ended: (ended.whose,), _ENDED_BYTES)

    def record(self, head: Head, key: str, conversation: Conversation) -> None:
        """In memory, in place of the branch's request before. head: of this one. key: see find_ends."""
        branch, seen = self._heads.find_branch(head), self._ended.peek(key)
        before = self._newest.peek(branch.end_key) if branch.end_key != key else None
        if before is not None and before.whose == branch.whose:
            self._newest.pop(branch.end_key)
        branch.end_key = key
        newest = self._newest.peek(key)
        if seen is None and newest is not None:
            seen = _Ended(newest.whose, newest.conversation.key)
        chain = conversation.key if seen is None or seen.chain == conversation.key else b""
        self._ended.put(key, _Ended(branch.whose, chain), _END_WEIGHT_BYTES)
        if chain:
            self._newest.put(key, _Newest(branch.whose, conversation), _weigh(conversation))
            return
        self._newest.pop(key)
        if seen is not None and seen.chain:
            # After a restart, or elsewhere, it would look as if only one history had ended so.
            crowded = replace(make_history_end(head.owner, key, conversation, 1), is_crowded=True)
            self._records.put(head.owner, key, crowded, group=head.conversation)

    def is_behind(self, head: Head) -> bool:
        """Whether the end of a branch in the store is old, or unknown."""
        saved = self._heads.find_branch(head).saved_end
        if saved is None or saved[2] != self._storage.generation:
            return True
        return abs(head.length - saved[1]) >= _BEHIND_MESSAGES

    async def save(self, key: str, head: Head) -> None:
        """Saves what memory has at this key, so that it survives a restart, in place of the branch's end
        before. head: of the same request.
        """
        # The chain reaches back to the pivot.
        end = self.find(head.owner, key, max(STORED_LINKS, head.length - head.covers))
        if end is None:
            return
        branch, purges = self._heads.find_branch(head), self._storage.memory.purges
        try:
            stored = await self._records.get(head.owner, key, wait=LATEST)
        except Unknown:
            # Another history may have ended like this. A later end is saved.
            return
        if self._storage.memory.was_purged(purges, branch.whose.tag) or self.find(head.owner, key) is None:
            # It may be deleted by now, or another history has ended like this.
            return
        before, branch.saved_end = branch.saved_end, (key, end.length, self._storage.generation)
        if before is not None and before[0] != key:
            self._records.drop(head.owner, before[0])
        is_crowded = stored is not None and _is_other(stored, end.chain)
        named = replace(end, is_crowded=is_crowded, pivot=head.pivot, batches=head.batches)
        self._records.put(head.owner, key, named, group=head.conversation)

    def has_seen(self, key: str) -> bool:
        """Whether a request of this process has ended with this key, of whichever history."""
        return key in self._ended

    def find(self, owner: str, key: str, most_links: int | None = None) -> HistoryEnd | None:
        """The one history that ends with this key, in memory alone. most_links: see make_history_end."""
        newest = self._newest.get(key)
        return make_history_end(owner, key, newest.conversation, most_links) if newest is not None else None

    def ask(self, trip: Trip, keys: Sequence[str], take: Callable[[HistoryEnd], object]) -> None:
        """For the first of these that the store has."""
        trip.ask(self._records, keys, lambda _, end: take(end) if end is not None else None)

    def is_contradicted(self, end: HistoryEnd) -> bool:
        """Whether memory knows of another history that ended with the key of a stored one."""
        seen = self._ended.get(end.key)
        return seen is not None and _is_other(end, seen.chain.hex())


def _is_other(end: HistoryEnd, chain: str) -> bool:
    """Whether several histories, or another one than that of the chain, ended like this."""
    return end.is_crowded or end.chain != chain


def _weigh(conversation: Conversation) -> int:
    length, trim = len(conversation.messages), conversation.trim
    received = len(trim.positions) if trim is not None else length
    gone = length - received
    return _REQUEST_WEIGHT_BYTES + _MESSAGE_WEIGHT_BYTES * received + GONE_WEIGHT_BYTES * gone
