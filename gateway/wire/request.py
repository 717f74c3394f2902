"""A request of any wire format, split: what stands around its messages, and where each of them lies.

Knows JSON and byte offsets; which fields mean what is for the wire formats to say.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.shared_list import SharedList
from gateway.wire.body import Fields, Slice, split_fields, split_items


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """What stands around the messages.

    requested_tokens: the reply that is asked for, with the slice of the number, counted from the end of the
    body if it lies behind the messages (negative, as in Python), so that it stays true while they grow.
    wants_usage: streams tell it; most formats' do without being asked.
    least_tokens: the reply may not be clamped below this (a thinking budget lies inside it).
    tools, preamble: SHA-256 of the tool list and of what stands before the messages in a field of its own
    (`system`, `instructions`), empty where there is none; these slices are counted like the one above.
    is_partial: a part of the history lies at the upstream, and only a name of it in the body.
    is_kept: upstream keeps the answer, so that a later request may name it.
    is_trimmed: upstream was asked to leave out of the history by itself what gets too old.
    greeting: how the client introduces itself before its preamble proper; a summary call says the same.
    """

    model: str
    is_streaming: bool
    requested_tokens: int | None
    requested_key: str
    requested_slice: Slice | None
    tools: bytes
    tools_slice: Slice | None
    wants_usage: bool = True
    stream_options: Slice | None = None
    system: bytes = b""
    system_slice: Slice | None = None
    least_tokens: int = 0
    is_partial: bool = False
    identity_blocks: tuple[str, ...] = ()
    is_kept: bool = False
    is_trimmed: bool = False


def never_joins(before: bytes, behind: bytes) -> bool:
    """Each item of the array is a message."""
    return False


class RequestBody(msgspec.Struct, frozen=True):
    """One request body. `inside_end` is where the array of messages closes.

    joins: are these two items, each in its bytes, parts of one message? The first may be several already.
    """

    data: bytes
    envelope: Envelope
    places: SharedList[Slice]
    inside_end: int
    joins: Callable[[bytes, bytes], bool] = never_joins

    def field(self, place: Slice | None) -> bytes:
        """The raw value at a place of the envelope, empty where there is none."""
        return self.data[self.absolute(place.start) : self.absolute(place.end)] if place else b""

    def absolute(self, offset: int) -> int:
        """An envelope offset as one from the start of the body."""
        return offset if offset >= 0 else len(self.data) + offset

    def raw(self, index: int) -> bytes:
        """The slice of the message at this index (counted over all, the leading block included)."""
        place = self.places[index]
        return self.data[place.start : place.end]


class EnvelopeFields:
    """The envelope of one body, for a wire format to read. Raises Unreadable for what is no JSON."""

    def __init__(self, values: dict[str, bytes], places: dict[str, Slice], array: Slice, size: int) -> None:
        self._values = values
        self._places = places
        self._behind = array.end
        self._size = size

    def raw(self, key: str) -> bytes:
        """As it stands there, empty where it does not."""
        return self._values.get(key, b"")

    def read(self, key: str) -> object:
        raw = self._values.get(key)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable("an envelope field is not JSON we can read") from error

    def read_text(self, key: str) -> str:
        value = self.read(key)
        return value if isinstance(value, str) else ""

    def read_count(self, key: str) -> int | None:
        """A positive whole number."""
        value = self.read(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def fingerprint(self, key: str) -> bytes:
        """SHA-256 of the raw value, empty where there is none or null."""
        raw = self.raw(key)
        return hashlib.sha256(raw).digest() if raw and raw != b"null" else b""

    def begin_envelope(self, *output_keys: str) -> Envelope:
        """What all formats call by the same names, with the first of these keys that limits the reply."""
        key = next((key for key in output_keys if self.read_count(key) is not None), "")
        return Envelope(
            model=self.read_text("model"),
            is_streaming=self.read("stream") is True,
            requested_tokens=self.read_count(key) if key else None,
            requested_key=key,
            requested_slice=self.place(key) if key else None,
            tools=self.fingerprint("tools"),
            tools_slice=self.place("tools"),
        )

    def place(self, key: str) -> Slice | None:
        """Where it lies, counted as in Envelope."""
        found = self._places.get(key)
        if found is None or found.start < self._behind:
            return found
        return Slice(found.start - self._size, found.end - self._size)


def split_request(
    data: bytes,
    array_key: str,
    read_envelope: Callable[[EnvelopeFields], Envelope],
    joins: Callable[[bytes, bytes], bool] = never_joins,
    split_body: Callable[[bytes, str], Fields] = split_fields,
) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    split = split_body(data, array_key)
    array = split.places[array_key]
    fields = EnvelopeFields(split.values, split.places, array, len(data))
    places = SharedList(_join(data, split.items, joins))
    return RequestBody(data, read_envelope(fields), places, array.end - 1, joins)


def parse_continuation(before: RequestBody, keep: int, data: bytes) -> RequestBody:
    """Splits a body that shares everything up to the end of `before`'s message `keep - 1` with `before`.

    Only the remainder is looked at: where the rest of the envelope is the same too, just the new messages.
    Raises Unreadable where the remainder is no continuation; then the whole body has to be split.
    """
    shared_end = before.places[keep - 1].end
    tail = before.data[before.inside_end :]
    if not data.endswith(tail) or len(data) - len(tail) < shared_end:
        raise Unreadable("another envelope")
    inside_end = len(data) - len(tail)
    added, joins = split_items(data, shared_end, inside_end), before.joins
    if joins is not never_joins:
        added = _join(data, added, joins)
        if added and joins(before.raw(keep - 1), data[added[0].start : added[0].end]):
            raise Unreadable("the last message goes on")
    return RequestBody(data, before.envelope, before.places.grow(keep, added), inside_end, joins)


def _join(data: bytes, items: list[Slice], joins: Callable[[bytes, bytes], bool]) -> list[Slice]:
    """Items as messages."""
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
    """What a slice is remembered by. salt: of tenant and wire format."""
    return hashlib.sha256(salt + raw).digest()
