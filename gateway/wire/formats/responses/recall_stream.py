"""Responses: the streams of one turn as one stream, without the calls of the gateway's tool.

Items of the tool are taken out, and the events behind them are numbered on. Of several responses the client
sees one beginning, the first, and one end: the last, with the items of all of them. Until then events keep
their bytes, but for the list of tools that a response repeats.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.core.history.recall import ReplyMark
from gateway.wire.body import JSON_ERRORS, Slice, place_fields
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.responses.recall_items import (
    ITEM_ERRORS,
    ReplyItems,
    is_recall,
    list_output,
    make_response_edits,
    parse_item,
)
from gateway.wire.raw_json import decode_with_halves
from gateway.wire.recall import RECALL_TOOL, RecallRequest
from gateway.wire.response.held_events import HeldEvents
from gateway.wire.response.raw_events import RawEvent, RawEventSplitter, is_closed, on_one_line, with_data
from gateway.wire.sse import SseEvent

# A million tokens, more than any reply. Of a longer one no call is followed.
_MAX_BYTES: Final = 4 * 1024 * 1024
_BEGINNINGS: Final = ("response.created", "response.queued", "response.in_progress")
_COMPLETED: Final = "response.completed"
_ENDS: Final = (_COMPLETED, "response.incomplete", "response.failed", "response.cancelled")
_ADDED: Final = "response.output_item.added"
_DONE: Final = "response.output_item.done"
_RECALL_BYTES: Final = RECALL_TOOL.encode()


class _NumberedEvent(msgspec.Struct, gc=False):
    type: str = ""
    sequence_number: int | None = None
    output_index: int | None = None
    item_id: str | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()


class _NamedItem(msgspec.Struct, gc=False):
    id: str | None = None


_decode_numbered = msgspec.json.Decoder(_NumberedEvent).decode
_decode_named = msgspec.json.Decoder(_NamedItem).decode


class ResponsesStreamStitcher:
    """See ReplyStitcher."""

    def __init__(self) -> None:
        self._turn = ReplyItems()
        # The raw id of the first response.
        self._name: bytes | None = None
        self._has_started = self.has_shown = False
        # From here on events are numbered anew.
        self._is_touched = False
        self._next_sequence = self._next_output = 0
        self._room = _MAX_BYTES
        # Something was shown that cannot be told to the model. From here on no call is followed.
        self._has_failed = False
        self._begin()

    def _begin(self) -> None:
        """Another response."""
        self._events = RawEventSplitter()
        self._is_follower = self._has_started
        self._is_touched = self._is_touched or self._is_follower
        self._before = list(self._turn.raws)
        self._is_over = False
        # Its items, and the indexes of those that have begun, by the upstream's index.
        self._items: dict[int, bytes] = {}
        self._shown_indexes: dict[int, int] = {}
        # The indexes and ids of calls of the tool.
        self._hidden: set[int] = set()
        self._hidden_ids: set[str] = set()
        self._end_event: _NumberedEvent | None = None
        # From the event that ends the response.
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
            if self._room < 0:
                raise ValueError("too large")
            request = self._turn.add(self._list_items(), self._is_whole())
        except ITEM_ERRORS:
            self._has_failed = True
        return request if not self._has_failed else None

    def finish(self) -> bytes:
        return b"".join(map(self._render_held, self._held))

    def _is_whole(self) -> bool:
        begun = self._hidden | self._shown_indexes.keys()
        is_completed = self._end_event is not None and self._end_event.type == _COMPLETED
        return is_completed and begun <= self._items.keys()

    def _is_torn(self, raw: RawEvent) -> bool:
        """Whether the last event is the beginning of one that the client must not see."""
        has_open = not self._hidden <= self._items.keys()
        return (has_open or _RECALL_BYTES in raw.raw) and _parse(raw.event) is None

    def _list_items(self) -> list[bytes]:
        """Raises Unreadable."""
        if not self._items and self._end_event is not None and self._end_event.response:
            # Some servers have no events for items.
            return list_output(bytes(self._end_event.response))
        return [self._items[index] for index in sorted(self._items)]

    def _take(self, raw: RawEvent) -> bytes:
        """What the client may see of an event now."""
        event = _parse(raw.event)
        if self._held.has_begun or (event is not None and event.type in _ENDS):
            self._end_event = self._end_event or event
            return self._hold(raw)
        if event is None:
            return raw.raw
        self._room -= len(raw.raw)
        if event.type in _BEGINNINGS:
            self._has_started = True
            self._name = self._name or _find_name(bytes(event.response))
            return b"" if self._is_follower else self._render(raw, event)
        if self._is_hidden(event):
            self._is_touched = True
            self._collect(event)
            return b""
        self._collect(event)
        self.has_shown = self.has_shown or event.output_index is not None
        return self._render(raw, event)

    def _hold(self, raw: RawEvent) -> bytes:
        if self._held.hold(raw, len(raw.raw)):
            return b""
        self._has_failed = self.has_shown = True
        shown = self.finish()
        self._held.clear()
        return shown

    def _is_hidden(self, event: _NumberedEvent) -> bool:
        if event.type in (_ADDED, _DONE) and _is_recall(event.item) and event.output_index is not None:
            self._hidden.add(event.output_index)
            self._hidden_ids |= _find_ids(event.item)
        return event.output_index in self._hidden or event.item_id in self._hidden_ids

    def _collect(self, event: _NumberedEvent) -> None:
        """Nothing is collected of a reply that is too long."""
        if event.type == _DONE and event.output_index is not None and self._room >= 0:
            self._has_failed = self._has_failed or event.output_index in self._items
            self._items[event.output_index] = bytes(event.item)

    def _find_index(self, index: int) -> int:
        """An item's index in the reply that the client sees."""
        if index not in self._shown_indexes:
            self._shown_indexes[index] = self._next_output if self._is_touched else index
            self._next_output = self._shown_indexes[index] + 1
        return self._shown_indexes[index]

    def _render_held(self, raw: RawEvent) -> bytes:
        event = _parse(raw.event)
        return raw.raw if event is None else self._render(raw, event)

    def _render(self, raw: RawEvent, event: _NumberedEvent) -> bytes:
        """The event as the client sees it, numbered."""
        data = on_one_line(raw.event)
        index = self._find_index(event.output_index) if event.output_index is not None else None
        if not self._is_touched:
            self._next_sequence = (event.sequence_number or 0) + 1
            if _RECALL_BYTES not in bytes(event.response):
                return raw.raw
        try:
            edits = list(self._make_edits(data, place_fields(data), event, index))
        except ITEM_ERRORS:
            return raw.raw
        return with_data(raw.raw, apply_edits(data, edits)) if edits else raw.raw

    def _make_edits(
        self, data: bytes, places: dict[str, Slice], event: _NumberedEvent, index: int | None
    ) -> Iterator[Edit]:
        """Raises ITEM_ERRORS."""
        if self._is_touched and event.sequence_number is not None:
            yield _replace(places["sequence_number"], b"%d" % self._next_sequence)
            self._next_sequence += 1
        if index is not None:
            yield _replace(places["output_index"], b"%d" % index)
        if not event.response:
            return
        start = places["response"].start
        is_without_output = event.type in _ENDS and bool(self._items) and not _has_output(event.response)
        name = self._name if self._is_follower else None
        before = [] if is_without_output else self._before
        for edit in make_response_edits(bytes(event.response), name, before):
            yield Edit(start + edit.start, start + edit.end, edit.new)


def _replace(place: Slice, new: bytes) -> Edit:
    return Edit(place.start, place.end, new)


def _parse(event: SseEvent | None) -> _NumberedEvent | None:
    """None for what is no event of this API."""
    return decode_with_halves(_decode_numbered, event.data, ("item", "response")) if event else None


def _is_recall(item: msgspec.Raw) -> bool:
    try:
        return _RECALL_BYTES in bytes(item) and is_recall(parse_item(bytes(item)))
    except ITEM_ERRORS:
        return False


def _find_ids(item: msgspec.Raw) -> set[str]:
    try:
        name = _decode_named(item).id
    except JSON_ERRORS:
        return set()
    return {name} if name else set()


def _find_name(response: bytes) -> bytes | None:
    try:
        place = place_fields(response)["id"]
    except ITEM_ERRORS:
        return None
    return response[place.start : place.end]


def _has_output(response: msgspec.Raw) -> bool:
    return bool(list_output(bytes(response)))
