"""How answered requests ended, by which a history is recognized after its client has dropped parts of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gateway.core.history.conversation import GONE_WEIGHT_BYTES, Conversation
from gateway.core.history.trimmed import STORED_MESSAGES, HistoryEnd, make_history_end
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.record_cache import RecordStore, Storage

# Some fifty thousand messages. Most of it is also kept with the bodies.
_NEWEST_BYTES: Final = 24 << 20
_REQUEST_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600
# The facts of a message, a place and a chain link.
_MESSAGE_WEIGHT_BYTES: Final = 520


class _LastRequest(NamedTuple):
    """The newest answered request of a branch."""

    owner: str
    branch: str
    # See find_ends.
    key: str
    conversation: Conversation


class Histories:
    def __init__(self, storage: Storage) -> None:
        self._newest: Lru[str, _LastRequest] = Lru(_NEWEST_BYTES)
        # The branches whose newest request has this key.
        self._branches: dict[str, tuple[str, ...]] = {}
        self._ends = RecordStore(HistoryEnd, "history", storage)

    def record(self, owner: str, branch: str, key: str, conversation: Conversation) -> None:
        """In memory, in place of the branch's request before."""
        before = self._newest.peek(branch)
        if before is None or before.key != key:
            if before is not None:
                self._drop(before)
            self._branches[key] = (*self._branches.get(key, ()), branch)
        newest = _LastRequest(owner, branch, key, conversation)
        for gone in self._newest.put(branch, newest, _weigh(conversation)):
            self._drop(gone)

    def save(self, key: str) -> None:
        """Saves what memory has at this key, so that it survives a restart."""
        end = self._make_end(key, STORED_MESSAGES)
        if end is not None:
            self._ends.save(end.owner, key, end)

    def find(self, key: str) -> HistoryEnd | None:
        """In memory alone."""
        return self._make_end(key)

    async def load_first(self, owner: str, keys: Sequence[str]) -> HistoryEnd | None:
        """The first of these that the store has."""
        found = await self._ends.load_first(owner, keys)
        return found[1] if found is not None else None

    def _make_end(self, key: str, most: int | None = None) -> HistoryEnd | None:
        requests = [self._newest.get(branch) for branch in self._branches.get(key, ())]
        known = [request for request in requests if request is not None]
        if not known:
            return None
        newest = known[-1]
        end = make_history_end(newest.owner, key, newest.conversation, most)
        is_crowded = any(each.conversation.key != newest.conversation.key for each in known)
        return replace(end, is_crowded=is_crowded)

    def _drop(self, gone: _LastRequest) -> None:
        left = tuple([branch for branch in self._branches.get(gone.key, ()) if branch != gone.branch])
        if left:
            self._branches[gone.key] = left
        else:
            self._branches.pop(gone.key, None)


def _weigh(conversation: Conversation) -> int:
    received = (
        len(conversation.trim.positions) if conversation.trim is not None else len(conversation.messages)
    )
    gone = len(conversation.messages) - received
    return _REQUEST_WEIGHT_BYTES + _MESSAGE_WEIGHT_BYTES * received + GONE_WEIGHT_BYTES * gone
