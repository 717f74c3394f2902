"""A request body as raw slices: its envelope, and where each message is. Nothing is serialized again.

Knows JSON and byte offsets; the wire formats know what the fields mean. What a body holds is counted before
it is parsed: a few megabytes of `{},{},{}` make millions of objects.

Clients in JavaScript may cut a text inside an emoji and so write half of a surrogate pair. Most servers
accept that as JSON, msgspec does not. Such bodies are parsed from a copy in which a character of the same
length stands for each half, so offsets in the copy are valid for the original, which is what is sent on.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from gateway.core.counts import is_count
from gateway.core.errors import BeyondBounds, Unreadable

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
# Clients choose the name of a model, and much is kept under it. The longest ones in use, paths of files and
# resource names of clouds, have some 200 characters.
_LONGEST_MODEL_NAME: Final = 1_024
# So many quotes, and so many brackets, are within the bound of values: two strings for each value, and one
# array or object inside each other. They are bounded, too, as each string becomes an object here.
_MARKS_PER_VALUE: Final = 4
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# By how much each byte changes the depth.
_STEPS: Final = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyBounds:
    """What a body may hold. A body beyond one of these passes unread."""

    # Messages, or items of the input.
    messages: int
    # Fields of the outermost object.
    fields: int = 1_000
    # Values in what is new in a request, counted by their commas.
    values: int = 250_000
    # Arrays and objects inside each other.
    depth: int = 200


# For bodies that have been checked before, and for those that the gateway makes. No body has a terabyte.
_ANY: Final = 1 << 40
UNBOUNDED: Final = BodyBounds(messages=_ANY, fields=_ANY, values=_ANY, depth=_ANY)


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A half-open range of bytes."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """The fields of a request beside its messages.

    A slice after the messages is counted from the end of the body (negative, as in Python), so that it stays
    valid while messages are added.
    """

    model: str
    is_streaming: bool
    # The limit of the reply, None if the request has none, with its key and its slice.
    requested_tokens: int | None
    requested_key: str
    requested_slice: Slice | None
    # Fingerprint of the tool list, empty if there is none.
    tools: bytes
    tools_slice: Slice | None
    # Fingerprint of the field for the system prompt (`system`, `instructions`), empty if there is none.
    system: bytes = b""
    system_slice: Slice | None = None
    # Short blocks at the start of the system prompt by which the client identifies itself. Summary requests
    # repeat them.
    identity_blocks: tuple[str, ...] = ()
    # The stream will report usage. In most formats every stream does.
    wants_usage: bool = True
    stream_options_slice: Slice | None = None
    # The limit of the reply must not be set below this: it includes the thinking budget.
    minimum_reply_tokens: int = 0
    # A part of the history is stored upstream, and the request only names it.
    is_partial: bool = False
    # The upstream stores the response, so that a later request may name it.
    is_kept: bool = False
    # The request asks the upstream to drop old parts of the history.
    is_trimmed: bool = False


# Are two raw items of the array parts of one message? The first may be several items already.
Joins = Callable[[bytes, bytes], bool]


def never_joins(before: bytes, after: bytes) -> bool:
    """Each item of the array is a message."""
    return False


class RequestBody(msgspec.Struct, frozen=True):
    data: bytes
    envelope: Envelope
    # Where each message is, the leading block included.
    places: list[Slice]
    # Where the array of messages closes.
    inside_end: int
    joins: Joins = never_joins

    def field(self, place: Slice | None) -> bytes:
        """The raw value at a slice of the envelope, empty for None."""
        return self.data[self.absolute(place.start) : self.absolute(place.end)] if place else b""

    def absolute(self, offset: int) -> int:
        """An offset of the envelope, counted from the start of the body."""
        return offset if offset >= 0 else len(self.data) + offset

    def raw(self, index: int) -> bytes:
        """The slice of a message, by its index in `places`; -1 is the last one."""
        place = self.places[index]
        return self.data[place.start : place.end]


@dataclass(frozen=True, slots=True)
class Fields:
    """The outermost object of a body. What parses raises Unreadable for invalid JSON."""

    # Raw values by key, without the array of messages.
    values: dict[str, bytes]
    # Where each value is, the array included.
    places: dict[str, Slice]
    # Where the array is, and each item of it.
    array: Slice
    items: list[Slice]
    # Of the body.
    size_bytes: int

    def parse(self, key: str) -> object:
        """The value, None if it is missing."""
        raw = self.values.get(key)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw)
        except JSON_ERRORS as error:
            raise Unreadable("a field beside the messages is not valid JSON") from error

    def parse_text(self, key: str) -> str:
        value = self.parse(key)
        return value if isinstance(value, str) else ""

    def parse_count(self, key: str) -> int | None:
        """A positive whole number, in bounds; None also for one that cannot be read, such as 1e400."""
        try:
            value = self.parse(key)
        except Unreadable:
            return None
        return value if is_count(value) and value > 0 else None

    def fingerprint(self, key: str) -> bytes:
        """SHA-256 of the raw value, empty if it is missing or null."""
        raw = self.values.get(key, b"")
        return hashlib.sha256(raw).digest() if raw and raw != b"null" else b""

    def find_slice(self, key: str) -> Slice | None:
        """Where the value is, counted as in Envelope."""
        found = self.places.get(key)
        if found is None or found.start < self.array.end:
            return found
        return Slice(found.start - self.size_bytes, found.end - self.size_bytes)

    def make_common_envelope(self, *output_keys: str) -> Envelope:
        """The fields that all formats share. output_keys: the first one with a number limits the reply."""
        key = next((key for key in output_keys if self.parse_count(key) is not None), "")
        model = self.parse_text("model")
        if len(model) > _LONGEST_MODEL_NAME:
            raise Unreadable("the name of the model is too long")
        return Envelope(
            model=model,
            is_streaming=self.parse("stream") is True,
            requested_tokens=self.parse_count(key) if key else None,
            requested_key=key,
            requested_slice=self.find_slice(key) if key else None,
            tools=self.fingerprint("tools"),
            tools_slice=self.find_slice("tools"),
        )


def split_request(
    data: bytes,
    array_key: str,
    make_envelope: Callable[[Fields], Envelope],
    joins: Joins = never_joins,
    split_body: Callable[[bytes, str, BodyBounds], Fields] | None = None,
    bounds: BodyBounds = UNBOUNDED,
) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    fields = (split_body or split_fields)(data, array_key, bounds)
    places = _join(data, fields.items, joins)
    return RequestBody(data, make_envelope(fields), places, fields.array.end - 1, joins)


def find_added(before: RequestBody, keep: int, data: bytes) -> Slice | None:
    """Where a body holds more than the first `keep` messages of `before`, which it begins with byte for byte.

    None if the rest of its envelope is different.
    """
    shared_end = before.places[keep - 1].end
    tail = before.data[before.inside_end :]
    inside_end = len(data) - len(tail)
    return Slice(shared_end, inside_end) if data.endswith(tail) and inside_end >= shared_end else None


def parse_added(before: RequestBody, keep: int, data: bytes, place: Slice, bounds: BodyBounds) -> RequestBody:
    """Splits a body that begins with the first `keep` messages of `before`. Parses only the new ones.

    place: of these, from `find_added`. Raises Unreadable if they do not continue the array: then the whole
    body has to be split.
    """
    added, joins = split_items(data, place.start, place.end, keep, bounds), before.joins
    if joins is not never_joins:
        added = _join(data, added, joins)
        if added and joins(before.raw(keep - 1), data[added[0].start : added[0].end]):
            raise Unreadable("the last message has more parts now")
    return RequestBody(data, before.envelope, [*before.places[:keep], *added], place.end, joins)


def _join(data: bytes, items: list[Slice], joins: Joins) -> list[Slice]:
    """The slices of messages from the slices of items."""
    if joins is never_joins:
        return items
    places: list[Slice] = []
    before = b""
    for item in items:
        raw = data[item.start : item.end]
        if places and joins(before, raw):
            places[-1] = Slice(places[-1].start, item.end)
        else:
            places.append(item)
        before = raw
    return places


def message_key(raw: bytes, salt: bytes) -> bytes:
    """The key by which the facts of a slice are remembered. salt: names the tenant and the wire format."""
    return hashlib.sha256(salt + raw).digest()


def split_fields(data: bytes, array_key: str, bounds: BodyBounds = UNBOUNDED) -> Fields:
    """Raises Unreadable for anything but one object without repeated keys whose `array_key` is an array."""
    return _split_fields(data, array_key, bounds, may_be_text=False)


def split_fields_or_text(data: bytes, key: str, bounds: BodyBounds = UNBOUNDED) -> Fields:
    """As `split_fields`, but the value may also be a string, which is then the only item."""
    return _split_fields(data, key, bounds, may_be_text=True)


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


def find_field(value: object, key: str) -> object:
    """A field of a JSON value; None also for a value that is no object."""
    return value.get(key) if isinstance(value, dict) else None


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


def or_none(read: Callable[P, T | None]) -> Callable[P, T | None]:
    """Makes a function return None for a body that it does not understand. It raises BeyondBounds alone."""

    @wraps(read)
    def read_or_none(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return read(*args, **kwargs)
        except BeyondBounds:
            raise
        except (Unreadable, ValueError, RecursionError):
            return None

    return read_or_none


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


def _split_fields(data: bytes, key: str, bounds: BodyBounds, *, may_be_text: bool) -> Fields:
    check_values(data, bounds)
    try:
        try:
            decoded = _fields_decoder.decode(data)
        except JSON_ERRORS:
            # In a form that can be decoded.
            data = mend_surrogates(data)
            decoded = _fields_decoder.decode(data)
    except JSON_ERRORS as error:
        raise Unreadable("not a JSON object") from error
    if key not in decoded:
        raise Unreadable(f"no {key}")
    if len(decoded) > bounds.fields:
        raise BeyondBounds(f"more than {bounds.fields} fields")
    places = _find_places(data, decoded)
    array = places[key]
    if may_be_text and data.startswith(b'"', array.start):
        items = [array]
    else:
        try:
            raws = _items_decoder.decode(decoded[key])
        except JSON_ERRORS as error:
            raise Unreadable("no array of messages") from error
        _check_messages(len(raws), bounds)
        items = _place_items(data, array.start + 1, raws)
    values = {name: bytes(raw) for name, raw in decoded.items() if name != key}
    return Fields(values, places, array, items, len(data))


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


def check_values(data: bytes, bounds: BodyBounds, start: int = 0, end: int | None = None) -> None:
    """Raises BeyondBounds if `data[start:end]` has more commas outside of strings than the bound.

    The data may be invalid JSON, which is found out later.
    """
    end = len(data) if end is None else end
    if data.count(b",", start, end) <= bounds.values:
        return
    if _find_outline(data[start:end], bounds).count(b",") > bounds.values:
        raise _too_many(bounds)


def check_depth(raw: bytes, bounds: BodyBounds) -> None:
    """Raises BeyondBounds for arrays and objects that are nested more deeply than the bound."""
    if raw.count(b"[") + raw.count(b"{") <= bounds.depth:
        return
    brackets = _find_outline(raw, bounds).translate(None, _NO_BRACKETS)
    if len(brackets) > _MARKS_PER_VALUE * bounds.values:
        raise _too_many(bounds)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > bounds.depth:
        raise BeyondBounds(f"values nested more than {bounds.depth} deep")


def _find_outline(raw: bytes, bounds: BodyBounds) -> bytes:
    """The text outside of strings."""
    # Without escapes a quote always begins or ends a string.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > _MARKS_PER_VALUE * bounds.values:
        raise _too_many(bounds)
    return b"".join(plain.split(b'"')[::2])


def _too_many(bounds: BodyBounds) -> BeyondBounds:
    return BeyondBounds(f"more than {bounds.values} values")
