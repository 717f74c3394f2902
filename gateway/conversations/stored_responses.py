"""Earlier responses and single items that a request may name instead of repeating them.

Kept by tenant and upstream, because an upstream does not know what another one stores. Bounded in bytes: the
least recently used leave memory first, and are read from the store when they are named again. A request that
names something else passes as it came.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec

from gateway.bounds.lanes import Lanes
from gateway.conversations.branches import Branches
from gateway.conversations.reading import Received
from gateway.core.errors import BeyondBounds
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.named_turns import NamedTurn, NamedTurns
from gateway.wire.format import Format
from gateway.wire.reading import ResponseDocument
from gateway.wire.references import NamedHistory, ResponseCollector, StoredHistory
from gateway.wire.sse import SseEvent

T = TypeVar("T")

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
# How many bytes are copied while one is read.
_COPY_SPEED: Final = 16
_INLINE_BYTES: Final = 64 * 1024
# So many items are loaded from the store together, and so many earlier responses of a thread, if each of them
# is small. Every one alone would be a round trip.
_MOST_TOGETHER: Final = 8
_MOST_EARLIER: Final = 32
_SMALL_BYTES: Final = 32 * 1024
# Each of them in a body may stand for a large item. It only decides which thread writes them out.
_REFERENCE: Final = b"item_reference"


class _Name(msgspec.Struct, frozen=True):
    """The name of a response or an item. Only one tenant at one upstream may use it."""

    owner: str
    upstream: str
    name: str


class _Link(msgspec.Struct, frozen=True):
    """A turn in memory."""

    turn: NamedTurn
    # The items of `turn.own`, once they were needed.
    own_items: tuple[bytes, ...] | None = None


class StoredResponses:
    def __init__(
        self, branches: Branches, named: NamedTurns, lanes: Lanes, max_bytes: int, max_body_bytes: int
    ) -> None:
        """max_bytes: of memory. max_body_bytes: of a request with everything written out that it names."""
        self.branches = branches
        self._named = named
        self.lanes = lanes
        self._max_body_bytes = max_body_bytes
        part = max_bytes // _PARTS
        self._responses: Lru[_Name, _Link] = Lru(part)
        self._large_responses: Lru[_Name, _Link] = Lru(part)
        self._items: Lru[_Name, bytes] = Lru(part)

    def clear(self) -> None:
        """What is named is read from the store again."""
        for cache in (self._responses, self._large_responses, self._items):
            cache.clear()

    async def read(
        self, owner: str, wire_format: Format, data: bytes, upstream: str
    ) -> "tuple[Received, ResponseRecorder | None]":
        """A body as a request, with everything written out that it names. Much new material is read in a
        thread. Only some formats let a request name earlier responses instead of repeating them.

        Also returns the recorder for the response; None if no later request may name it. Raises Unreadable,
        and BeyondBounds for a body that holds more than is read.
        """
        received = await self.branches.read_in(self.lanes, owner, wire_format, data)
        if wire_format.stored_history is None:
            return received, None
        return await self.write_out(received, wire_format.stored_history, upstream)

    async def write_out(
        self, received: Received, history: StoredHistory, upstream: str
    ) -> "tuple[Received, ResponseRecorder | None]":
        """The request with its names replaced by what they name; as it came if one is unknown.

        Raises BeyondBounds if that is larger than any body may be, or more than the gateway reads. Also
        returns the recorder for the response, if a later request may name it.
        """
        data = received.body.data
        turn, found = NamedTurn(None, data), _Found(history=history, room_bytes=0)
        if _names_something(received, history):
            named = await self._find(received, history, upstream)
            if named is None:
                return received, None
            found = named
            size_bytes = len(data) + found.work_bytes + _LARGE_BYTES * data.count(_REFERENCE)
            expanded = await _run(
                self.lanes, received.owner, size_bytes, partial(history.expand, data, found)
            )
            if expanded is None:
                return received, None
            await self._note_uses(found)
            received = await self.branches.read_in(self.lanes, received.owner, received.format, expanded.data)
            received = msgspec.structs.replace(received, held=found.held)
            turn = NamedTurn(expanded.previous, expanded.own, earlier=found.earlier)
        if not received.body.envelope.is_kept:
            return received, None
        # What repeats everything brings replies. It is seldom named, and written to the store when it is.
        begins = received.conversation.opening_end == len(received.conversation.messages)
        return received, ResponseRecorder(
            stored=self,
            owner=received.owner,
            upstream=upstream,
            collector=history.collect(),
            turn=turn,
            saves_turn=begins or turn.previous is not None or history.is_replayed,
            saves_items=begins or bool(found.items),
        )

    async def _find(self, received: Received, history: StoredHistory, upstream: str) -> "_Found | None":
        """Everything that a request names; None if something of it is unknown."""
        data, owner = received.body.data, received.owner
        used = await _run(self.lanes, owner, len(data), partial(history.find_names, data))
        if used is None:
            return None
        room_bytes = self._max_body_bytes - len(data)
        found = _Found(history=history, room_bytes=room_bytes)
        if used.previous is not None:
            links = await self._find_links(_Name(owner, upstream, used.previous), room_bytes)
            if links is None:
                return None
            found.links = links
        left = iter(dict.fromkeys(used.items))
        while some := list(islice(left, _MOST_TOGETHER)):
            known = await self._load_items(owner, upstream, some)
            for item_name in some:
                item = known.get(item_name)
                if item is None:
                    return None
                found.items[item_name] = item
                room_bytes -= len(item)
                if room_bytes < 0:
                    raise BeyondBounds(_TOO_LARGE)
        return found

    async def _find_links(self, name: _Name, max_bytes: int) -> dict[_Name, _Link] | None:
        """A response and those before it, the newest first; None if one is unknown.

        Raises BeyondBounds for too many bytes.
        """
        links: dict[_Name, _Link] = {}
        at: _Name | None = name
        while at is not None:
            if at in links:
                # A name that comes again is a circle.
                return None
            link = self._responses.peek(at) or self._large_responses.peek(at) or await self._load(at)
            if link is None:
                return None
            links[at] = link
            turn = link.turn
            max_bytes -= turn.size_bytes
            if max_bytes < 0 or len(links) > _MAX_RESPONSES:
                raise BeyondBounds(_TOO_LARGE)
            at = _Name(at.owner, at.upstream, turn.previous) if turn.previous is not None else None
        return links

    async def _load(self, name: _Name) -> _Link | None:
        """With the responses before it that it names and memory does not have: each of them would be a round
        trip of its own.
        """
        turn = (await self._named.load_all(name.owner, name.upstream, (name.name,))).get(name.name)
        if turn is None:
            return None
        earlier = [_Name(name.owner, name.upstream, each) for each in turn.earlier]
        unknown = [
            each.name for each in earlier if each not in self._responses and each not in self._large_responses
        ]
        found = await self._named.load_all(name.owner, name.upstream, unknown) if unknown else {}
        for each, before in found.items():
            self._hold(_Name(name.owner, name.upstream, each), _Link(before))
        link = _Link(turn)
        self._hold(name, link)
        return link

    async def _load_items(self, owner: str, upstream: str, names: Sequence[str]) -> dict[str, bytes]:
        """From memory or from the store."""
        known = {name: self._items.get(_Name(owner, upstream, name)) for name in names}
        unknown = [name for name, item in known.items() if item is None]
        found = await self._named.load("item", owner, upstream, unknown) if unknown else {}
        for name, item in found.items():
            self._hold_item(_Name(owner, upstream, name), item)
        return {name: item for name, item in known.items() if item is not None} | found

    async def _note_uses(self, found: "_Found") -> None:
        """Keeps turns longer that are in use: in memory, and in the store.

        After a restart all of a thread are written again, which takes 4 ms for a megabyte, so one at a time.
        """
        for name, link in found.links.items():
            if self._responses.get(name) is None:
                self._large_responses.get(name)
            own_items = found.split.get(name)
            if own_items is not None:
                self._hold(name, _Link(link.turn, own_items))
            if self._named.is_due(name.owner, name.upstream, name.name):
                self._named.save(name.owner, name.upstream, name.name, link.turn)
                await asyncio.sleep(0)

    def keep_response(self, name: _Name, turn: NamedTurn, *, is_saved: bool) -> None:
        """is_saved: in the store, too."""
        self._hold(name, _Link(turn))
        if is_saved:
            self._named.save(name.owner, name.upstream, name.name, turn)

    def keep_item(self, name: _Name, item: bytes, conversation_id: str, *, is_saved: bool) -> None:
        self._hold_item(name, item)
        if is_saved:
            self._named.save_item(name.owner, name.upstream, name.name, conversation_id, item)

    def _hold(self, name: _Name, link: _Link) -> None:
        turn = link.turn
        weight = _WEIGHT_BYTES + weigh_texts(name.name, turn.previous, turn.own)
        weight += sum(_ITEM_WEIGHT_BYTES + len(item) for item in (*turn.items, *(link.own_items or ())))
        fitting, other = self._responses, self._large_responses
        if weight > _LARGE_BYTES:
            fitting, other = other, fitting
        other.pop(name)
        fitting.put(name, link, weight)

    def _hold_item(self, name: _Name, item: bytes) -> None:
        self._items.put(name, item, _WEIGHT_BYTES + weigh_texts(name.name, item))


async def _run(lanes: Lanes, owner: str, size_bytes: int, function: Callable[[], T]) -> T:
    """At once if it is little: a way through a thread takes longer."""
    return function() if size_bytes < _INLINE_BYTES else await lanes.run(owner, size_bytes, function)


def _names_something(received: Received, history: StoredHistory) -> bool:
    """Every name is opaque to us, but not everything opaque is a name."""
    opaque = (at for at, message in enumerate(received.conversation.messages) if message.is_opaque)
    return received.body.envelope.is_partial or any(history.may_be_name(received.raw(at)) for at in opaque)


class _Found(msgspec.Struct, kw_only=True):
    """What a request names. It may be asked in a thread. Raises BeyondBounds for what is too large."""

    history: StoredHistory
    # So much may be written out. Looked at before anything is copied: a reference of 40 bytes may stand for
    # megabytes, again and again.
    room_bytes: int
    # The response that the request continues, and those before it, the newest first.
    links: dict[_Name, _Link] = {}
    items: dict[str, bytes] = {}
    # The own items of links that did not have them yet.
    split: dict[_Name, tuple[bytes, ...]] = {}

    @property
    def held(self) -> str:
        """See Received."""
        return next((link.turn.sent for link in self.links.values()), "")

    @property
    def earlier(self) -> tuple[str, ...]:
        """See NamedTurn. Large ones are loaded one at a time."""
        small = (name.name for name, link in self.links.items() if link.turn.size_bytes < _SMALL_BYTES)
        return tuple(islice(small, _MOST_EARLIER))

    @property
    def work_bytes(self) -> int:
        """What is to be read to write it out. What is only copied takes a fraction of the time."""
        links = self.links.values()
        copied_bytes = sum(link.turn.size_bytes for link in links)
        unread_bytes = sum(len(link.turn.own) for link in links if link.own_items is None)
        return unread_bytes + copied_bytes // _COPY_SPEED

    def find_response(self, _: str) -> NamedHistory | None:
        """A request continues one response."""
        items: list[bytes] = []
        first = b""
        for name, link in reversed(self.links.items()):
            own_items = link.own_items
            if own_items is None:
                own_items = self.split[name] = tuple(self.history.list_items(link.turn.own))
            first = first or link.turn.own
            items += (*own_items, *link.turn.items)
        self.room_bytes -= sum(map(len, items))
        return NamedHistory(first, items) if self.links else None

    def find_item(self, name: str) -> bytes | None:
        item = self.items.get(name)
        if item is None:
            return None
        if len(item) > self.room_bytes:
            raise BeyondBounds(_TOO_LARGE)
        self.room_bytes -= len(item)
        return item


class ResponseRecorder(msgspec.Struct, kw_only=True):
    """Keeps one response that later requests may name, and each of its items that has a name."""

    stored: StoredResponses
    owner: str
    upstream: str
    collector: ResponseCollector
    # Without the response.
    turn: NamedTurn
    # Whether they are written to the store at once.
    saves_turn: bool
    saves_items: bool
    # Whether its conversation was deleted since. Then nothing is kept.
    is_deleted: Callable[[], bool] | None = None

    def note_sent(self, changes: str, conversation_id: str, is_deleted: Callable[[], bool]) -> None:
        """Before the request is sent. changes: see NamedTurn.sent."""
        self.turn = self.turn._replace(sent=changes, conversation=conversation_id)
        self.is_deleted = is_deleted

    def note(self, event: SseEvent, documents: list[ResponseDocument]) -> None:
        """Each event of the response; with the last one it is kept."""
        response = self.collector.feed(documents, event.data)
        if response is None or (self.is_deleted is not None and self.is_deleted()):
            return
        for name, item in zip(response.names, response.items, strict=True):
            if name is not None:
                self.stored.keep_item(
                    self._name(name), item, self.turn.conversation, is_saved=self.saves_items
                )
        turn = self.turn._replace(items=response.items)
        self.stored.keep_response(self._name(response.name), turn, is_saved=self.saves_turn)

    def _name(self, name: str) -> _Name:
        return _Name(self.owner, self.upstream, name)
