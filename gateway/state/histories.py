"""How answered requests ended, by which a history is recognized after its client has dropped parts of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gateway.core.history.conversation import GONE_WEIGHT_BYTES, Conversation
from gateway.core.history.trimmed import STORED_LINKS, HistoryEnd, make_history_end
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.record_cache import RecordStore, Storage

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


class _LastRequest(NamedTuple):
    """The newest answered request of a branch."""

    owner: str
    branch: str
    # See find_ends.
    key: str
    conversation: Conversation


class _Saved(NamedTuple):
    """The end of a branch that the store has."""

    key: str
    length: int


class Histories:
    def __init__(self, storage: Storage) -> None:
        self._newest: Lru[str, _LastRequest] = Lru(_NEWEST_BYTES)
        # The branches whose newest request has this key.
        self._branches: dict[str, tuple[str, ...]] = {}
        # The chain of the history that has ended with each key, also after it went on: another history must
        # not be taken for it when it comes there later. Empty if there were several.
        self._chains: Lru[str, bytes] = Lru(_CHAINS_BYTES)
        self._ends = RecordStore(HistoryEnd, "history", storage)
        self._saved: Lru[str, _Saved] = Lru(_SAVED_BYTES)

    def record(self, owner: str, branch: str, key: str, conversation: Conversation) -> None:
        """In memory, in place of the branch's request before."""
        before = self._newest.peek(branch)
        if before is None or before.key != key:
            if before is not None:
                self._drop(before)
            self._branches[key] = (*self._branches.get(key, ()), branch)
        seen = self._chains.get(key)
        chain = conversation.key if seen in (None, conversation.key) else _SEVERAL
        self._chains.put(key, chain, _CHAIN_WEIGHT_BYTES)
        newest = _LastRequest(owner, branch, key, conversation)
        for gone in self._newest.put(branch, newest, _weigh(conversation)):
            self._drop(gone)

    def is_behind(self, branch: str, length: int) -> bool:
        """Whether the end of a branch in the store is old, or unknown."""
        saved = self._saved.get(branch)
        return saved is None or abs(length - saved.length) >= _BEHIND_MESSAGES

    async def save(self, branch: str, key: str, behind_pivot: int) -> None:
        """Saves what memory has at this key, so that it survives a restart, in place of the branch's end
        before. So many messages stand behind its pivot.
        """
        end = self._make_end(key, max(STORED_LINKS, behind_pivot))
        if end is None:
            return
        before = self._saved.peek(branch)
        self._saved.put(branch, _Saved(key, end.length), _SAVED_WEIGHT_BYTES)
        if before is not None and before.key != key:
            self._ends.delete(before.key)
        stored = await self._ends.load(end.owner, key)
        is_crowded = end.is_crowded or (stored is not None and _is_other(stored, end.chain))
        self._ends.save(end.owner, key, replace(end, is_crowded=is_crowded))

    def has_seen(self, key: str) -> bool:
        """Whether a request of this process has ended with this key, of whichever history."""
        return key in self._chains

    def find(self, key: str) -> HistoryEnd | None:
        """In memory alone."""
        return self._make_end(key)

    async def load_first(self, owner: str, keys: Sequence[str]) -> HistoryEnd | None:
        """The first of these that the store has."""
        found = await self._ends.load_first(owner, keys)
        if found is None:
            return None
        key, end = found
        chain = self._chains.get(key)
        return replace(end, is_crowded=True) if chain is not None and _is_other(end, chain.hex()) else end

    def _make_end(self, key: str, most_links: int | None = None) -> HistoryEnd | None:
        requests = [self._newest.get(branch) for branch in self._branches.get(key, ())]
        known = [request for request in requests if request is not None]
        if not known:
            return None
        newest = known[-1]
        end = make_history_end(newest.owner, key, newest.conversation, most_links)
        return replace(end, is_crowded=self._chains.get(key) != newest.conversation.key)

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
    received = (
        len(conversation.trim.positions) if conversation.trim is not None else len(conversation.messages)
    )
    gone = len(conversation.messages) - received
    return _REQUEST_WEIGHT_BYTES + _MESSAGE_WEIGHT_BYTES * received + GONE_WEIGHT_BYTES * gone
