"""Halves of surrogate pairs in JSON: what JavaScript writes when it cuts a text inside an emoji.

Valid JSON to most servers, unreadable to ours. A copy that can be read has the same length, so that places
found in it hold for the original, which is what is sent on.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.core.errors import Unreadable

# After an even number of backslashes: a whole pair, which stays, or one half.
_SURROGATES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD]([89a-fA-F])[0-9a-fA-F]{2})"
)
_HALVES: Final = b"89abcdef"


def mend_surrogates(data: bytes) -> bytes:
    """Each half as a character for private use of its own (U+E000 to U+E7FF); the same object without any."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    mended = _SURROGATES.sub(_mend, data)
    return data if mended == data else mended


def _mend(found: re.Match[bytes]) -> bytes:
    before, escape, half = found.groups()
    if half is None:
        return found[0]
    return b"%s\\ue%d%s" % (before, _HALVES.index(half.lower()), escape[4:])


# JOINED: A request body as raw slices: where its fields and messages lie. Nothing is re-serialised.

_SEPARATORS: Final = b" \t\r\n,"
_SPACES: Final = b" \t\r\n"
_KEY = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


# A JSON object as Python values.
JsonFields = dict[str, Any]


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A half-open range of bytes."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fields:
    """The outermost object: raw values by key, where each lies, and the array of messages opened up."""

    values: dict[str, bytes]
    places: dict[str, Slice]
    items: list[Slice]


def split_fields(data: bytes, array_key: str) -> Fields:
    """Raises Unreadable for anything but one object without repeated keys whose `array_key` is an array."""
    data, decoded = _decode_fields(data, array_key)
    try:
        raws = _items_decoder.decode(decoded[array_key])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("no array of messages") from error
    places = _find_places(data, decoded)
    items = place_items(data, places[array_key].start + 1, raws)
    return _make_fields(decoded, places, items, array_key)


def split_fields_or_text(data: bytes, key: str) -> Fields:
    """The same, but in the array's place there may be a string, which is one message."""
    data, decoded = _decode_fields(data, key)
    if bytes(memoryview(decoded[key])[:1]) != b'"':
        return split_fields(data, key)
    places = _find_places(data, decoded)
    return _make_fields(decoded, places, [places[key]], key)


def _decode_fields(data: bytes, key: str) -> tuple[bytes, dict[str, msgspec.Raw]]:
    """The data as it can be decoded, and the values that stand in it."""
    try:
        try:
            decoded = _fields_decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            data = mend_surrogates(data)
            decoded = _fields_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("not a JSON object") from error
    if key not in decoded:
        raise Unreadable(f"no {key}")
    return data, decoded


def _make_fields(
    decoded: dict[str, msgspec.Raw], places: dict[str, Slice], items: list[Slice], array_key: str
) -> Fields:
    return Fields({key: bytes(raw) for key, raw in decoded.items() if key != array_key}, places, items)


def decode_message(raw: bytes) -> Any:  # noqa: ANN401 - JSON is of any shape
    """One slice as Python values. Raises MsgspecError, UnicodeDecodeError or RecursionError."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(mend_surrogates(raw))


def parse_object_with_role(raw: bytes) -> JsonFields:
    """Raises Unreadable for anything but an object with a role that is a string."""
    try:
        message = decode_message(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("message is not JSON we can read") from error
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unreadable("message without a role")
    return message


def decode_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """The fields of an object, each as it stands there. Raises MsgspecError or UnicodeDecodeError."""
    return msgspec.json.decode(mend_surrogates(raw), type=dict[str, msgspec.Raw])


def split_items(data: bytes, start: int, end: int) -> list[Slice]:
    """The items of the array whose inside lies at `start:end`. Raises Unreadable."""
    inside = data[start:end].lstrip(_SPACES)
    if not inside:
        return []
    if inside[:1] != b",":
        raise Unreadable("not a continuation of an array")
    array = b"[" + inside[1:] + b"]"
    try:
        try:
            raws = _items_decoder.decode(array)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raws = _items_decoder.decode(mend_surrogates(array))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("not a continuation of an array") from error
    if not raws:
        raise Unreadable("a comma and nothing behind it")
    return place_items(data, start, raws)


def place_items(data: bytes, at: int, raws: list[msgspec.Raw]) -> list[Slice]:
    """msgspec gives slices without offsets; between two of them there are only separators (FACTS §1)."""
    places = []
    for raw in raws:
        while data[at] in _SEPARATORS:
            at += 1
        end = at + len(raw)
        places.append(Slice(at, end))
        at = end
    return places


def _find_places(data: bytes, decoded: dict[str, msgspec.Raw]) -> dict[str, Slice]:
    """Walk the object's keys in order. A repeated key has an earlier value, too, which is not the decoded
    one or is not followed by the next key: Unreadable."""
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
