"""Titles that clients ask a model for, until the conversation that they name is known.

Where several processes share the store, any of them may serve the title call, so the title is there for a
day.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.conversations.turn import Turn, chain
from gateway.core.errors import Unreadable
from gateway.core.session.titles import find_asked
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.sessions.titles import TitleListener, clean_title, list_proofs
from gateway.state.records import Kind, Records
from gateway.store.interface import LATEST, Store
from gateway.store.keys import make_tag
from gateway.wire.body import JSON_ERRORS

_KIND: Final = "title"
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


class TitleCalls:
    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        kind = Kind(name=_KIND, type=str, keep_seconds=min(keep_seconds, _KEEP_SECONDS))
        self._records = Records(store, kind)
        # By the tag of the owner and a proof.
        self._titles: Lru[tuple[str, str], str] = Lru(_MEMORY_BYTES)

    def note(self, title: SessionTitle) -> None:
        for proof in title.proofs:
            self._titles.put((make_tag(title.owner), proof), title.title, _WEIGHT_BYTES)
            if self._store.is_shared:
                self._records.put(title.owner, proof, title.title)

    async def find(self, owner: str, proofs: tuple[str, ...], *, asks_store: bool) -> str:
        """The title of the conversation with these proofs; empty if none is known. Raises StoreError.

        asks_store: another process may have served the title call.
        """
        for proof in proofs:
            title = self._titles.get((make_tag(owner), proof))
            if title is None and asks_store and self._store.is_shared:
                found = await self._records.get(owner, (proof,), wait=LATEST)
                title = found.record if found is not None else None
            if title is not None:
                return title
        return ""

    def drop(self, owner: str, proofs: Iterable[str]) -> None:
        """Of a conversation that is deleted: they are kept under its proofs, and not with it."""
        for proof in proofs:
            self._titles.pop((make_tag(owner), proof))
            self._records.drop(owner, proof)

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory."""
        for key in [key for key in self._titles if key[0] == tag]:
            self._titles.pop(key)


def watch_title_call(turn: Turn, on_reply: Callable[[TitleReply], None]) -> Turn:
    """The turn; on_reply is called once its response is whole."""
    listener = TitleListener(lambda text: on_reply(TitleReply(turn, text)))
    return replace(turn, on_event=chain(turn.on_event, listener.note))


def read_title(reply: TitleReply) -> SessionTitle:
    """Without proofs or a title where there are none."""
    turn = reply.turn
    asked = _list_asked(turn) if turn.session is None else []
    return SessionTitle(turn.owner, list_proofs(turn.session, asked), clean_title(reply.text))


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
