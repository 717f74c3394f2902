"""Titles that clients ask a model for, until the conversation that they name is known.

Where several processes share the store, any of them may serve the title call, so the title is there for a
day.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from gateway.conversations.turn import Turn
from gateway.core.errors import Unreadable
from gateway.core.session.titles import find_asked
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.sessions.titles import TitleListener, clean_title, list_proofs
from gateway.store import Store
from gateway.store.keys import make_key, make_tag
from gateway.wire.body import JSON_ERRORS
from gateway.wire.sse import SseEvent

# It sorts before all other kinds: scans for those do not pass it.
_KIND: Final = "a-title"
_MEMORY_BYTES: Final = 1 << 20
_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 700
_KEEP_SECONDS: Final = 86_400.0
# A title call has one or two messages; a proof is no long text.
_MOST_MESSAGES: Final = 8
_MOST_MESSAGE_BYTES: Final = 1 << 16


class TitleReply(NamedTuple):
    """The whole reply to a title call."""

    turn: Turn
    text: str


class SessionTitle(NamedTuple):
    """A title, and what the conversation that it names has, too; see `titles.list_proofs`."""

    owner: str
    proofs: tuple[str, ...]
    title: str


class _StoredTitle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    owner: str
    title: str


_decoder: Final = msgspec.json.Decoder(_StoredTitle)


class TitleCalls:
    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = min(keep_seconds, _KEEP_SECONDS)
        self._titles: Lru[str, str] = Lru(_MEMORY_BYTES)

    async def note(self, title: SessionTitle) -> None:
        tag = make_tag(title.owner)
        for proof in title.proofs:
            key = name_title(tag, proof)
            self._titles.put(key, title.title, _WEIGHT_BYTES)
            if self._store.is_shared:
                stored = _StoredTitle(owner=title.owner, title=title.title)
                self._store.write(key, msgspec.json.encode(stored), keep_seconds=self._keep_seconds)

    async def find(self, owner: str, proofs: tuple[str, ...], *, asks_store: bool) -> str:
        """The title of the conversation with these proofs; empty if none is known.

        asks_store: another process may have served the title call.
        """
        for proof in proofs:
            key = name_title(make_tag(owner), proof)
            title = self._titles.get(key)
            if title is None and asks_store and self._store.is_shared:
                data = await self._store.read(key)
                title = _parse(owner, data) if data is not None else None
            if title is not None:
                return title
        return ""

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory."""
        beginning = name_title(tag, "")
        for key in [key for key in self._titles if key.startswith(beginning)]:
            self._titles.pop(key)


def watch_title_call(turn: Turn, on_reply: Callable[[TitleReply], None]) -> Turn:
    """The turn; on_reply is called once its response is whole."""
    listener = TitleListener(
        turn.received.format.find_reply_part, lambda text: on_reply(TitleReply(turn, text))
    )
    before = turn.on_event
    if before is None:
        return replace(turn, on_event=listener.note)

    def note(event: SseEvent) -> None:
        before(event)
        listener.note(event)

    return replace(turn, on_event=note)


def read_title(reply: TitleReply) -> SessionTitle:
    """Without proofs or a title where there are none."""
    turn = reply.turn
    asked = _list_asked(turn) if turn.session is None else []
    return SessionTitle(turn.owner, list_proofs(turn.session, asked), clean_title(reply.text))


def name_title(tag: str, proof: str) -> str:
    """The key of the store that a title is under."""
    return make_key(tag, _KIND, proof)


def _list_asked(turn: Turn) -> list[str]:
    """The texts of its newest user messages."""
    received = turn.received
    messages = received.conversation.messages
    asked = []
    for position in range(len(messages))[-_MOST_MESSAGES:]:
        message = messages[position]
        if message.role != "user" or message.size_bytes > _MOST_MESSAGE_BYTES:
            continue
        try:
            asked.append(find_asked(received.format.parse_entry(received.raw(position))))
        except (Unreadable, UnicodeError, *JSON_ERRORS):
            continue
    return asked


def _parse(owner: str, data: bytes) -> str | None:
    try:
        stored = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return stored.title if stored.owner == owner else None
