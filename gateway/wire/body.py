"""A request body as raw slices: where its fields and messages are. Nothing is serialized again.

Clients in JavaScript may cut a text inside an emoji and so write half of a surrogate pair. Most servers
accept that as JSON, msgspec does not. Such bodies are parsed from a copy in which a character of the same
length stands for each half, so offsets in the copy are valid for the original, which is what is sent on.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.core.errors import Unreadable

# A JSON object as Python values.
JsonFields = dict[str, Any]
# What msgspec raises for bytes that it cannot decode.
JSON_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_SEPARATORS: Final = b" \t\r\n,"
_SPACES: Final = b" \t\r\n"
_KEY: Final = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
# After an even number of backslashes: a whole pair, which stays, or one half.
_SURROGATES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD]([89a-fA-F])[0-9a-fA-F]{2})"
)
_HALVES: Final = b"89abcdef"
_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A half-open range of bytes."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fields:
    """The outermost object of a body."""

    # Raw values by key, without the array of messages.
    values: dict[str, bytes]
    # Where each value is, the array included.
    places: dict[str, Slice]
    # Where each item of the array is.
    items: list[Slice]


def split_fields(data: bytes, array_key: str) -> Fields:
    """Raises Unreadable for anything but one object without repeated keys whose `array_key` is an array."""
    data, decoded = _decode_fields(data, array_key)
    try:
        raws = _items_decoder.decode(decoded[array_key])
    except JSON_ERRORS as error:
        raise Unreadable("no array of messages") from error
    places = _find_places(data, decoded)
    items = _place_items(data, places[array_key].start + 1, raws)
    return _make_fields(decoded, places, items, array_key)


def split_fields_or_text(data: bytes, key: str) -> Fields:
    """As `split_fields`, but the value may also be a string, which is then the only item."""
    data, decoded = _decode_fields(data, key)
    if bytes(memoryview(decoded[key])[:1]) != b'"':
        return split_fields(data, key)
    places = _find_places(data, decoded)
    return _make_fields(decoded, places, [places[key]], key)


def split_items(data: bytes, start: int, end: int) -> list[Slice]:
    """The items in `data[start:end]`, the rest of an array after one of its items. Raises Unreadable."""
    inside = data[start:end].lstrip(_SPACES)
    if not inside:
        return []
    if inside[:1] != b",":
        raise Unreadable("not a continuation of an array")
    array = b"[" + inside[1:] + b"]"
    try:
        try:
            raws = _items_decoder.decode(array)
        except JSON_ERRORS:
            raws = _items_decoder.decode(mend_surrogates(array))
    except JSON_ERRORS as error:
        raise Unreadable("not a continuation of an array") from error
    if not raws:
        raise Unreadable("no item after a comma")
    return _place_items(data, start, raws)


def parse_value(raw: bytes) -> Any:  # noqa: ANN401 - JSON is of any shape
    """One slice as Python values. Raises MsgspecError, UnicodeDecodeError or RecursionError."""
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return msgspec.json.decode(mend_surrogates(raw))


def parse_object_with_role(raw: bytes) -> JsonFields:
    """Raises Unreadable for anything but an object with a role that is a string."""
    try:
        message = parse_value(raw)
    except JSON_ERRORS as error:
        raise Unreadable("message is not valid JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unreadable("message without a role")
    return message


def parse_raw_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """The fields of an object with raw values. Raises MsgspecError, UnicodeDecodeError or RecursionError."""
    return _fields_decoder.decode(mend_surrogates(raw))


def mend_surrogates(data: bytes) -> bytes:
    """Replaces each half of a surrogate pair by its own private-use character (U+E000 to U+E7FF).

    Returns the same object if there is none.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    mended = _SURROGATES.sub(_mend, data)
    return data if mended == data else mended


def _mend(found: re.Match[bytes]) -> bytes:
    before, escape, half = found.groups()
    if half is None:
        return found[0]
    return b"%s\\ue%d%s" % (before, _HALVES.index(half.lower()), escape[4:])


def _decode_fields(data: bytes, key: str) -> tuple[bytes, dict[str, msgspec.Raw]]:
    """The data in a form that can be decoded, and its raw values."""
    try:
        try:
            decoded = _fields_decoder.decode(data)
        except JSON_ERRORS:
            data = mend_surrogates(data)
            decoded = _fields_decoder.decode(data)
    except JSON_ERRORS as error:
        raise Unreadable("not a JSON object") from error
    if key not in decoded:
        raise Unreadable(f"no {key}")
    return data, decoded


def _make_fields(
    decoded: dict[str, msgspec.Raw], places: dict[str, Slice], items: list[Slice], array_key: str
) -> Fields:
    return Fields({key: bytes(raw) for key, raw in decoded.items() if key != array_key}, places, items)


def _place_items(data: bytes, at: int, raws: list[msgspec.Raw]) -> list[Slice]:
    """msgspec gives raw values without offsets. Between two of them there are only separators."""
    places = []
    for raw in raws:
        while data[at] in _SEPARATORS:
            at += 1
        end = at + len(raw)
        places.append(Slice(at, end))
        at = end
    return places


def _find_places(data: bytes, decoded: dict[str, msgspec.Raw]) -> dict[str, Slice]:
    """Walks the object's keys in order.

    Raises Unreadable for a repeated key: its first value is not the decoded one, or the next key does not
    follow it.
    """
    places: dict[str, Slice] = {}
    at = data.index(b"{") + 1
    for key, raw in decoded.items():
        match = _KEY.match(data, at)
        if match is None or msgspec.json.decode(b'"' + match.group(1) + b'"') != key:
            raise Unreadable("repeated keys")
        if not data.startswith(raw, match.end()):
            raise Unreadable("repeated keys")
        places[key] = Slice(match.end(), match.end() + len(raw))
        at = places[key].end
        while data[at] in _SEPARATORS:
            at += 1
    if data[at : at + 1] != b"}":
        raise Unreadable("repeated keys")
    return places
