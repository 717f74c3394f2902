"""A request in any wire format, split: the envelope around its messages, and where each message is.

Knows JSON and byte offsets. The wire formats know what the fields mean.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from gateway.core.counts import is_count
from gateway.core.errors import Unreadable
from gateway.core.history.shared_list import SharedList
from gateway.wire.body import JSON_ERRORS, Fields, Slice, split_fields, split_items
from gateway.wire.structure import UNBOUNDED, BodyBounds

# Clients choose the name of a model, and much is kept under it. The longest ones in use, paths of files and
# resource names of clouds, have some 200 characters.
_LONGEST_MODEL_NAME: Final = 1_024


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
    places: SharedList[Slice]
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


class SplitBody(Protocol):
    """`split_fields`, or what a format has in its place."""

    def __call__(self, data: bytes, array_key: str, /, bounds: BodyBounds) -> Fields: ...


class EnvelopeFields:
    """The fields of one body, for a wire format to make the envelope. Raises Unreadable for invalid JSON."""

    def __init__(self, values: dict[str, bytes], places: dict[str, Slice], array: Slice, size: int) -> None:
        self._values = values
        self._places = places
        self._behind = array.end
        self._size = size

    def parse(self, key: str) -> object:
        """The value, None if it is missing."""
        raw = self._values.get(key)
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
        raw = self._values.get(key, b"")
        return hashlib.sha256(raw).digest() if raw and raw != b"null" else b""

    def find_slice(self, key: str) -> Slice | None:
        """Where the value is, counted as in Envelope."""
        found = self._places.get(key)
        if found is None or found.start < self._behind:
            return found
        return Slice(found.start - self._size, found.end - self._size)

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
    make_envelope: Callable[[EnvelopeFields], Envelope],
    joins: Joins = never_joins,
    split_body: SplitBody = split_fields,
    bounds: BodyBounds = UNBOUNDED,
) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    split = split_body(data, array_key, bounds=bounds)
    array = split.places[array_key]
    fields = EnvelopeFields(split.values, split.places, array, len(data))
    places = SharedList(_join(data, split.items, joins))
    return RequestBody(data, make_envelope(fields), places, array.end - 1, joins)


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
    return RequestBody(data, before.envelope, before.places.grow(keep, added), place.end, joins)


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
