"""Where the recalls in use stand in a request. What was found for the same messages is remembered.

May be used from several threads.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final

from gateway.conversations.recognizer import Received
from gateway.core.history.conversation import find_reply_end
from gateway.core.history.recall import Recall
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.insertions import Placed, find_placed

# Of some thousand recalls.
_MAX_BYTES: Final = 8 << 20
_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 400

# The recall, and each of its messages: the key of its bytes, or those that are sent instead.
_Key = tuple[str, tuple[bytes, ...]]


class RecallPlaces:
    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._found: Lru[_Key, tuple[tuple[Placed, ...] | None]] = Lru(max_bytes)
        self._lock = Lock()

    def clear(self) -> None:
        """What was found is found again."""
        with self._lock:
            self._found.clear()

    def has_place(self, received: Received, recall: Recall) -> bool:
        """Whether it belongs into this request: the reply is the one that its client was shown."""
        return self._find(received, recall, {}) is not None

    def make_edits(
        self, received: Received, recalls: Sequence[Recall], rendered: Mapping[int, bytes]
    ) -> tuple[list[Edit], dict[int, bytes]]:
        """Edits of the received body, and the rendered messages with what is inserted into them.

        rendered: messages that are sent in other bytes than they were received, by position.
        """
        edits: list[Edit] = []
        sent = dict(rendered)
        for recall in recalls:
            inside: dict[int, list[Edit]] = {}
            positions = _list_positions(received, recall)
            for message, offset, new in self._find(received, recall, sent) or ():
                position = positions[message]
                place = received.body.places[_index(received, position)]
                shown = sent.get(position)
                if shown is not None and 0 < offset < len(shown):
                    inside.setdefault(position, []).append(Edit(offset, offset, new))
                else:
                    is_behind = shown is not None and offset > 0
                    at = place.end if is_behind else place.start + offset
                    edits.append(Edit(at, at, new))
            for position, own in inside.items():
                sent[position] = apply_edits(sent[position], own)
        return edits, sent

    def render(
        self, received: Received, recalls: Sequence[Recall], rendered: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """The messages that something is inserted around, or into, as they are sent; JSON values separated by
        commas, by position.
        """
        edits, sent = self.make_edits(received, recalls, rendered)
        shown = {position: sent[position] for position in sent if sent[position] != rendered[position]}
        for position in {position for recall in recalls for position in _list_positions(received, recall)}:
            place = received.body.places[_index(received, position)]
            raw = sent.get(position, received.raw(position))
            own = [
                Edit(len(raw) if edit.start == place.end else edit.start - place.start, 0, edit.new)
                for edit in edits
                if place.start <= edit.start <= place.end
            ]
            if own:
                shown[position] = apply_edits(raw, [edit._replace(end=edit.start) for edit in own])
        return shown

    def _find(
        self, received: Received, recall: Recall, sent: Mapping[int, bytes]
    ) -> tuple[Placed, ...] | None:
        syntax, conversation = received.format.recall, received.conversation
        positions = _list_positions(received, recall)
        if syntax is None or not positions:
            return None
        messages = conversation.messages
        parts = tuple([sent.get(position, messages[position].key) for position in positions])
        with self._lock:
            known = self._found.get((recall.key, parts))
        if known is None:
            raws = [sent.get(position) or received.raw(position) for position in positions]
            reply_end = find_reply_end(conversation, recall.position)
            replies = sum(position < reply_end for position in positions)
            known = (find_placed(syntax, received.body, raws, replies, recall),)
            weight = _WEIGHT_BYTES + sum(map(len, parts)) + sum(len(each.new) for each in known[0] or ())
            with self._lock:
                self._found.put((recall.key, parts), known, weight)
        return known[0]


def _list_positions(received: Received, recall: Recall) -> list[int]:
    """Of the messages that it may stand in: those of the reply and the one behind, as far as they came."""
    conversation = received.conversation
    end = min(find_reply_end(conversation, recall.position) + 1, len(conversation.messages))
    return [position for position in range(recall.position, end) if not conversation.is_gone(position)]


def _index(received: Received, position: int) -> int:
    conversation = received.conversation
    return len(conversation.leading) + conversation.index(position)
