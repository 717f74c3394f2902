"""What other processes that share the store have changed, until the next request it matters to has looked.

They announce ids only: links of chains, and hashes. An announcement may come late or twice, which costs a
look at the store. One that was lost with the connection is made up for by the generation: a process whose
generation has grown looks again at everything that it goes on with.
"""

import re
from collections.abc import Callable
from typing import Final, Literal, get_args

from gateway.core.history.conversation import Conversation
from gateway.state.chain_places import ChainPlace, ChainPlaces
from gateway.store.keys import make_tag
from gateway.store.news import News

# What was made at a place of a chain, or left there; and where a compaction begins, or has ended in any way.
PlaceKind = Literal["pivot", "marker", "compacting", "idle"]
# A record that other processes may hold.
RecordKind = Literal["learned", "calibration"]
_PURGE: Final = "purge"
# A conversation that is deleted, by its id, and a pivot of it, by its key.
_CONVERSATION: Final = "conversation"
_DELETED: Final = "deleted"
_KEY: Final = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_LENGTH: Final = re.compile(r"[0-9]{1,9}")

# The tag of the tenant, and a key: of the record, or of the place.
StateListener = Callable[[str, str], None]


class StateNews:
    def __init__(self, news: News) -> None:
        self._news = news
        self._places = ChainPlaces()
        # Cuts of compactions that other processes are making. One that died leaves its place here.
        self._compacting = ChainPlaces()
        self._listeners: dict[str, list[StateListener]] = {}
        news.subscribe(self._note)

    @property
    def generation(self) -> int:
        """See `gateway.store.news`."""
        return self._news.generation

    def announce_place(self, kind: PlaceKind, owner: str, place: ChainPlace) -> None:
        """Of a record when it is in the store: those who hear of it look there."""
        self._news.announce(make_tag(owner), f"{kind} {place.key} {place.length}")

    def announce_record(self, kind: RecordKind, owner: str, key: str) -> None:
        self._news.announce(make_tag(owner), f"{kind} {key}")

    def announce_purge(self, tag: str) -> None:
        """All of this tenant is gone from the store, and leaves the memory of all processes."""
        self._note(tag, _PURGE)
        self._news.announce(tag, _PURGE)

    def announce_conversation(self, tag: str, conversation_id: str) -> None:
        """A conversation is being deleted, and leaves the memory of all processes."""
        self._note(tag, f"{_CONVERSATION} {conversation_id}")
        self._news.announce(tag, f"{_CONVERSATION} {conversation_id}")

    def announce_deleted(self, tag: str, pivot: str) -> None:
        """A pivot of a deleted conversation, also to a process that does not know whose it is."""
        self._note(tag, f"{_DELETED} {pivot}")
        self._news.announce(tag, f"{_DELETED} {pivot}")

    def listen(
        self,
        kind: PlaceKind | RecordKind | Literal["purge", "conversation", "deleted"],
        listener: StateListener,
    ) -> None:
        """Of a purge the key is empty. The process that announces a purge, or that a conversation is deleted,
        hears of it, too.
        """
        self._listeners.setdefault(kind, []).append(listener)

    def find(self, owner: str, conversation: Conversation) -> list[ChainPlace]:
        """Places of this conversation where the store has to be looked at, in the order of the chain."""
        return self._places.find(make_tag(owner), conversation)

    def find_compacting(self, owner: str, conversation: Conversation) -> list[ChainPlace]:
        """Where other processes are compacting this conversation, in the order of the chain."""
        return self._compacting.find(make_tag(owner), conversation)

    def note_lost(self, owner: str, place: ChainPlace) -> None:
        """Memory has lost a pivot that no request may have been sent with yet."""
        self._places.add(make_tag(owner), place)

    def settle(self, owner: str, place: ChainPlace) -> None:
        """The store has been looked at there."""
        self._places.drop(make_tag(owner), place.key)

    def forget(self, tag: str) -> None:
        self._places.forget(tag)
        self._compacting.forget(tag)

    def _note(self, tag: str, text: str) -> None:
        """Announcements of a kind that this version does not know are ignored."""
        kind, *said = text.split(" ")
        key = said[0] if said else ""
        if said and not _KEY.fullmatch(key):
            return
        if kind in get_args(PlaceKind):
            if len(said) != 2 or not _LENGTH.fullmatch(said[1]):
                return
            self._note_place(kind, tag, ChainPlace(key, int(said[1])))
        for listener in self._listeners.get(kind, ()):
            listener(tag, key)

    def _note_place(self, kind: str, tag: str, place: ChainPlace) -> None:
        if kind in ("pivot", "marker"):
            self._places.add(tag, place)
        if kind == "compacting":
            self._compacting.add(tag, place)
        elif kind in ("pivot", "idle"):
            self._compacting.drop(tag, place.key)
