"""Responses that later requests may name, and their single items, so that a restart does not lose them.

They are held in memory by `conversations.stored_responses`; here they are only written and read again.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.owned_names import make_name_key
from gateway.state.record_cache import RecordStore, Storage
from gateway.state.records import NamedRecord
from gateway.store import Store
from gateway.store.keys import make_key, make_tag

# What fills a window of half a million tokens. A larger one is kept in memory alone: reading it takes more
# than the 20 ms that a request may cost the event loop.
_MAX_BYTES: Final = 2 << 20
# Which names a conversation has been given: a record of keys, beside each response.
GIVEN_KIND: Final = "given"
# Times of some five thousand turns.
_SAVED_BYTES: Final = 2 << 20


class NamedTurn(NamedTuple):
    """What one request and its response added to the response before."""

    # The response that the request continued; None if the request brought everything.
    previous: str | None
    # A body with the items that the request added.
    own: bytes
    # The items of the response.
    items: tuple[bytes, ...] = ()
    # What the gateway changed in the history before it was sent upstream, as `fingerprint_plan` says it.
    sent: str = ""
    # Names of responses before it, the newest first: of as many as are loaded together with it.
    earlier: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        size_bytes = len(self.own)
        for item in self.items:
            size_bytes += len(item)
        return size_bytes


class _SavedTurn(NamedTuple):
    """When a turn was last written, and in which generation."""

    tag: str
    since_seconds: float
    generation: int


class NamedTurns:
    """Only the tenant and the upstream of a name find it again."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._turns = RecordStore(NamedRecord, "turn", storage)
        self._items = RecordStore(NamedRecord, "item", storage)
        # When a turn was last written. Kept here, because a turn may leave memory after each request.
        self._saved: Lru[tuple[str, str, str], _SavedTurn] = Lru(_SAVED_BYTES)

    async def load(self, owner: str, upstream: str, name: str) -> NamedTurn | None:
        return (await self.load_all(owner, upstream, (name,))).get(name)

    async def load_all(self, owner: str, upstream: str, names: Sequence[str]) -> dict[str, NamedTurn]:
        """Those of the responses that the store has, in one round trip."""
        keys = {make_name_key(owner, upstream, name): name for name in names}
        found: dict[str, NamedTurn] = {}
        for key, record in (await self._turns.load_all(owner, list(keys))).items():
            with suppress(ValueError):
                items = tuple(map(_parse, record.items))
                own, sent, earlier = _parse(record.own), record.sent, record.earlier
                found[keys[key]] = NamedTurn(record.previous, own, items, sent, earlier)
        return found

    async def load_items(self, owner: str, upstream: str, names: Sequence[str]) -> dict[str, bytes]:
        """Those of the items that the store has, in one round trip."""
        keys = {make_name_key(owner, upstream, name): name for name in names}
        found: dict[str, bytes] = {}
        for key, record in (await self._items.load_all(owner, list(keys))).items():
            with suppress(ValueError):
                if record.items:
                    found[keys[key]] = _parse(record.items[0])
        return found

    def save(self, owner: str, upstream: str, name: str, turn: NamedTurn) -> None:
        """Queued for the store."""
        if turn.size_bytes <= _MAX_BYTES:
            key = make_name_key(owner, upstream, name)
            items = tuple(map(_render, turn.items))
            record = NamedRecord(
                owner=owner,
                key=key,
                previous=turn.previous,
                sent=turn.sent,
                own=_render(turn.own),
                items=items,
                earlier=turn.earlier,
            )
            self._turns.save(owner, key, record)
        weight_bytes = ENTRY_WEIGHT_BYTES + weigh_texts(owner, upstream, name)
        saved = _SavedTurn(make_tag(owner), self._storage.clock(), self._storage.generation)
        self._saved.put((owner, upstream, name), saved, weight_bytes)

    def save_item(self, owner: str, upstream: str, name: str, item: bytes) -> None:
        if len(item) <= _MAX_BYTES:
            key = make_name_key(owner, upstream, name)
            self._items.save(owner, key, NamedRecord(owner=owner, key=key, items=(_render(item),)))

    def save_given(self, owner: str, upstream: str, conversation_id: str, names: Sequence[str]) -> None:
        """The names of a response and of its items, by which a deletion of the conversation finds them."""
        keys = [make_name_key(owner, upstream, name) for name in names]
        key = make_key(make_tag(owner), GIVEN_KIND, f"{conversation_id}:{keys[0]}")
        self._storage.store.write(key, msgspec.json.encode(keys), keep_seconds=self._storage.keep_seconds)

    def is_due(self, owner: str, upstream: str, name: str) -> bool:
        """Whether a turn that is in use must be written: it may be in no store, or it would expire there."""
        saved = self._saved.get((owner, upstream, name))
        if saved is None or saved.generation != self._storage.generation:
            return True
        return self._storage.is_old(saved.since_seconds)

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory."""
        self._saved.drop_where(lambda saved: saved.tag == tag)


async def find_given(store: Store, tag: str, conversation_id: str) -> list[str]:
    """The names of all records of a conversation's responses and items, and of the lists of them. Some of
    the records may not exist.
    """
    found = await store.scan(make_key(tag, GIVEN_KIND, f"{conversation_id}:"))
    names = [name for name, _ in found]
    for _, data in found:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            for key in msgspec.json.decode(data, type=list[str]):
                names += [make_key(tag, kind, key) for kind in ("turn", "item")]
    return names


def _parse(text: str) -> bytes:
    """Raises ValueError."""
    return b64decode(text, validate=True)


def _render(data: bytes) -> str:
    return b64encode(data).decode()
