"""Messages: the streams of one turn as one stream, without the calls of the gateway's tool.

Blocks of the tool are taken out, the blocks behind them are numbered on, and of several responses the client
sees one `message_start`, the first, and one end, the last. All other events keep their bytes.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.core.history.recall import ReplyMark
from gateway.wire.body import JSON_ERRORS, place_fields
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.messages.message_collector import BlockDelta, GrowingBlock
from gateway.wire.formats.messages.recall_reply import BLOCK_ERRORS, ReplyBlocks
from gateway.wire.raw_json import decode_object, decode_with_halves
from gateway.wire.recall import RECALL_TOOL, RecallRequest
from gateway.wire.response.held_events import HeldEvents
from gateway.wire.response.raw_events import RawEvent, RawEventSplitter, is_closed, on_one_line, with_data
from gateway.wire.sse import SseEvent

# A million tokens, more than any reply. Of a longer one no call is followed.
_MAX_BYTES: Final = 4 * 1024 * 1024
_END_EVENTS: Final = ("message_delta", "message_stop")
_RECALL_BYTES: Final = RECALL_TOOL.encode()


class _BlockStart(msgspec.Struct, gc=False):
    type: str = ""
    name: str | None = None


class _StreamedEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int = -1
    content_block: msgspec.Raw = msgspec.Raw()
    delta: msgspec.Raw = msgspec.Raw()


class _EndDelta(msgspec.Struct, gc=False):
    stop_reason: str | None = None


_decode_streamed = msgspec.json.Decoder(_StreamedEvent).decode
_decode_start = msgspec.json.Decoder(_BlockStart).decode
_decode_delta = msgspec.json.Decoder(BlockDelta).decode
_decode_end = msgspec.json.Decoder(_EndDelta).decode


@dataclass(slots=True)
class _StreamedBlock:
    """begun: as it started. growing: None if it is not understood. shown_index: None for a recall."""

    begun: bytes
    kind: str
    growing: GrowingBlock | None
    shown_index: int | None
    is_closed: bool = False

    def render(self) -> bytes:
        """Raises ValueError if it is not understood, or not complete."""
        if self.growing is None:
            raise ValueError("a block that is not understood")
        try:
            return self.growing.render()
        except ValueError:
            if self.shown_index is not None or not self.is_closed:
                raise
            # Arguments that are not JSON. The model is told so.
            return self.begun


class MessagesStreamStitcher:
    """See ReplyStitcher."""

    def __init__(self) -> None:
        self._turn = ReplyBlocks()
        self._has_started = self.has_shown = False
        # The index of the next block that is shown.
        self._next_index = 0
        self._room = _MAX_BYTES
        # Something was shown that cannot be told to the model. From here on no call is followed.
        self._has_failed = False
        self._begin()

    def _begin(self) -> None:
        """Another response."""
        self._events = RawEventSplitter()
        self._is_follower = self._has_started
        self._is_over = self._is_complete = False
        self._stop_reason: str | None = None
        self._blocks: dict[int, _StreamedBlock] = {}
        # From the first event that ends the response.
        self._held = HeldEvents[RawEvent]()

    @property
    def reply(self) -> ReplyMark:
        return self._turn.mark

    def feed(self, piece: bytes) -> bytes:
        if self._is_over:
            self._begin()
        return b"".join(map(self._take, self._events.feed(piece)))

    def end(self) -> RecallRequest | None:
        if self._is_over:
            self._begin()
        self._is_over = True
        for raw in self._events.finish():
            if is_closed(raw.raw) or not self._is_torn(raw):
                self._held.append(RawEvent(self._take(raw), None))
        try:
            request = self._turn.add(self._render_blocks(), self._stop_reason if self._is_whole() else None)
        except BLOCK_ERRORS:
            self._has_failed = True
        return request if not self._has_failed else None

    def finish(self) -> bytes:
        has_hidden = any(block.shown_index is None for block in self._blocks.values())
        has_call = any(
            block.shown_index is not None and block.kind == "tool_use" for block in self._blocks.values()
        )
        ends_without_call = has_hidden and not has_call and self._stop_reason == "tool_use"
        return b"".join(_with_end(raw) if ends_without_call else raw.raw for raw in self._held)

    def _is_whole(self) -> bool:
        return self._is_complete and all(block.is_closed for block in self._blocks.values())

    def _is_torn(self, raw: RawEvent) -> bool:
        """Whether the last event is the beginning of one that the client must not see."""
        has_open = any(block.shown_index is None and not block.is_closed for block in self._blocks.values())
        return (has_open or _RECALL_BYTES in raw.raw) and _parse(raw.event) is None

    def _render_blocks(self) -> list[bytes]:
        """All blocks, without those that broke off. Raises BLOCK_ERRORS for one that is not understood."""
        if self._room < 0:
            raise ValueError("too large")
        blocks = self._blocks.values()
        return [block.render() for block in blocks if block.is_closed or block.kind == "text"]

    def _take(self, raw: RawEvent) -> bytes:
        """What the client may see of an event now."""
        event = _parse(raw.event)
        if self._held.has_begun or (event is not None and event.type in _END_EVENTS):
            self._note_end(event)
            return self._hold(raw)
        if event is None:
            self._has_failed = self._has_failed or (raw.event is not None and b"content_block" in raw.raw)
            return raw.raw
        self._room -= len(raw.raw)
        if event.type == "message_start":
            self._has_started = True
            return b"" if self._is_follower else raw.raw
        return self._take_block_event(raw, event) if event.index >= 0 else raw.raw

    def _hold(self, raw: RawEvent) -> bytes:
        if self._held.hold(raw, len(raw.raw)):
            return b""
        self._has_failed = self.has_shown = True
        shown = self.finish()
        self._held.clear()
        return shown

    def _note_end(self, event: _StreamedEvent | None) -> None:
        if event is None:
            return
        self._is_complete = self._is_complete or event.type == "message_stop"
        if event.type == "message_delta" and (reason := _find_stop_reason(event.delta)) is not None:
            self._stop_reason = reason

    def _take_block_event(self, raw: RawEvent, event: _StreamedEvent) -> bytes:
        if event.type == "content_block_start":
            self._open(event)
        block = self._blocks.get(event.index)
        if block is None:
            return raw.raw
        if event.type == "content_block_delta":
            self._grow(block, event)
        block.is_closed = block.is_closed or event.type == "content_block_stop"
        if block.shown_index is None:
            return b""
        self.has_shown = True
        return raw.raw if block.shown_index == event.index else _with_index(raw, block.shown_index)

    def _open(self, event: _StreamedEvent) -> None:
        start = _find_start(event.content_block)
        shown_index = None
        if (start.type, start.name) != ("tool_use", RECALL_TOOL):
            is_first = not self._is_follower and all(b.shown_index == i for i, b in self._blocks.items())
            shown_index = event.index if is_first else self._next_index
            self._next_index = shown_index + 1
        try:
            growing = GrowingBlock(event.content_block)
        except BLOCK_ERRORS:
            growing = None
        begun = bytes(event.content_block)
        self._has_failed = self._has_failed or event.index in self._blocks
        self._blocks[event.index] = _StreamedBlock(begun, start.type, growing, shown_index)

    def _grow(self, block: _StreamedBlock, event: _StreamedEvent) -> None:
        """Nothing is collected of a reply that is too long."""
        if block.growing is None or self._room < 0:
            return
        try:
            block.growing.add(_parse_delta(event.delta))
        except BLOCK_ERRORS:
            block.growing = None


def _parse(event: SseEvent | None) -> _StreamedEvent | None:
    """None for what is no event of this API."""
    return decode_with_halves(_decode_streamed, event.data, ("content_block", "delta")) if event else None


def _find_start(block: msgspec.Raw) -> _BlockStart:
    try:
        return _decode_start(block)
    except JSON_ERRORS:
        return _BlockStart()


def _parse_delta(delta: msgspec.Raw) -> BlockDelta:
    """Raises BLOCK_ERRORS."""
    try:
        return _decode_delta(delta)
    except JSON_ERRORS:
        # Halves of surrogate pairs: this library refuses them in JSON, but not in values.
        return msgspec.convert(decode_object(bytes(delta)), BlockDelta)


def _find_stop_reason(delta: msgspec.Raw) -> str | None:
    try:
        return _decode_end(delta).stop_reason
    except JSON_ERRORS:
        return None


def _with_index(raw: RawEvent, index: int) -> bytes:
    data = on_one_line(raw.event)
    try:
        place = place_fields(data)["index"]
    except BLOCK_ERRORS:
        return raw.raw
    return with_data(raw.raw, apply_edits(data, [Edit(place.start, place.end, b"%d" % index)]))


def _with_end(raw: RawEvent) -> bytes:
    """The event that tells why a reply ended, as for a reply that calls nothing."""
    event = _parse(raw.event)
    if raw.event is None or event is None or event.type != "message_delta":
        return raw.raw
    data = on_one_line(raw.event)
    try:
        delta = place_fields(data)["delta"]
        place = place_fields(data[delta.start : delta.end])["stop_reason"]
    except BLOCK_ERRORS:
        return raw.raw
    edit = Edit(delta.start + place.start, delta.start + place.end, b'"end_turn"')
    return with_data(raw.raw, apply_edits(data, [edit]))
