"""What was relayed earlier and may be named instead of said again: answers with all that led to them, and
single items, by tenant and upstream: what one upstream keeps another one does not know.

In memory only, bounded in bytes, the least used first out. What is not remembered any more cannot be written
out: then the request passes as it came.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from gateway.conversations.recognizer import Received, Recognizer
from gateway.lru import Lru
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import StoredHistory, StoredResponse, WireFormat

# Of one answer, and of one item, beside their bytes.
_WEIGHT_BYTES: Final = 300
# Clients that say everything each time bring large bodies, and seldom name one: those must not push out what
# is named one by one. A third of the bytes for them, for the others, and for single items.
_LARGE_BYTES: Final = 1 << 17
_PARTS: Final = 3
# A chain of names that is longer has gone round in a circle.
_MOST_ANSWERS: Final = 10_000

# Tenant and upstream; and a name there.
Place = tuple[str, str]
StoredName = tuple[Place, str]


class _Link(msgspec.Struct, frozen=True):
    """What one request and its answer added to the answer before."""

    previous: str | None
    own: bytes
    items: tuple[bytes, ...]


class Recognized(msgspec.Struct, frozen=True):
    """A request with its names written out. note: to be told each event of its answer."""

    received: Received
    note: Callable[[SseEvent], None] | None


class StoredResponses:
    def __init__(self, recognizer: Recognizer, max_bytes: int) -> None:
        self._recognizer = recognizer
        part = max_bytes // _PARTS
        self._answers: Lru[StoredName, _Link] = Lru(part)
        self._large_answers: Lru[StoredName, _Link] = Lru(part)
        self._items: Lru[StoredName, bytes] = Lru(part)

    def recognize(self, place: Place, form: WireFormat, data: bytes) -> Recognized:
        """The body as it came where nothing is to be written out, or not all of it is remembered.

        Raises Unreadable for a body that is not of the format.
        """
        tenant, _ = place
        received = self._recognizer.recognize(tenant, form, data)
        history = form.stored_history
        if history is None:
            return Recognized(received, None)
        brought = _Link(None, data, ())
        if _names_something(received, history):
            expanded = history.expand(data, _Names(self, place, history))
            if expanded is None:
                return Recognized(received, None)
            received = self._recognizer.recognize(tenant, form, expanded.data)
            brought = _Link(expanded.previous, expanded.own, ())
        if not received.body.envelope.is_kept:
            return Recognized(received, None)
        return Recognized(received, partial(self._note, place, brought, history.collect().feed))

    def find_response(self, place: Place, name: str, history: StoredHistory) -> list[bytes] | None:
        """Everything up to and with an answer, as raw items."""
        links: list[_Link] = []
        at: str | None = name
        while at is not None:
            link = self._answers.get((place, at)) or self._large_answers.get((place, at))
            if link is None or len(links) >= _MOST_ANSWERS:
                return None
            links.append(link)
            at = link.previous
        return [item for link in reversed(links) for item in (*history.list_items(link.own), *link.items)]

    def find_item(self, place: Place, name: str) -> bytes | None:
        return self._items.get((place, name))

    def _note(
        self, place: Place, brought: _Link, feed: Callable[[SseEvent], StoredResponse | None], event: SseEvent
    ) -> None:
        answered = feed(event)
        if answered is None:
            return
        for name, item in zip(answered.names, answered.items, strict=True):
            if name is not None:
                self._items.put((place, name), item, len(item) + _WEIGHT_BYTES)
        link = msgspec.structs.replace(brought, items=answered.items)
        weight = _WEIGHT_BYTES + len(link.own) + sum(map(len, link.items))
        answers = self._large_answers if weight > _LARGE_BYTES else self._answers
        answers.put((place, answered.name), link, weight)


def _names_something(received: Received, history: StoredHistory) -> bool:
    """A name is sealed, but not all that is sealed is a name."""
    sealed = (at for at, message in enumerate(received.conversation.messages) if message.is_opaque)
    return received.body.envelope.is_partial or any(history.may_be_name(received.raw(at)) for at in sealed)


class _Names(msgspec.Struct, frozen=True):
    """One tenant's, at one upstream."""

    memory: StoredResponses
    place: Place
    history: StoredHistory

    def find_response(self, name: str) -> list[bytes] | None:
        return self.memory.find_response(self.place, name, self.history)

    def find_item(self, name: str) -> bytes | None:
        return self.memory.find_item(self.place, name)
