"""What other processes that share the store have changed, until the next request it matters to has looked.

They announce ids only: links of chains, and hashes. An announcement may come late or twice, which costs a
look at the store. One that was lost with the connection is made up for by the generation of memory: a process
whose generation has grown looks again at everything that it goes on with.
"""

import re
from collections.abc import Callable
from typing import Final, Literal, get_args

from gateway.core.history.conversation import Conversation
from gateway.state.chain_places import ChainPlace, ChainPlaces
from gateway.state.memory import Memory
from gateway.store.interface import Store
from gateway.store.keys import make_tag

# What was made at a place of a chain, or left there; and where a compaction begins, or has ended in any way.
PlaceKind = Literal["pivot", "marker", "compacting", "idle"]
# A record that other processes may hold.
RecordKind = Literal["learned", "calibration"]
_KEY: Final = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_LENGTH: Final = re.compile(r"[0-9]{1,9}")

# The tag of the tenant, and a key: of the record, or of the place; the id of a deleted conversation.
StateListener = Callable[[str, str], None]


class StateNews:
    """Listens to the store, see `gateway.store.interface.Listener`."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store = store
        self._memory = memory
        self._places = ChainPlaces(memory)
        # Cuts of compactions that other processes are making. One that died leaves its place here.
        self._compacting = ChainPlaces(memory)
        self._listeners: dict[str, list[StateListener]] = {}
        store.subscribe(self)

    def announce_place(self, kind: PlaceKind, owner: str, place: ChainPlace) -> None:
        """Of a record when it is in the store: those who hear of it look there."""
        self._store.publish(make_tag(owner), f"{kind} {place.key} {place.length}")

    def announce_record(self, kind: RecordKind, owner: str, key: str) -> None:
        self._store.publish(make_tag(owner), f"{kind} {key}")

    def listen(
        self, kind: PlaceKind | RecordKind | Literal["purge", "conversation"], listener: StateListener
    ) -> None:
        """Of a purge, and of a conversation that is deleted, the process that does it hears, too."""
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

    def on_news(self, tag: str, text: str) -> None:
        """News of a kind that this version does not know are ignored."""
        kind, *said = text.split(" ")
        if not said or not _KEY.fullmatch(said[0]):
            return
        if kind in get_args(PlaceKind):
            if len(said) != 2 or not _LENGTH.fullmatch(said[1]):
                return
            self._note_place(kind, tag, ChainPlace(said[0], int(said[1])))
        self._tell(kind, tag, said[0])

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        """Everything that memory has of a tenant, or of one conversation, is forgotten."""
        self._memory.forget(tag, group)
        if group is None:
            self._tell("purge", tag, "")
        else:
            self._tell("conversation", tag, group)

    def on_gap(self) -> None:
        self._memory.generation += 1

    def _tell(self, kind: str, tag: str, key: str) -> None:
        for listener in self._listeners.get(kind, ()):
            listener(tag, key)

    def _note_place(self, kind: str, tag: str, place: ChainPlace) -> None:
        if kind in ("pivot", "marker"):
            self._places.add(tag, place)
        if kind == "compacting":
            self._compacting.add(tag, place)
        elif kind in ("pivot", "idle"):
            self._compacting.drop(tag, place.key)
