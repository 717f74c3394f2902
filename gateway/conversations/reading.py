"""A body read beside a known one: only what is new is split and parsed.

Decides nothing and keeps nothing. A body that begins like no known one is split as a whole, and its messages
are looked up in a known body by their bytes. Nothing that is read here ever changes, so much new material is
read in a thread.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.core.history.conversation import Conversation, begin_conversation, with_messages
from gateway.core.history.message import Message
from gateway.core.history.transcript import UNKNOWN_ENTRY, TranscriptEntry
from gateway.lru import weigh_texts
from gateway.wire.body import (
    JSON_ERRORS,
    UNBOUNDED,
    BodyBounds,
    RequestBody,
    Slice,
    check_depth,
    find_added,
    message_key,
    parse_added,
)
from gateway.wire.format import Format

# Bodies are found again by the 64 bytes before a power of two. Bodies that begin alike agree in all of them.
_ANCHOR_BYTES: Final = 64
_SMALLEST_ANCHOR: Final = 7
# So many of a body's newest messages are looked for as the last one of a known body. Two or three are new.
_NEWEST_MESSAGES: Final = 32
# A place, a chain link, and the facts of a message; a call or a result beside its texts.
_MESSAGE_WEIGHT_BYTES: Final = 520
_CALL_WEIGHT_BYTES: Final = 90
# What proves a cleared result, beside its digests.
_SPLIT_WEIGHT_BYTES: Final = 33
# Less new material is read at once: a way through a thread takes longer, as long as it holds no more values
# than these.
_INLINE_BYTES: Final = 64 * 1024
_INLINE_VALUES: Final = 2_000

# Tenant, format, the power of two, and the bytes before it.
Anchor = tuple[str, str, int, bytes]


class Received(msgspec.Struct, frozen=True):
    """A request that was understood."""

    # The id of the tenant, under which all state is kept.
    owner: str
    format: Format
    body: RequestBody
    conversation: Conversation
    # Memory that the facts of its messages take.
    facts_bytes: int
    # What the gateway changed in the history that the request only names, before it was sent upstream: see
    # NamedTurn.sent. Empty if nothing, or if the request names none.
    held: str = ""

    def raw(self, position: int) -> bytes:
        """The slice of the message at a position of the conversation."""
        conversation = self.conversation
        return self.body.raw(len(conversation.leading) + conversation.index(position))

    def entry(self, position: int) -> TranscriptEntry:
        """What that message says. One that cannot be read says nothing."""
        try:
            return self.format.parse_entry(self.raw(position))
        except (Unreadable, UnicodeError, *JSON_ERRORS):
            return UNKNOWN_ENTRY


# A known body by the key of its last message.
FindByLast = Callable[[bytes], Received | None]
_find_none: FindByLast = dict[bytes, Received]().get


class NewBody(msgspec.Struct, frozen=True):
    """A body, and what has to be read of it."""

    owner: str
    format: Format
    data: bytes
    # A known body that begins like it, and how many messages both share.
    near: Received | None = None
    shared: int = 0
    # Where the other messages are; None if the body has to be split as a whole.
    added: Slice | None = None

    @property
    def size_bytes(self) -> int:
        return self.added.end - self.added.start if self.added is not None else len(self.data)

    @property
    def is_small(self) -> bool:
        """Whether it is read at once."""
        size = self.size_bytes
        if size >= _INLINE_BYTES:
            return False
        # A value and its comma take two bytes.
        if size <= 2 * _INLINE_VALUES:
            return True
        start = self.added.start if self.added is not None else 0
        return self.data.count(b",", start, start + size) < _INLINE_VALUES


def list_anchors(owner: str, format_name: str, data: bytes) -> Iterator[Anchor]:
    """Those that a known body which begins like this one may have, the longest beginning first."""
    for power in range(len(data).bit_length() - 1, _SMALLEST_ANCHOR - 1, -1):
        yield _make_anchor(owner, format_name, data, power)


def find_anchor(received: Received) -> Anchor | None:
    """At the largest power of two inside the messages: every continuation holds the same bytes there."""
    body = received.body
    power = body.places[-1].end.bit_length() - 1 if body.places else 0
    if power < _SMALLEST_ANCHOR:
        return None
    return _make_anchor(received.owner, received.format.name, body.data, power)


def _make_anchor(owner: str, format_name: str, data: bytes, power: int) -> Anchor:
    end = 1 << power
    return owner, format_name, power, data[end - _ANCHOR_BYTES : end]


def compare(near: Received, wire_format: Format, data: bytes) -> NewBody | None:
    """The body beside a known one; None if they share no message behind the leading block."""
    shared = _count_shared(near.body, data)
    if shared <= len(near.conversation.leading):
        return None
    return NewBody(near.owner, wire_format, data, near, shared, find_added(near.body, shared, data))


def _count_shared(before: RequestBody, data: bytes) -> int:
    """How many of `before`'s messages the data begins with, byte for byte. Usually one comparison."""
    places, most = before.places, len(before.places)
    for count in range(most, max(most - 3, 0), -1):
        if _begins_alike(before.data, data, places[count - 1].end):
            return count
    low, high = 0, max(most - 3, 0)
    while low < high:
        middle = (low + high + 1) // 2
        # What is known to be equal is not compared again: a body may have 40 MB and thousands of messages.
        start = places[low - 1].end if low else 0
        if data.startswith(before.data[start : places[middle - 1].end], start):
            low = middle
        else:
            high = middle - 1
    return low


def _begins_alike(before: bytes, data: bytes, size: int) -> bool:
    """Whether the first `size` bytes are equal, without a copy of them: `startswith` takes no view, but
    `removeprefix` does, and returns `data` itself where it does not begin so.
    """
    return data.removeprefix(memoryview(before)[:size]) is not data


def read(new: NewBody, bounds: BodyBounds = UNBOUNDED, find_by_last: FindByLast = _find_none) -> Received:
    """Raises Unreadable for a body that is not of the format, BeyondBounds for one that is too much.

    find_by_last: where it begins like no known body.
    """
    if new.near is not None:
        return _read_rest(new, new.near, bounds)
    body = new.format.parse_body(new.data, bounds)
    near = _find_near(new, body, find_by_last)
    known = near.conversation if near is not None else None
    messages = _read_messages(new, body, 0, (*known.leading, *known.messages) if known else (), bounds)
    conversation = with_messages(begin_conversation(new.owner, new.format.name), 0, messages)
    return Received(new.owner, new.format, body, conversation, _weigh(messages))


def _find_near(new: NewBody, body: RequestBody, find_by_last: FindByLast) -> Received | None:
    """A known body whose last message is among the newest ones here. It began differently: its client has a
    clock in the system prompt, or drops its oldest messages.
    """
    salt = _make_salt(new)
    for index in range(-1, -min(len(body.places), _NEWEST_MESSAGES) - 1, -1):
        near = find_by_last(message_key(body.raw(index), salt))
        if near is not None:
            return near
    return None


def _read_rest(new: NewBody, near: Received, bounds: BodyBounds) -> Received:
    """Takes over the shared messages. Each message behind them is looked up among those before, or read."""
    shared, body = new.shared, _parse_added(new, near, bounds)
    if body is None:
        body = near.format.parse_body(new.data, bounds)
        # What follows may be a part of the last message that is shared.
        shared -= shared > len(body.places) or body.places[shared - 1] != near.body.places[shared - 1]
    old = near.conversation
    kept = shared - len(old.leading)
    rest = old.messages[kept:]
    added = _read_messages(new, body, shared, rest, bounds)
    weight = near.facts_bytes - _weigh(rest) + _weigh(added)
    return Received(near.owner, near.format, body, with_messages(old, kept, added), weight)


def _parse_added(new: NewBody, near: Received, bounds: BodyBounds) -> RequestBody | None:
    """None if the whole body has to be split."""
    if new.added is None:
        return None
    try:
        return parse_added(near.body, new.shared, new.data, new.added, bounds)
    except BeyondBounds:
        raise
    except Unreadable:
        return None


def _read_messages(
    new: NewBody, body: RequestBody, start: int, known: Sequence[Message], bounds: BodyBounds
) -> list[Message]:
    """The messages from a position on. known: may hold some of them."""
    data, parse, salt = body.data, new.format.parse_message, _make_salt(new)
    find = {message.key: message for message in known}.get
    messages = []
    for place in body.places[start:]:
        raw = data[place.start : place.end]
        key = message_key(raw, salt)
        message = find(key)
        if message is None:
            check_depth(raw, bounds)
            message = parse(raw, key)
        messages.append(message)
    return messages


def _make_salt(new: NewBody) -> bytes:
    return f"{new.format.name} {new.owner}".encode()


def _weigh(messages: Sequence[Message]) -> int:
    """Ids and names of tools are counted as long as they are: a client may send megabytes of them."""
    weight = _MESSAGE_WEIGHT_BYTES * len(messages)
    for message in messages:
        for call in message.calls:
            weight += _CALL_WEIGHT_BYTES + weigh_texts(call.id, call.tool)
        for result in message.results:
            weight += _CALL_WEIGHT_BYTES + weigh_texts(result)
        if message.split:
            weight += _SPLIT_WEIGHT_BYTES + len(message.split)
    return weight
