"""Finds the conversation that a body belongs to, and reads no message twice.

Keeps the newest body of each branch with the facts of its messages, bounded in bytes. Decides nothing: a body
that is not recognized is split and read as a whole. Reading touches nothing that is kept, so that much new
material is read in a thread.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.bounds.lanes import Lanes
from gateway.core.errors import BeyondBounds, Unreadable
from gateway.core.history.conversation import Conversation, begin_conversation, with_messages
from gateway.core.history.message import Message
from gateway.core.history.shared_list import SharedList
from gateway.lru import Lru, weigh_texts
from gateway.wire.body import (
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
# Different conversations may share an anchor, such as one system prompt. So many of each are compared.
_MAX_CANDIDATES: Final = 16
# A place, a chain link, and the facts of a message; a call or a result beside its texts.
_MESSAGE_WEIGHT_BYTES: Final = 520
_CALL_WEIGHT_BYTES: Final = 90

# Less new material is read at once: a way through a thread takes longer, as long as it holds no more values
# than these.
_INLINE_BYTES: Final = 64 * 1024
_INLINE_VALUES: Final = 2_000

# Tenant, format, the power of two, and the bytes before it.
Anchor = tuple[str, str, int, bytes]
FindMessage = Callable[[bytes], Message | None]
_find_nothing: FindMessage = dict[bytes, Message]().get


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


class _Kept(msgspec.Struct, frozen=True):
    received: Received
    # Its number is listed under this anchor.
    anchor: Anchor


class _Match(msgspec.Struct, frozen=True):
    """A kept body that begins like a new one."""

    number: int
    kept: _Kept
    # How many of its messages the new body shares.
    shared: int


class _New(msgspec.Struct, frozen=True):
    """A body, and what has to be read of it."""

    format: Format
    data: bytes
    match: _Match | None
    # Where the messages are that the match does not have; None if the body has to be read as a whole.
    added: Slice | None

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


class Recognizer:
    def __init__(
        self,
        bodies_bytes: int,
        facts_bytes: int,
        max_bodies: int,
        bounds: BodyBounds = UNBOUNDED,
    ) -> None:
        """bounds: of the bodies that are read at all."""
        self._bodies: Lru[int, _Kept] = Lru(bodies_bytes, max_bodies)
        # For bodies that begin differently each time (a clock in the system prompt). Those match no kept body
        # and are read as a whole.
        self._facts: Lru[bytes, Message] = Lru(facts_bytes)
        self._most_facts = facts_bytes // _MESSAGE_WEIGHT_BYTES
        self._bounds = bounds
        # The numbers of the kept bodies with each anchor.
        self._anchors: dict[Anchor, list[int]] = {}
        self._next_number = 0

    @property
    def kept_bodies(self) -> int:
        return len(self._bodies)

    @property
    def bodies_bytes(self) -> int:
        return self._bodies.size_bytes

    @property
    def facts_bytes(self) -> int:
        return self._facts.size_bytes

    def clear(self) -> None:
        """Bodies that come are read as a whole again."""
        self._bodies.clear()
        self._facts.clear()
        self._anchors.clear()

    def recognize(self, owner: str, wire_format: Format, data: bytes) -> Received:
        """Raises Unreadable for a body that is not of the format, BeyondBounds for one that is too much."""
        match = self._find(owner, wire_format.name, data)
        what = _New(wire_format, data, match, _find_added(match, data))
        return self._finish(match, _read(owner, what, self._facts.get, self._bounds))

    async def recognize_in(self, lanes: Lanes, owner: str, wire_format: Format, data: bytes) -> Received:
        """The same. Reads in a thread if there is much to read."""
        match = self._find(owner, wire_format.name, data)
        what = _New(wire_format, data, match, _find_added(match, data))
        if what.is_small:
            return self._finish(match, _read(owner, what, self._facts.get, self._bounds))
        # The event loop changes neither of these meanwhile.
        facts = {message.key: message for message in self._facts.values()} if match is None else {}
        apart = replace(what, match=_detach(match) if match is not None else None)
        received = await lanes.run(owner, what.size_bytes, _read, owner, apart, facts.get, self._bounds)
        return self._finish(match, received)

    def _finish(self, match: _Match | None, received: Received) -> Received:
        """Keeps what was read."""
        if match is None:
            # Only the last ones would stay.
            for message in received.conversation.messages[-self._most_facts :]:
                self._facts.put(message.key, message, _weigh([message]))
            if not received.body.envelope.is_partial:
                self._keep(received)
            return received
        before, anchor = match.kept.received, match.kept.anchor
        if self._bodies.peek(match.number) is not match.kept:
            # While this one was read, another request took the place of the body before it.
            self._keep(received)
        elif not _continues(received.conversation.chain, before.conversation.chain):
            # This is another branch, so both are kept. Clients move cache marks, which alone makes no branch.
            self._keep(received)
        elif _find_anchor(received) == anchor:
            self._put(match.number, _Kept(received, anchor))
        else:
            self._forget(match.number)
            self._keep(received)
        return received

    def _find(self, owner: str, format_name: str, data: bytes) -> _Match | None:
        """The kept body that shares most messages with this one, as far as its anchors tell."""
        for power in range(len(data).bit_length() - 1, _SMALLEST_ANCHOR - 1, -1):
            numbers = self._anchors.get(_make_anchor(owner, format_name, data, power))
            for number in reversed(numbers or ()):
                candidate = self._bodies.get(number)
                if candidate is None:
                    continue
                before = candidate.received
                shared = _count_shared(before.body, data)
                if shared > len(before.conversation.leading):
                    return _Match(number, candidate, shared)
        return None

    def _keep(self, received: Received) -> None:
        body = received.body
        if not body.places or body.places[-1].end < 1 << _SMALLEST_ANCHOR:
            return
        anchor = _find_anchor(received)
        numbers = self._anchors.setdefault(anchor, [])
        numbers.append(self._next_number)
        if len(numbers) > _MAX_CANDIDATES:
            self._bodies.pop(numbers.pop(0))
        self._next_number += 1
        self._put(self._next_number - 1, _Kept(received, anchor))

    def _put(self, number: int, kept: _Kept) -> None:
        weight = len(kept.received.body.data) + kept.received.facts_bytes
        for gone in self._bodies.put(number, kept, weight):
            self._drop_gone(gone.anchor)

    def _forget(self, number: int) -> None:
        gone = self._bodies.pop(number)
        if gone is not None:
            self._drop_gone(gone.anchor)

    def _drop_gone(self, anchor: Anchor) -> None:
        """Takes out the numbers of bodies that are not kept any more."""
        numbers = [number for number in self._anchors.get(anchor, ()) if number in self._bodies]
        if numbers:
            self._anchors[anchor] = numbers
        else:
            self._anchors.pop(anchor, None)


def _continues(chain: SharedList[bytes], earlier: SharedList[bytes]) -> bool:
    """Whether a chain begins with an earlier one. The bytes of the messages may differ."""
    if chain.continues(earlier):
        return True
    return len(chain) >= len(earlier) and chain[len(earlier) - 1] == earlier[-1]


def _find_anchor(received: Received) -> Anchor:
    """At the largest power of two inside the messages: every continuation holds the same bytes there."""
    body = received.body
    power = body.places[-1].end.bit_length() - 1
    return _make_anchor(received.owner, received.format.name, body.data, power)


def _make_anchor(owner: str, format_name: str, data: bytes, power: int) -> Anchor:
    end = 1 << power
    return owner, format_name, power, data[end - _ANCHOR_BYTES : end]


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


def _find_added(match: _Match | None, data: bytes) -> Slice | None:
    return find_added(match.kept.received.body, match.shared, data) if match is not None else None


def _detach(match: _Match) -> _Match:
    """The same on lists of its own."""
    received = match.kept.received
    body, old = received.body, received.conversation
    conversation = Conversation(
        old.leading, old.messages.detach(), old.chain.detach(), old.opening_end, old.spans
    )
    apart = replace(received, body=replace(body, places=body.places.detach()), conversation=conversation)
    return replace(match, kept=replace(match.kept, received=apart))


def _read(owner: str, what: _New, find: FindMessage, bounds: BodyBounds) -> Received:
    """find: may know a message of a body that is read as a whole."""
    wire_format, data, match = what.format, what.data, what.match
    if match is not None:
        return _read_rest(match.kept.received, match.shared, what, bounds)
    body = wire_format.parse_body(data, bounds)
    messages = _read_messages(owner, wire_format, body, 0, find, bounds)
    conversation = with_messages(begin_conversation(owner, wire_format.name), 0, messages)
    return Received(owner, wire_format, body, conversation, _weigh(messages))


def _read_rest(before: Received, shared: int, what: _New, bounds: BodyBounds) -> Received:
    """Takes over the shared messages. Each message behind them is looked up among those before, or read."""
    body = _parse_added(before, shared, what, bounds)
    if body is None:
        body = before.format.parse_body(what.data, bounds)
        # What follows may be a part of the last message that is shared.
        shared -= shared > len(body.places) or body.places[shared - 1] != before.body.places[shared - 1]
    old = before.conversation
    kept = shared - len(old.leading)
    rest = old.messages[kept:]
    find, weight = _find_nothing, before.facts_bytes
    if rest:
        find = {message.key: message for message in rest}.get
        weight -= _weigh(rest)
    added = _read_messages(before.owner, before.format, body, shared, find, bounds)
    return Received(
        before.owner, before.format, body, with_messages(old, kept, added), weight + _weigh(added)
    )


def _parse_added(before: Received, shared: int, what: _New, bounds: BodyBounds) -> RequestBody | None:
    """None if the whole body has to be split."""
    if what.added is None:
        return None
    try:
        return parse_added(before.body, shared, what.data, what.added, bounds)
    except BeyondBounds:
        raise
    except Unreadable:
        return None


def _read_messages(
    owner: str, wire_format: Format, body: RequestBody, start: int, find: FindMessage, bounds: BodyBounds
) -> list[Message]:
    """The messages from a position on. find: may know one of them by its key."""
    data, parse = body.data, wire_format.parse_message
    salt, messages = f"{wire_format.name} {owner}".encode(), []
    for place in body.places[start:]:
        raw = data[place.start : place.end]
        key = message_key(raw, salt)
        message = find(key)
        if message is None:
            check_depth(raw, bounds)
            message = parse(raw, key)
        messages.append(message)
    return messages


def _weigh(messages: Sequence[Message]) -> int:
    """Ids and names of tools are counted as long as they are: a client may send megabytes of them."""
    weight = _MESSAGE_WEIGHT_BYTES * len(messages)
    for message in messages:
        for call in message.calls:
            weight += _CALL_WEIGHT_BYTES + weigh_texts(call.id, call.tool)
        for result in message.results:
            weight += _CALL_WEIGHT_BYTES + weigh_texts(result)
    return weight
