"""What other processes that share the store have changed, and other places of chains to be looked at.

Processes announce ids only: links of chains, and hashes. An announcement may come late or twice, which costs
a look at the store. One that was lost with the connection is made up for by the generation of memory: a
process whose generation has grown looks again at everything that it goes on with.
"""

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, get_args

from gateway.core.history.conversation import Conversation
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.kinds import Marker
from gateway.state.memory import Memory, Whose
from gateway.store.interface import Store
from gateway.store.keys import make_tag

# What was made at a place of a chain, or left there; and where a compaction begins, or has ended in any way.
NewsKind = Literal["pivot", "marker", "compacting", "idle"]
# A record that other processes may hold.
RecordKind = Literal["learned", "calibration"]
# Where the store has to be looked at; where another process is compacting, or was when it died; a manual
# pivot that no head may name yet; a marker that the chain's next request takes.
PlaceKind = Literal["news", "compacting", "manual", "waiting"]
# What news of each kind make of a place, and what they end.
_EFFECTS: Final[dict[str, tuple[PlaceKind | None, PlaceKind | None]]] = {
    "pivot": ("news", "compacting"),
    "marker": ("news", None),
    "compacting": ("compacting", None),
    "idle": (None, "compacting"),
}
_KEY: Final = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_LENGTH: Final = re.compile(r"[0-9]{1,9}")
# Some ten thousand places.
_MAX_BYTES: Final = 8 << 20
_WEIGHT_BYTES: Final = 2 * ENTRY_WEIGHT_BYTES + 350

# The tag of the tenant, and the key of the record or place.
StateListener = Callable[[str, str], None]


class ChainPlace(NamedTuple):
    """key: the link in hex. length: messages before it. So one comparison tells whether it is on a chain."""

    key: str
    length: int
    marker: Marker | None = None


class _Placed(NamedTuple):
    whose: Whose
    link: bytes
    place: ChainPlace


class ChainPlaces:
    """Bounded: those that were added first are forgotten first."""

    def __init__(self, memory: Memory) -> None:
        # Each kind by itself: what other processes tell pushes no command of a person out.
        self._placed: dict[PlaceKind, Lru[tuple[str, bytes], _Placed]] = {
            kind: memory.shelf(lambda placed: (placed.whose,), _MAX_BYTES) for kind in get_args(PlaceKind)
        }

    def add(self, kind: PlaceKind, tag: str, place: ChainPlace) -> None:
        link, marker = bytes.fromhex(place.key), place.marker
        weight, whose = _WEIGHT_BYTES, Whose(tag)
        if marker is not None:
            weight, whose = weight + weigh_texts(marker.instructions), Whose(tag, marker.conversation)
        self._placed[kind].put((tag, link), _Placed(whose, link, place), weight)

    def find(self, kind: PlaceKind, tag: str, conversation: Conversation) -> list[ChainPlace]:
        """Those on the chain of a conversation, in the order of the chain."""
        chain, placed = conversation.chain, self._placed[kind]
        if not placed.size_bytes:
            return []
        if len(placed) > len(chain):
            found = [each for link in chain if (each := placed.peek((tag, link))) is not None]
        else:
            found = [each for each in placed.values() if each.whose.tag == tag]
        on_chain = [
            each.place
            for each in found
            if each.place.length < len(chain) and chain[each.place.length] == each.link
        ]
        return sorted(on_chain, key=lambda place: place.length)

    def drop(self, kind: PlaceKind, tag: str, key: str) -> None:
        self._placed[kind].pop((tag, bytes.fromhex(key)))

    def settle(self, kind: PlaceKind, tag: str, places: list[ChainPlace]) -> None:
        """Drops these, but none that was added again since they were found."""
        for place in places:
            known = self._placed[kind].peek((tag, bytes.fromhex(place.key)))
            if known is not None and known.place is place:
                self.drop(kind, tag, place.key)


class StateNews:
    """Listens to the store, see `gateway.store.interface.Listener`."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self.places = ChainPlaces(memory)
        self._store = store
        self._memory = memory
        self._listeners: dict[str, list[StateListener]] = {}
        store.subscribe(self)

    def announce_place(self, kind: NewsKind, owner: str, place: ChainPlace) -> None:
        """Of a record when it is in the store: those who hear of it look there."""
        self._store.publish(make_tag(owner), f"{kind} {place.key} {place.length}")

    def announce_record(self, kind: RecordKind, owner: str, key: str) -> None:
        self._store.publish(make_tag(owner), f"{kind} {key}")

    def listen(self, kind: NewsKind | RecordKind | Literal["purge"], listener: StateListener) -> None:
        """Of a purge the process that does it hears, too."""
        self._listeners.setdefault(kind, []).append(listener)

    def on_news(self, tag: str, text: str) -> None:
        """News of a kind that this version does not know are ignored."""
        kind, *said = text.split(" ")
        if not said or not _KEY.fullmatch(said[0]):
            return
        if kind in _EFFECTS:
            if len(said) != 2 or not _LENGTH.fullmatch(said[1]):
                return
            begun, ended = _EFFECTS[kind]
            if begun is not None:
                self.places.add(begun, tag, ChainPlace(said[0], int(said[1])))
            if ended is not None:
                self.places.drop(ended, tag, said[0])
        self._tell(kind, tag, said[0])

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        """Everything that memory has of a tenant, or of one conversation, is forgotten."""
        self._memory.forget(tag, group)
        if group is None:
            self._tell("purge", tag, "")

    def on_gap(self) -> None:
        self._memory.generation += 1

    def _tell(self, kind: str, tag: str, key: str) -> None:
        for listener in self._listeners.get(kind, ()):
            listener(tag, key)
