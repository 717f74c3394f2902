"""Responses: the names of stored things that a request holds, and those that a response gives.

Where one key serves all tenants, a name is a way to what another tenant stored. So this reads with suspicion:
a body that it cannot read must not be one that the upstream reads.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.wire.body import JSON_ERRORS, UNBOUNDED, BodyBounds, mend_surrogates, split_fields_or_text
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


class _OutputItem(msgspec.Struct, gc=False):
    id: str | None = None


class _NamedResponse(msgspec.Struct, gc=False):
    id: str | None = None
    output: list[_OutputItem] = []


class _NamingEvent(msgspec.Struct, gc=False):
    """An event of a stream, or a whole body, which is a response itself."""

    type: str = ""
    item: _OutputItem | None = None
    response: _NamedResponse | None = None
    id: str | None = None
    output: list[_OutputItem] = []


_decode_items = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
# Values that say nothing, without the spaces in them.
_NOTHING: Final = frozenset({b"null", b"[]", b"{}", b'""'})
# The fields of an item that only names what is stored.
_NAMING_FIELDS: Final = frozenset({"id", "type", "status"})
_decode_event = msgspec.json.Decoder(_NamingEvent).decode


def find_used_names(body: bytes, bounds: BodyBounds = UNBOUNDED) -> set[str]:
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
        references = filter(_is_reference, _decode_items(mend_surrogates(array)))
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
        parsed = _decode_event(event.data)
    except JSON_ERRORS:
        return set()
    response = parsed.response or _NamedResponse()
    found = {response.id, *(output.id for output in (*response.output, *parsed.output))}
    found.add(parsed.item.id if parsed.item is not None else None)
    if not parsed.type:
        found.add(parsed.id)
    return {name for name in found if name}
