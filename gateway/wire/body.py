"""A request body as raw slices: where its fields and messages are. Nothing is serialized again.

Clients in JavaScript may cut a text inside an emoji and so write half of a surrogate pair. Most servers
accept that as JSON, msgspec does not. Such bodies are parsed from a copy in which a character of the same
length stands for each half, so offsets in the copy are valid for the original, which is what is sent on.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.structure import UNBOUNDED, BodyBounds, check_values

P = ParamSpec("P")
T = TypeVar("T")

# A JSON object as Python values.
JsonFields = dict[str, Any]
# What msgspec raises for bytes that it cannot decode.
JSON_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_SPACES: Final = b" \t\r\n"
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
# The quantifiers are possessive: going back never helps, and would remember each character.
_SEPARATORS: Final = re.compile(rb"[ \t\r\n,]*+")
_KEY: Final = re.compile(rb'\s*+"((?:[^"\\]++|\\.)*+)"\s*+:\s*+', re.DOTALL)
# Escapes of surrogates, as many as follow each other.
# Before 3.11.5, `re` keeps half of the last round of `(?:…)*+` if there is a repetition inside: so none is.
_HEX: Final = rb"[0-9a-fA-F]"
_HALF: Final = rb"\\u[dD][89a-fA-F]%b%b" % (_HEX, _HEX)
_SURROGATES: Final = re.compile(rb"%b(?:%b)*+" % (_HALF, _HALF))
_PAIRS: Final = re.compile(rb"(?:\\u[dD][89abAB]%b%b\\u[dD][c-fC-F]%b%b)++" % (_HEX, _HEX, _HEX, _HEX))
_ESCAPE_BYTES: Final = 6
# A client that cuts a text inside an emoji does so once or twice in a message.
_MOST_HALVES: Final = 10_000
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


def split_fields(data: bytes, array_key: str, bounds: BodyBounds = UNBOUNDED) -> Fields:
    """Raises Unreadable for anything but one object without repeated keys whose `array_key` is an array."""
    data, decoded = _decode_fields(data, array_key, bounds)
    try:
        raws = _items_decoder.decode(decoded[array_key])
    except JSON_ERRORS as error:
        raise Unreadable("no array of messages") from error
    _check_messages(len(raws), bounds)
    places = _find_places(data, decoded)
    items = _place_items(data, places[array_key].start + 1, raws)
    return _make_fields(decoded, places, items, array_key)


def split_fields_or_text(data: bytes, key: str, bounds: BodyBounds = UNBOUNDED) -> Fields:
    """As `split_fields`, but the value may also be a string, which is then the only item."""
    data, decoded = _decode_fields(data, key, bounds)
    if bytes(memoryview(decoded[key])[:1]) != b'"':
        return split_fields(data, key, bounds)
    places = _find_places(data, decoded)
    return _make_fields(decoded, places, [places[key]], key)


def split_items(
    data: bytes, start: int, end: int, before: int = 0, bounds: BodyBounds = UNBOUNDED
) -> list[Slice]:
    """The items in `data[start:end]`, the rest of an array after `before` items. Raises Unreadable."""
    check_values(data, bounds, start, end)
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
    _check_messages(before + len(raws), bounds)
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
    # Not only after an error: the decoder does not look into raw values.
    return _fields_decoder.decode(mend_surrogates(raw))


def mend_surrogates(data: bytes) -> bytes:
    """Replaces each half of a surrogate pair by its own private-use character (U+E000 to U+E7FF).

    Returns the same object if there is none. Raises BeyondBounds for a text that has thousands of them.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    mended = bytearray(data)
    halves = 0
    for run in _SURROGATES.finditer(data):
        start = run.start()
        if _count_backslashes(data, start) % 2:
            # The first backslash is text, escaped by the one before it.
            start += _ESCAPE_BYTES
        while start < run.end():
            pairs = _PAIRS.match(data, start, run.end())
            if pairs is not None:
                start = pairs.end()
                continue
            # The last two digits of the four stay.
            mended[start : start + 4] = b"\\ue%d" % _HALVES.index(data[start + 3 : start + 4].lower())
            start += _ESCAPE_BYTES
            halves += 1
            if halves > _MOST_HALVES:
                raise BeyondBounds(f"more than {_MOST_HALVES} halves of surrogate pairs")
    return bytes(mended) if halves else data


def read_or_none(read: Callable[P, T | None], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a function reads in a body; None if it does not understand the body. Raises BeyondBounds as it
    does.
    """
    try:
        return read(*args, **kwargs)
    except BeyondBounds:
        raise
    except (Unreadable, ValueError, RecursionError):
        return None


def _count_backslashes(data: bytes, end: int) -> int:
    """The number of backslashes in front of a position."""
    size = 64
    while True:
        before = data[max(0, end - size) : end]
        count = len(before) - len(before.rstrip(b"\\"))
        if count < size:
            return count
        # A message may consist of backslashes.
        size *= 8


def _check_messages(count: int, bounds: BodyBounds) -> None:
    if count > bounds.messages:
        raise BeyondBounds(f"more than {bounds.messages} messages")


def _decode_fields(data: bytes, key: str, bounds: BodyBounds) -> tuple[bytes, dict[str, msgspec.Raw]]:
    """The data in a form that can be decoded, and its raw values."""
    check_values(data, bounds)
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
    if len(decoded) > bounds.fields:
        raise BeyondBounds(f"more than {bounds.fields} fields")
    return data, decoded


def _make_fields(
    decoded: dict[str, msgspec.Raw], places: dict[str, Slice], items: list[Slice], array_key: str
) -> Fields:
    return Fields({key: bytes(raw) for key, raw in decoded.items() if key != array_key}, places, items)


def _place_items(data: bytes, at: int, raws: list[msgspec.Raw]) -> list[Slice]:
    """msgspec gives raw values without offsets. Between two of them there are only separators."""
    places = []
    for raw in raws:
        at = _skip_separators(data, at)
        end = at + len(raw)
        places.append(Slice(at, end))
        at = end
    return places


def skip_spaces(data: bytes, at: int) -> int:
    """The first position from here on without a space."""
    match = _SPACE.match(data, at)
    return match.end() if match is not None else at


def _skip_separators(data: bytes, at: int) -> int:
    match = _SEPARATORS.match(data, at)
    return match.end() if match is not None else at


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
        at = _skip_separators(data, places[key].end)
    if data[at : at + 1] != b"}":
        raise Unreadable("repeated keys")
    return places
