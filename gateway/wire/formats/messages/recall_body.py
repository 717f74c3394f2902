"""Messages: the responses of one turn that are not streamed as one response, without the calls of the
gateway's tool.
"""

from typing import NamedTuple

import msgspec

from gateway.core.history.recall import ReplyMark
from gateway.wire.body import Slice, place_fields, place_items
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.messages.recall_reply import (
    BLOCK_ERRORS,
    ReplyBlocks,
    is_call,
    is_recall,
    parse_block,
)
from gateway.wire.recall import RecallRequest
from gateway.wire.response.held_body import HeldBody


class _ReadBody(NamedTuple):
    data: bytes
    places: dict[str, Slice]
    # Its content.
    blocks: list[bytes]

    def parse(self, key: str) -> object:
        """The value of a field; None if it is missing."""
        place = self.places.get(key)
        return msgspec.json.decode(self.data[place.start : place.end]) if place is not None else None


class MessagesBodyStitcher:
    """See ReplyStitcher."""

    def __init__(self) -> None:
        self._turn = ReplyBlocks()
        # The raw id of the first response.
        self._name: bytes | None = None
        # Blocks that are shown of the responses before this one; None if it is the first.
        self._before: list[bytes] | None = None
        self._held = HeldBody()
        self._body: _ReadBody | None = None

    @property
    def reply(self) -> ReplyMark:
        return self._turn.mark

    @property
    def has_shown(self) -> bool:
        return self._held.is_passing

    def feed(self, piece: bytes) -> bytes:
        return self._held.feed(piece)

    def end(self) -> RecallRequest | None:
        data = self._held.end()
        if self._name is not None:
            self._before = list(self._turn.raws)
        self._body = body = _read(data) if data is not None else None
        if body is None:
            return None
        name = body.places.get("id")
        if self._name is None:
            self._name = body.data[name.start : name.end] if name is not None else b""
        try:
            return self._turn.add(body.blocks, body.parse("stop_reason"))
        except BLOCK_ERRORS:
            self._body = None
            return None

    def finish(self) -> bytes:
        body = self._body
        if body is None:
            return self._held.data
        blocks = [(raw, parse_block(raw)) for raw in body.blocks]
        kept = [(raw, block) for raw, block in blocks if not is_recall(block)]
        has_hidden = len(kept) < len(blocks)
        if not has_hidden and self._before is None:
            return body.data
        shown = [*(self._before or ()), *(raw for raw, _ in kept)]
        edits = [_replace(body, "content", b"[%s]" % b",".join(shown))]
        if self._name and "id" in body.places:
            edits.append(_replace(body, "id", self._name))
        has_call = any(is_call(block) for _, block in kept)
        if has_hidden and not has_call and body.parse("stop_reason") == "tool_use":
            edits.append(_replace(body, "stop_reason", b'"end_turn"'))
        return apply_edits(body.data, edits)


def _replace(body: _ReadBody, key: str, new: bytes) -> Edit:
    place = body.places[key]
    return Edit(place.start, place.end, new)


def _read(data: bytes) -> _ReadBody | None:
    """None for what is no message."""
    try:
        places = place_fields(data)
        content = places["content"]
        array = data[content.start : content.end]
        blocks = [array[place.start : place.end] for place in place_items(array)]
        body = _ReadBody(data, places, blocks)
        return body if body.parse("type") == "message" else None
    except BLOCK_ERRORS:
        return None
