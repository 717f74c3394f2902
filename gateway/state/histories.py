"""How answered requests ended, by which a history is recognized after its client has dropped parts of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gateway.core.history.conversation import GONE_WEIGHT_BYTES, Conversation
from gateway.core.history.trimmed import STORED_MESSAGES, HistoryEnd, make_history_end
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.record_cache import RecordStore, Storage

# The newest request of each branch, some fifty thousand messages. Most of it is also kept with the bodies.
_NEWEST_BYTES: Final = 24 << 20
_REQUEST_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 400
# The facts of a message, a place and a chain link.
_MESSAGE_WEIGHT_BYTES: Final = 520


class _LastRequest(NamedTuple):
    owner: str
    conversation: Conversation
    # Another history had the same key.
    is_crowded: bool


class Histories:
    def __init__(self, storage: Storage) -> None:
        self._newest: Lru[str, _LastRequest] = Lru(_NEWEST_BYTES)
        self._ends = RecordStore(HistoryEnd, "history", storage)

    def record(self, owner: str, key: str, conversation: Conversation, previous: str | None) -> None:
        """In memory. previous: the key of the request that this one continues, which it replaces."""
        if previous is not None and previous != key:
            self._newest.pop(previous)
        known = self._newest.get(key)
        is_crowded = known is not None and (known.is_crowded or known.conversation.key != conversation.key)
        received = len(conversation.received)
        gone = len(conversation.messages) - received
        weight_bytes = _REQUEST_WEIGHT_BYTES + _MESSAGE_WEIGHT_BYTES * received + GONE_WEIGHT_BYTES * gone
        self._newest.put(key, _LastRequest(owner, conversation, is_crowded), weight_bytes)

    def save(self, key: str) -> None:
        """Saves what memory has at this key, so that it survives a restart."""
        newest = self._newest.peek(key)
        if newest is not None:
            end = make_history_end(newest.owner, key, newest.conversation, STORED_MESSAGES)
            self._ends.save(newest.owner, key, replace(end, is_crowded=newest.is_crowded))

    def find(self, key: str) -> HistoryEnd | None:
        """In memory alone."""
        newest = self._newest.get(key)
        if newest is None:
            return None
        end = make_history_end(newest.owner, key, newest.conversation)
        return replace(end, is_crowded=newest.is_crowded)

    async def load_first(self, owner: str, keys: Sequence[str]) -> HistoryEnd | None:
        """The first of these that the store has."""
        found = await self._ends.load_first(owner, keys)
        return found[1] if found is not None else None
