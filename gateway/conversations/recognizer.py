"""Which conversation is this? Bodies in, conversations out, and nothing is read twice.

Remembers, bounded in bytes, the newest body of each branch with the facts of its messages. Decides nothing: a
body that is not recognised is simply split and read in full.
"""

from collections.abc import Callable, Sequence

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.conversation import Conversation, begin_conversation, with_messages
from gateway.core.history.message import Message
from gateway.core.history.shared_list import SharedList
from gateway.lru import Lru
from gateway.wire.body import Slice
from gateway.wire.request import RequestBody, message_key, parse_continuation
from gateway.wire.wire_format import WireFormat

# Bodies are found again by 64 bytes that lie before a power of two: equal ones agree in all of them.
_ANCHOR_BYTES = 64
_SMALLEST_ANCHOR = 7
# Different conversations may share an anchor (one system prompt); this many of each are compared.
_MOST_CANDIDATES = 16
# A place, a chain link, and the facts of a message; a call and its id.
_MESSAGE_WEIGHT_BYTES = 520
_CALL_WEIGHT_BYTES = 220

Anchor = tuple[str, str, int, bytes]
_find_nothing: Callable[[bytes], Message | None] = dict[bytes, Message]().get


class Received(msgspec.Struct, frozen=True):
    """A request that was understood. facts_bytes: what the facts of its messages weigh in memory."""

    tenant: str
    form: WireFormat
    body: RequestBody
    conversation: Conversation
    facts_bytes: int

    def raw(self, position: int) -> bytes:
        """The slice of the message at a position of the conversation."""
        return self.body.raw(len(self.conversation.leading) + position)


class Recognizer:
    def __init__(self, bodies_bytes: int, facts_bytes: int, most_bodies: int) -> None:
        self._bodies: Lru[int, Received] = Lru(bodies_bytes, most_bodies)
        # For bodies that begin differently each time (a clock in the system prompt) and must be read whole.
        self._facts: Lru[bytes, Message] = Lru(facts_bytes)
        self._anchors: dict[Anchor, list[int]] = {}
        self._next = 0

    def recognize(self, tenant: str, form: WireFormat, data: bytes) -> Received:
        """Raises Unreadable for a body that is not of the format."""
        found = self._find(tenant, form.name, data)
        if found is None:
            received = self._read_whole(tenant, form, data)
            if not received.body.envelope.is_partial:
                self._keep(received)
            return received
        number, before, keep = found
        received = _read_rest(before, keep, data)
        if not _goes_on(received.conversation.chain, before.conversation.chain):
            # Another branch: both are kept. (Clients move marks about; that alone makes no other branch.)
            self._keep(received)
        elif _has_anchor_of(received.body.places, before.body.places):
            self._put(number, received)
        else:
            self._forget(number)
            self._keep(received)
        return received

    def _read_whole(self, tenant: str, form: WireFormat, data: bytes) -> Received:
        body = form.parse_body(data)
        messages = _read_messages(tenant, form, body, 0, self._facts.get)
        for message in messages:
            self._facts.put(message.key, message, _weigh([message]))
        conversation = with_messages(begin_conversation(tenant, form.name), 0, messages)
        return Received(tenant, form, body, conversation, _weigh(messages))

    def _find(self, tenant: str, form: str, data: bytes) -> tuple[int, Received, int] | None:
        """The kept body that shares most messages with this one, as far as one is found quickly."""
        for power in range(len(data).bit_length() - 1, _SMALLEST_ANCHOR - 1, -1):
            numbers = self._anchors.get(_anchor(tenant, form, data, power))
            for number in reversed(numbers or ()):
                candidate = self._bodies.get(number)
                if candidate is None:
                    continue
                keep = _count_shared(candidate.body, data)
                if keep > len(candidate.conversation.leading):
                    return number, candidate, keep
        return None

    def _keep(self, received: Received) -> None:
        body = received.body
        if not body.places or body.places[-1].end < 1 << _SMALLEST_ANCHOR:
            return
        anchor = _anchor_of(received)
        numbers = self._anchors.setdefault(anchor, [])
        numbers.append(self._next)
        if len(numbers) > _MOST_CANDIDATES:
            self._bodies.pop(numbers.pop(0))
        self._next += 1
        self._put(self._next - 1, received)

    def _put(self, number: int, received: Received) -> None:
        weight = len(received.body.data) + received.facts_bytes
        for gone in self._bodies.put(number, received, weight):
            self._drop_dead(_anchor_of(gone))

    def _forget(self, number: int) -> None:
        received = self._bodies.pop(number)
        if received is not None:
            self._drop_dead(_anchor_of(received))

    def _drop_dead(self, anchor: Anchor) -> None:
        numbers = [number for number in self._anchors.get(anchor, ()) if number in self._bodies]
        if numbers:
            self._anchors[anchor] = numbers
        else:
            self._anchors.pop(anchor, None)


def _goes_on(chain: SharedList[bytes], earlier: SharedList[bytes]) -> bool:
    """Does it begin with everything that was said before, however that is written now?"""
    if chain.continues(earlier):
        return True
    return len(chain) >= len(earlier) and chain[len(earlier) - 1] == earlier[-1]


def _has_anchor_of(places: SharedList[Slice], earlier: SharedList[Slice]) -> bool:
    """All that lies before the anchor's end is shared: it is the same one."""
    return places.continues(earlier) and _power_of(places) == _power_of(earlier)


def _anchor_of(received: Received) -> Anchor:
    return _anchor(received.tenant, received.form.name, received.body.data, _power_of(received.body.places))


def _power_of(places: SharedList[Slice]) -> int:
    """The largest power of two inside the messages: every continuation holds the same bytes there."""
    return places[-1].end.bit_length() - 1


def _anchor(tenant: str, form: str, data: bytes, power: int) -> Anchor:
    end = 1 << power
    return tenant, form, power, data[end - _ANCHOR_BYTES : end]


def _count_shared(before: RequestBody, data: bytes) -> int:
    """How many of `before`'s messages the data begins with, byte for byte. One memcmp in the usual case."""
    places, most = before.places, len(before.places)
    for count in range(most, max(most - 3, 0), -1):
        if _begins_alike(before.data, data, places[count - 1].end):
            return count
    low, high = 0, max(most - 3, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if _begins_alike(before.data, data, places[middle - 1].end):
            low = middle
        else:
            high = middle - 1
    return low


def _begins_alike(before: bytes, data: bytes, size: int) -> bool:
    """memcmp without a copy of the prefix: `removeprefix` takes a view and gives back `data` if it
    differs.
    """
    return data.removeprefix(memoryview(before)[:size]) is not data


def _read_rest(before: Received, keep: int, data: bytes) -> Received:
    """What is shared is taken over; what follows is looked up among what followed before, else read."""
    try:
        body = parse_continuation(before.body, keep, data)
    except Unreadable:
        body = before.form.parse_body(data)
        # What follows may be a part of the last message that is shared.
        keep -= keep > len(body.places) or body.places[keep - 1] != before.body.places[keep - 1]
    old = before.conversation
    kept = keep - len(old.leading)
    rest = old.messages[kept:]
    find = {message.key: message for message in rest}.get if rest else _find_nothing
    added = _read_messages(before.tenant, before.form, body, keep, find)
    weight = before.facts_bytes - _weigh(rest) + _weigh(added)
    return Received(before.tenant, before.form, body, with_messages(old, kept, added), weight)


def _read_messages(
    tenant: str, form: WireFormat, body: RequestBody, start: int, find: Callable[[bytes], Message | None]
) -> list[Message]:
    """The messages from a position on. find: may know one by its key."""
    data, read = body.data, form.parse_message
    salt, messages = f"{form.name} {tenant}".encode(), []
    for place in body.places[start:]:
        raw = data[place.start : place.end]
        key = message_key(raw, salt)
        messages.append(find(key) or read(raw, key))
    return messages


def _weigh(messages: Sequence[Message]) -> int:
    calls = 0
    for message in messages:
        calls += len(message.calls) + len(message.results)
    return _MESSAGE_WEIGHT_BYTES * len(messages) + _CALL_WEIGHT_BYTES * calls


def list_fingerprints(messages: Sequence[Message]) -> list[bytes]:
    return [message.fingerprint for message in messages]
