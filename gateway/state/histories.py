"""How answered requests ended, by which a history is recognized after its client has dropped parts of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from gateway.core.history.conversation import GONE_WEIGHT_BYTES, Conversation
from gateway.core.history.ends import STORED_LINKS, HistoryEnd, make_history_end
from gateway.core.history.head import Head
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.cached import Storage
from gateway.state.memory import Whose
from gateway.state.trip import Finding, Trip
from gateway.store.interface import LATEST, Unknown
from gateway.store.keys import make_tag

# Some fifty thousand messages. Most of it is also kept with the bodies.
_NEWEST_BYTES: Final = 24 << 20
_REQUEST_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600
# The facts of a message, a place and a chain link.
_MESSAGE_WEIGHT_BYTES: Final = 520
# Some ten thousand keys.
_CHAINS_BYTES: Final = 4 << 20
_CHAIN_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 200
_SEVERAL: Final = b""
# A stored end is so many messages old at most. The older it is, the sooner another history has it, too.
_BEHIND_MESSAGES: Final = 16
_SAVED_BYTES: Final = 1 << 20
_SAVED_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250
_ABSENT_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 200


class _LastRequest(msgspec.Struct, frozen=True):
    """The newest answered request of a branch."""

    owner: str
    branch: str
    # See find_ends.
    key: str
    conversation: Conversation


class _Ended(msgspec.Struct, frozen=True):
    """Of which history the newest messages were those of a key. branch: the last one that ended so."""

    tag: str
    chain: bytes
    branch: str


class _Saved(NamedTuple):
    """The end of a branch that the store has."""

    whose: Whose
    key: str
    length: int
    generation: int


class Histories:
    def __init__(self, storage: Storage) -> None:
        shelf = storage.memory.shelf
        self._newest: Lru[str, _LastRequest] = shelf(
            lambda newest: (Whose(make_tag(newest.owner), newest.branch),), _NEWEST_BYTES, self._drop
        )
        # The branches whose newest request has this key.
        self._branches: dict[str, tuple[str, ...]] = {}
        # The chain of the history that has ended with each key, also after it went on: another history must
        # not be taken for it when it comes there later. Empty if there were several.
        self._chains: Lru[str, _Ended] = shelf(lambda ended: (Whose(ended.tag, ended.branch),), _CHAINS_BYTES)
        self._storage = storage
        self._ends = storage.records.histories
        self._saved: Lru[str, _Saved] = shelf(lambda saved: (saved.whose,), _SAVED_BYTES)
        # Keys that the store did not have, with the tag and the generation in which it was asked.
        self._absent: Lru[str, tuple[str, int]] = shelf(lambda absent: (Whose(absent[0]),), _SAVED_BYTES)

    def record(self, owner: str, branch: str, key: str, conversation: Conversation) -> None:
        """In memory, in place of the branch's request before."""
        before = self._newest.peek(branch)
        if before is None or before.key != key:
            if before is not None:
                self._drop(before)
            self._branches[key] = (*self._branches.get(key, ()), branch)
        seen = self._chains.get(key)
        chain = conversation.key if seen is None or seen.chain == conversation.key else _SEVERAL
        if chain == _SEVERAL != (seen.chain if seen is not None else None):
            # After a restart it would look as if only one history had ended so.
            self._ends.drop(owner, key)
        self._chains.put(key, _Ended(make_tag(owner), chain, branch), _CHAIN_WEIGHT_BYTES)
        newest = _LastRequest(owner, branch, key, conversation)
        for gone in self._newest.put(branch, newest, _weigh(conversation)):
            self._drop(gone)

    def is_behind(self, branch: str, length: int) -> bool:
        """Whether the end of a branch in the store is old, or unknown."""
        saved = self._saved.get(branch)
        if saved is None or saved.generation != self._storage.generation:
            return True
        return abs(length - saved.length) >= _BEHIND_MESSAGES

    async def save(self, key: str, head: Head) -> None:
        """Saves what memory has at this key, so that it survives a restart, in place of the branch's end
        before. head: of the same request.
        """
        # The chain reaches back to the pivot.
        end = self._make_end(key, max(STORED_LINKS, head.length - head.covers))
        if end is None:
            return
        branch, before = head.conversation, self._saved.peek(head.conversation)
        purges = self._storage.memory.purges
        try:
            stored = await self._ends.get(end.owner, (key,), wait=LATEST)
        except Unknown:
            # Another history may have ended like this. A later end is saved.
            return
        if self._storage.memory.was_purged(purges, make_tag(end.owner)):
            # It may be deleted by now.
            return
        whose = Whose(make_tag(end.owner), branch)
        saved = _Saved(whose, key, end.length, self._storage.generation)
        self._saved.put(branch, saved, _SAVED_WEIGHT_BYTES)
        if before is not None and before.key != key:
            self._ends.drop(end.owner, before.key)
        is_crowded = end.is_crowded or (stored is not None and _is_other(stored.record, end.chain))
        named = replace(end, is_crowded=is_crowded, pivot=head.pivot, batches=head.batches)
        self._ends.put(end.owner, key, named, group=branch)

    def has_seen(self, key: str) -> bool:
        """Whether a request of this process has ended with this key, of whichever history."""
        return key in self._chains

    def find(self, key: str) -> HistoryEnd | None:
        """In memory alone."""
        return self._make_end(key)

    def ask(self, trip: Trip, owner: str, keys: Sequence[str]) -> Finding[HistoryEnd]:
        """For the first of these that the store has, unless it is known that it does not."""
        generation = self._storage.generation
        unknown = [key for key in keys if self._absent.get(key) != (make_tag(owner), generation)]

        def take(found: str, _: HistoryEnd | None) -> None:
            absent = unknown[: unknown.index(found)] if found in unknown else unknown
            for key in absent:
                self._absent.put(key, (make_tag(owner), generation), _ABSENT_WEIGHT_BYTES)

        return trip.ask(self._ends, unknown, take)

    def check(self, end: HistoryEnd) -> HistoryEnd:
        """A stored end, with what memory knows of other histories that ended with its key."""
        seen = self._chains.get(end.key)
        return replace(end, is_crowded=True) if seen is not None and _is_other(end, seen.chain.hex()) else end

    def _make_end(self, key: str, most_links: int | None = None) -> HistoryEnd | None:
        requests = [self._newest.get(branch) for branch in self._branches.get(key, ())]
        known = [request for request in requests if request is not None]
        if not known:
            return None
        newest = known[-1]
        end = make_history_end(newest.owner, key, newest.conversation, most_links)
        ended = self._chains.get(key)
        return replace(end, is_crowded=ended is None or ended.chain != newest.conversation.key)

    def _drop(self, gone: _LastRequest) -> None:
        left = tuple([branch for branch in self._branches.get(gone.key, ()) if branch != gone.branch])
        if left:
            self._branches[gone.key] = left
        else:
            self._branches.pop(gone.key, None)


def _is_other(end: HistoryEnd, chain: str) -> bool:
    """Whether several histories, or another one than that of the chain, ended like this."""
    return end.is_crowded or end.chain != chain


def _weigh(conversation: Conversation) -> int:
    length, trim = len(conversation.messages), conversation.trim
    received = len(trim.positions) if trim is not None else length
    gone = length - received
    return _REQUEST_WEIGHT_BYTES + _MESSAGE_WEIGHT_BYTES * received + GONE_WEIGHT_BYTES * gone
