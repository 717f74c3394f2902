"""Earlier responses and single items that a request may name instead of repeating them.

Kept by tenant and upstream, because an upstream does not know what another one stores. In memory only, and
bounded in bytes: the least recently used leave first. A request that names something else passes as it came.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from gateway.bounds.lanes import Lanes
from gateway.conversations.recognizer import Received, Recognizer
from gateway.core.errors import BeyondBounds
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import StoredHistory, StoredResponse

# What a response or an item takes in memory beside its bytes.
_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 500
# An item of a response beside its bytes.
_ITEM_WEIGHT_BYTES: Final = 50
# Clients that repeat everything bring large bodies, and seldom name one. They must not push out what is named
# one by one, so a third of the bytes is for them, a third for the others, and a third for single items.
_LARGE_BYTES: Final = 1 << 17
_PARTS: Final = 3
# No conversation has more.
_MAX_RESPONSES: Final = 10_000
_TOO_LARGE: Final = "more than a body may hold, with what it names written out"
# Each of them in a body may stand for a large item. It only decides which thread writes them out.
_REFERENCE: Final = b"item_reference"


class _Name(msgspec.Struct, frozen=True):
    """The name of a response or an item. Only one tenant at one upstream may use it."""

    owner: str
    upstream: str
    name: str


class _Link(msgspec.Struct, frozen=True):
    """What one request and its response added to the response before."""

    # The response that the request continued; None if the request repeated everything.
    previous: str | None
    # A body with the items that the request added.
    own: bytes
    # The items of the response.
    items: tuple[bytes, ...] = ()


class StoredResponses:
    def __init__(self, recognizer: Recognizer, max_bytes: int, max_body_bytes: int) -> None:
        """max_body_bytes: of a request with everything written out that it names."""
        self._recognizer = recognizer
        self._max_body_bytes = max_body_bytes
        part = max_bytes // _PARTS
        self._responses: Lru[_Name, _Link] = Lru(part)
        self._large_responses: Lru[_Name, _Link] = Lru(part)
        self._items: Lru[_Name, bytes] = Lru(part)

    async def write_out(
        self, received: Received, history: StoredHistory, upstream: str, lanes: Lanes
    ) -> tuple[Received, Callable[[SseEvent], None] | None]:
        """The request with its names replaced by what they name; as it came if one is unknown.

        Raises BeyondBounds if that is larger than any body may be, or more than the gateway reads. Also
        returns the function to call with each event of the response, if a later request may name it.
        """
        data = received.body.data
        named = _Named(self, received.owner, upstream, history, self._max_body_bytes - len(data))
        link = _Link(None, data)
        if _names_something(received, history):
            size_bytes = len(data) + _LARGE_BYTES * data.count(_REFERENCE)
            expanded = await lanes.run(received.owner, size_bytes, history.expand, data, named)
            named.note_uses()
            if expanded is None:
                return received, None
            received = await self._recognizer.recognize_in(
                lanes, received.owner, received.format, expanded.data
            )
            link = _Link(expanded.previous, expanded.own)
        if not received.body.envelope.is_kept:
            return received, None
        return received, partial(named.record, link, history.collect().feed)

    def find_links(self, name: _Name, max_bytes: int) -> dict[_Name, _Link] | None:
        """A response and those before it, the newest first; None if one is unknown.

        Raises BeyondBounds for too many bytes. Like `find_item`, it may be called in a thread: it changes
        nothing. `note_use` does.
        """
        links: dict[_Name, _Link] = {}
        at: _Name | None = name
        while at is not None:
            link = self._responses.peek(at) or self._large_responses.peek(at)
            if link is None or at in links:
                # A name that comes again is a circle.
                return None
            links[at] = link
            max_bytes -= len(link.own) + sum(map(len, link.items))
            if max_bytes < 0 or len(links) > _MAX_RESPONSES:
                raise BeyondBounds(_TOO_LARGE)
            at = _Name(at.owner, at.upstream, link.previous) if link.previous is not None else None
        return links

    def find_item(self, name: _Name) -> bytes | None:
        return self._items.peek(name)

    def note_use(self, name: _Name) -> None:
        """Keeps them longer, because they are in use."""
        for cache in (self._responses, self._large_responses, self._items):
            cache.get(name)

    def save_response(self, name: _Name, link: _Link) -> None:
        weight = _WEIGHT_BYTES + weigh_texts(name.name, link.previous, link.own)
        weight += sum(_ITEM_WEIGHT_BYTES + len(item) for item in link.items)
        responses = self._large_responses if weight > _LARGE_BYTES else self._responses
        responses.put(name, link, weight)

    def save_item(self, name: _Name, item: bytes) -> None:
        self._items.put(name, item, _WEIGHT_BYTES + weigh_texts(name.name, item))


def _names_something(received: Received, history: StoredHistory) -> bool:
    """Every name is opaque to us, but not everything opaque is a name."""
    opaque = (at for at, message in enumerate(received.conversation.messages) if message.is_opaque)
    return received.body.envelope.is_partial or any(history.may_be_name(received.raw(at)) for at in opaque)


class _Named(msgspec.Struct):
    """What one tenant may name at one upstream, in one request. Raises BeyondBounds for what is too large."""

    stored: StoredResponses
    owner: str
    upstream: str
    history: StoredHistory
    # So much may still be written out. Looked at before anything is copied: a reference of 40 bytes may
    # stand for megabytes, again and again.
    room_bytes: int
    used: dict[_Name, None] = {}

    def find_response(self, name: str) -> list[bytes] | None:
        """Everything up to and with a response, as raw items."""
        links = self.stored.find_links(self._name(name), self.room_bytes)
        if links is None:
            return None
        self.used |= dict.fromkeys(links)
        items: list[bytes] = []
        for link in reversed(links.values()):
            items += (*self.history.list_items(link.own), *link.items)
        self.room_bytes -= sum(map(len, items))
        return items

    def find_item(self, name: str) -> bytes | None:
        item = self.stored.find_item(self._name(name))
        if item is None:
            return None
        if len(item) > self.room_bytes:
            raise BeyondBounds(_TOO_LARGE)
        self.room_bytes -= len(item)
        self.used[self._name(name)] = None
        return item

    def note_uses(self) -> None:
        for name in self.used:
            self.stored.note_use(name)

    def record(self, link: _Link, feed: Callable[[SseEvent], StoredResponse | None], event: SseEvent) -> None:
        """Keeps a response once its last event has come, and each of its items that has a name."""
        response = feed(event)
        if response is None:
            return
        for name, item in zip(response.names, response.items, strict=True):
            if name is not None:
                self.stored.save_item(self._name(name), item)
        whole = msgspec.structs.replace(link, items=response.items)
        self.stored.save_response(self._name(response.name), whole)

    def _name(self, name: str) -> _Name:
        return _Name(self.owner, self.upstream, name)
