"""Responses: requests that name what upstream keeps, and the answers that can be named.

`previous_response_id` stands for all that led to an answer, `item_reference` for one item. Knows how to write
them out; what they stand for is remembered elsewhere.
"""

from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.wire.body import Fields, Slice, split_fields_or_text
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.responses.items import decode_items, read_kind
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import Expanded, StoredHistory, StoredNames, StoredResponse

_PREVIOUS: Final = "previous_response_id"
_SPACES: Final = b" \t\r\n"
# A million tokens: more than any reply. An answer beyond it is not remembered.
_MOST_BYTES: Final = 4 * 1024 * 1024
_MARKS: Final = (b"response.output_item.done", b"response.completed", b"response.incomplete")
_WHOLE: Final = ("response.completed", "response.incomplete")


class _Named(msgspec.Struct, gc=False):
    id: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str
    status: str | None = None
    output: list[msgspec.Raw] = []


class _Event(msgspec.Struct, gc=False):
    """Of a stream; or a whole body, which is a response itself."""

    type: str = ""
    item: msgspec.Raw = msgspec.Raw()
    response: _Response | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_named = msgspec.json.Decoder(_Named).decode


def expand(data: bytes, names: StoredNames) -> Expanded | None:
    """The body with all names written out. None where upstream keeps more than is known here
    (`conversation`).
    """
    try:
        return _expand(data, names)
    except (Unreadable, ValueError, RecursionError):
        return None


def _expand(data: bytes, names: StoredNames) -> Expanded | None:
    fields = split_fields_or_text(data, "input")
    if fields.values.get("conversation", b"null") != b"null":
        return None
    own = [_write_out(data[place.start : place.end], names) for place in fields.items]
    added = [raw for raw in own if raw is not None]
    previous = msgspec.json.decode(fields.values.get(_PREVIOUS, b"null"), type=str | None)
    before = names.find_response(previous) if previous is not None else []
    if before is None or len(added) < len(own):
        return None
    brought = b'{"input":%s}' % _render_items(added)
    if previous is not None:
        return Expanded(apply_edits(data, _replace_input(data, fields, [*before, *added])), previous, brought)
    edits = [
        Edit(place.start, place.end, raw)
        for place, raw in zip(fields.items, added, strict=True)
        if not data.startswith(raw, place.start)
    ]
    return Expanded(apply_edits(data, edits), None, brought)


def may_be_reference(raw: bytes) -> bool:
    return b'"item_reference"' in raw


def _write_out(raw: bytes, names: StoredNames) -> bytes | None:
    """The item itself; what a reference stands for; None where that is unknown."""
    if not may_be_reference(raw):
        return raw
    item = decode_items(raw)[0]
    if read_kind(item) != "item_reference":
        return raw
    name = item.get("id")
    return names.find_item(name) if isinstance(name, str) else None


def list_items(own: bytes) -> list[bytes]:
    """What a request brought. Its body was split before."""
    fields = split_fields_or_text(own, "input")
    return [_as_item(own[place.start : place.end]) for place in fields.items]


def _as_item(raw: bytes) -> bytes:
    """A string is a message of the user's."""
    return b'{"role":"user","content":%s}' % raw if raw.startswith(b'"') else raw


def _render_items(items: list[bytes]) -> bytes:
    return b"[" + b",".join(map(_as_item, items)) + b"]"


def _replace_input(data: bytes, fields: Fields, items: list[bytes]) -> list[Edit]:
    """All items in place of those that came, and no name any more."""
    array = fields.places["input"]
    return [Edit(array.start, array.end, _render_items(items)), _take_out(data, fields.places[_PREVIOUS])]


def _take_out(data: bytes, value: Slice) -> Edit:
    """A field with its key and one comma. Raises ValueError for a key that is written with escapes."""
    key = b'"%s"' % _PREVIOUS.encode()
    start = data.rindex(key, 0, value.start)
    if data[start + len(key) : value.start].strip(_SPACES) != b":":
        raise ValueError("these words stand elsewhere, too")
    end = value.end
    while data[end] in _SPACES:
        end += 1
    if data[end : end + 1] == b",":
        return Edit(start, end + 1, b"")
    before = data[:start].rstrip(_SPACES)
    return Edit(len(before) - before.endswith(b","), value.end, b"")


class ResponseItems:
    """Streamed: the items as each is done. Whole: all of them."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._room = _MOST_BYTES

    def feed(self, event: SseEvent) -> StoredResponse | None:
        if self._room < 0 or (event.name and not any(mark in event.data for mark in _MARKS)):
            return None
        try:
            return self._take(event)
        except (ValueError, RecursionError):
            return None

    def _take(self, event: SseEvent) -> StoredResponse | None:
        read = _decode_event(event.data)
        if read.type == "response.output_item.done" and len(read.item):
            self._room -= len(read.item)
            self._items.append(bytes(read.item))
            return None
        response = (
            read.response if read.type in _WHOLE else None if read.type else _decode_response(event.data)
        )
        if response is None or (not read.type and response.status not in ("completed", "incomplete")):
            return None
        items = self._items or [bytes(item) for item in response.output]
        names = [_decode_named(item).id for item in items]
        self._items = []
        return StoredResponse(response.id, tuple(items), tuple(names))


STORED_HISTORY: Final = StoredHistory(
    expand=expand, list_items=list_items, collect=ResponseItems, may_be_name=may_be_reference
)
