"""Responses: requests that name what the upstream stores, and the responses that they can name.

`previous_response_id` stands for the history up to a response, `item_reference` for one item. This module
replaces names by what they stand for; `conversations.stored_responses` remembers that.

Where one key serves all tenants, a name is a way to what another tenant stored. So the names are read with
suspicion: a body that cannot be read here must not be one that the upstream reads.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.wire.body import (
    JSON_ERRORS,
    BodyBounds,
    Fields,
    Slice,
    mend_surrogates,
    read_or_none,
    skip_spaces,
    split_fields_or_text,
)
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.references import Expanded, StoredHistory, StoredNames, StoredResponse, UsedNames
from gateway.wire.responses import kind_of, parse_items
from gateway.wire.sse import SseEvent

_PREVIOUS: Final = "previous_response_id"
_CONVERSATION: Final = "conversation"
_REFERENCE: Final = "item_reference"
# A body without names holds none of this: the words, an id, a letter of them written as an escape, or the NUL
# bytes of another encoding than UTF-8. No serializer escapes ASCII letters.
_SUSPICIOUS: Final = re.compile(
    rb"\0|previous_response_id|conversation|item_reference|\"id\"\s*+:|\\u00(?:4[1-9a-f]|5[0-9af]|6|7[0-9a])",
    re.IGNORECASE,
)
_NAMING_EVENTS: Final = ("response.created", "response.output_item.added", "response.output_item.done")


class _Item(msgspec.Struct, gc=False):
    id: str | None = None


class _NamedResponse(msgspec.Struct, gc=False):
    id: str | None = None
    output: list[_Item] = []


class _NamingEvent(msgspec.Struct, gc=False):
    """An event of a stream, or a whole body, which is a response itself."""

    type: str = ""
    item: _Item | None = None
    response: _NamedResponse | None = None
    id: str | None = None
    output: list[_Item] = []


_decode_input = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
# Values that say nothing, without the spaces in them.
_NOTHING: Final = frozenset({b"null", b"[]", b"{}", b'""'})
# The fields of an item that only names what is stored.
_NAMING_FIELDS: Final = frozenset({"id", "type", "status"})
_decode_naming_event = msgspec.json.Decoder(_NamingEvent).decode


def find_used_names(body: bytes, bounds: BodyBounds) -> set[str]:
    """Each stored thing that a request names, as its path: `responses/ID`, also for items, or
    `conversations/ID`.

    Raises Unreadable for a body that may name one in a way that is not understood, or beyond the bounds.
    """
    try:
        return _find_used_names(body, bounds)
    except (Unreadable, *JSON_ERRORS) as error:
        if _SUSPICIOUS.search(body) is None:
            return set()
        raise Unreadable("the body may name something stored") from error


def _find_used_names(body: bytes, bounds: BodyBounds) -> set[str]:
    fields = split_fields_or_text(body, "input", bounds)
    responses: list[object] = []
    conversations: list[object] = []
    for key, raw in fields.values.items():
        # Some servers take keys in any case.
        if key.lower() == _PREVIOUS:
            responses.append(msgspec.json.decode(raw))
        elif key.lower() == _CONVERSATION:
            value = msgspec.json.decode(raw)
            conversations.append(value.get("id") if isinstance(value, dict) else value)
    place = fields.places["input"]
    array = body[place.start : place.end]
    if not array.startswith(b'"'):
        references = filter(_is_reference, _decode_input(mend_surrogates(array)))
        responses += [_parse_field(item, "id") for item in references]
    return {*_make_paths("responses", responses), *_make_paths("conversations", conversations)}


def _make_paths(kind: str, names: list[object]) -> Iterator[str]:
    for name in names:
        if name is not None and not isinstance(name, str):
            raise Unreadable("a name that is not text")
        if name is not None:
            yield f"{kind}/{name}"


def _is_reference(item: dict[str, msgspec.Raw]) -> bool:
    """The type of a reference may be left out. Any other item that holds nothing but an id stands for what is
    stored under it, too: an image, or what the model has thought.
    """
    if "id" not in item:
        return False
    kind = _parse_field(item, "type")
    if kind == _REFERENCE or (kind is None and _parse_field(item, "role") is None):
        return True
    return all(key in _NAMING_FIELDS or _is_nothing(raw) for key, raw in item.items())


def _is_nothing(raw: msgspec.Raw) -> bool:
    return bytes(raw).translate(None, b" \t\r\n") in _NOTHING


def _parse_field(item: dict[str, msgspec.Raw], key: str) -> object:
    return msgspec.json.decode(item[key]) if key in item else None


def find_given_names(event: SseEvent) -> set[str]:
    """The response and the items that an event of a response names. Never raises.

    The first event names the response, so a response that is broken off has an owner, too.
    """
    if event.name.startswith("response.") and event.name not in _NAMING_EVENTS:
        return set()
    try:
        parsed = _decode_naming_event(event.data)
    except JSON_ERRORS:
        return set()
    response = parsed.response or _NamedResponse()
    found = {response.id, *(output.id for output in (*response.output, *parsed.output))}
    found.add(parsed.item.id if parsed.item is not None else None)
    if not parsed.type:
        found.add(parsed.id)
    return {name for name in found if name}


_SPACES: Final = b" \t\r\n"
# A million tokens, more than any reply. A larger response is not collected.
_MAX_BYTES: Final = 4 * 1024 * 1024
_COLLECTED_EVENTS: Final = (b"response.output_item.done", b"response.completed", b"response.incomplete")
_FINAL_EVENTS: Final = ("response.completed", "response.incomplete")


class _Response(msgspec.Struct, gc=False):
    id: str
    status: str | None = None
    output: msgspec.Raw = msgspec.Raw(b"[]")


class _Event(msgspec.Struct, gc=False):
    """An event of a stream, or a whole body, which is a response itself and has no type."""

    type: str = ""
    item: msgspec.Raw = msgspec.Raw()
    response: _Response | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_item = msgspec.json.Decoder(_Item).decode


def find_names(data: bytes) -> UsedNames | None:
    """The names in a body. None if it is not understood, or if it names a `conversation`."""
    return read_or_none(_find_names, data)


def _find_names(data: bytes) -> UsedNames | None:
    fields = split_fields_or_text(data, "input")
    if fields.values.get("conversation", b"null") != b"null":
        return None
    previous = _parse_previous(fields)
    raws = [data[place.start : place.end] for place in fields.items]
    return UsedNames(previous, tuple(filter(None, map(_find_reference, raws))))


def expand(data: bytes, names: StoredNames) -> Expanded | None:
    """The body with every name replaced. None if a name is unknown, or if it names a `conversation`.

    Raises BeyondBounds as the names do.
    """
    return read_or_none(_expand, data, names)


def _expand(data: bytes, names: StoredNames) -> Expanded | None:
    fields = split_fields_or_text(data, "input")
    if fields.values.get("conversation", b"null") != b"null":
        return None
    own = [_resolve(data[place.start : place.end], names) for place in fields.items]
    added = [raw for raw in own if raw is not None]
    previous = _parse_previous(fields)
    before = names.find_response(previous) if previous is not None else None
    if (before is None and previous is not None) or len(added) < len(own):
        return None
    own_body = b'{"input":%s}' % _render_items(added)
    if before is not None:
        edits = _replace_input(data, fields, [*before.items, *added])
        return Expanded(apply_edits(data, edits), previous, own_body)
    edits = [
        Edit(place.start, place.end, raw)
        for place, raw in zip(fields.items, added, strict=True)
        if not data.startswith(raw, place.start)
    ]
    return Expanded(apply_edits(data, edits), None, own_body)


def _parse_previous(fields: Fields) -> str | None:
    return msgspec.json.decode(fields.values.get(_PREVIOUS, b"null"), type=str | None)


def may_be_reference(raw: bytes) -> bool:
    return b'"item_reference"' in raw


def _resolve(raw: bytes, names: StoredNames) -> bytes | None:
    """The item itself, or the item that a reference names; None if that is unknown."""
    name = _find_reference(raw)
    if name is None:
        return raw
    return names.find_item(name) if name else None


def _find_reference(raw: bytes) -> str | None:
    """The id in a reference, empty if it has none; None for any other item."""
    if not may_be_reference(raw):
        return None
    item = parse_items(raw)[0]
    if kind_of(item) != "item_reference":
        return None
    name = item.get("id")
    return name if isinstance(name, str) else ""


def list_items(own: bytes) -> list[bytes]:
    """The items of a body that `expand` made."""
    fields = split_fields_or_text(own, "input")
    return [_as_item(own[place.start : place.end]) for place in fields.items]


def _as_item(raw: bytes) -> bytes:
    """A string is a user message."""
    return b'{"role":"user","content":%s}' % raw if raw.startswith(b'"') else raw


def _render_items(items: list[bytes]) -> bytes:
    return b"[" + b",".join(map(_as_item, items)) + b"]"


def _replace_input(data: bytes, fields: Fields, items: list[bytes]) -> list[Edit]:
    """Replaces the input by all items, and removes the name of the previous response."""
    array = fields.places["input"]
    return [Edit(array.start, array.end, _render_items(items)), _remove_name(data, fields.places[_PREVIOUS])]


def _remove_name(data: bytes, value: Slice) -> Edit:
    """Removes the field with its key and one comma. Raises ValueError if the key is written with escapes."""
    key = b'"%s"' % _PREVIOUS.encode()
    start = data.rindex(key, 0, value.start)
    if data[start + len(key) : value.start].strip(_SPACES) != b":":
        raise ValueError("the key of the previous response was not found before its value")
    end = skip_spaces(data, value.end)
    if data[end : end + 1] == b",":
        return Edit(start, end + 1, b"")
    before = data[:start].rstrip(_SPACES)
    return Edit(len(before) - before.endswith(b","), value.end, b"")


class ItemCollector:
    """Collects the items of a response: from a stream one by one, from a whole body at once."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._room = _MAX_BYTES

    def feed(self, event: SseEvent) -> StoredResponse | None:
        """The response, once, at the event that completes it. Never raises."""
        if self._room < 0 or (event.name and not any(kind in event.data for kind in _COLLECTED_EVENTS)):
            return None
        try:
            return self._collect(event)
        except (ValueError, RecursionError):
            return None

    def _collect(self, event: SseEvent) -> StoredResponse | None:
        parsed = _decode_event(event.data)
        if parsed.type == "response.output_item.done" and len(parsed.item):
            self._room -= len(parsed.item)
            self._items.append(bytes(parsed.item))
            return None
        response = _find_final_response(parsed, event.data)
        if response is None:
            return None
        # Not parsed where the items came one by one: it repeats them.
        items = self._items or [bytes(item) for item in _decode_items(response.output)]
        names = [_decode_item(item).id for item in items]
        self._items = []
        return StoredResponse(response.id, tuple(items), tuple(names))


def _find_final_response(event: _Event, data: bytes) -> _Response | None:
    if event.type:
        return event.response if event.type in _FINAL_EVENTS else None
    response = _decode_response(data)
    return response if response.status in ("completed", "incomplete") else None


STORED_HISTORY: Final = StoredHistory(
    find_names=find_names,
    expand=expand,
    list_items=list_items,
    collect=ItemCollector,
    may_be_name=may_be_reference,
    find_used_paths=find_used_names,
    find_given_names=find_given_names,
    unknown_status=400,
    unknown_code="previous_response_not_found",
    is_replayed=False,
)
