"""Places on chains, of each tenant: where something is that the next request of a conversation must look at.

A place is a link and the number of messages before it, so one comparison tells whether it is on the chain of
a conversation.
"""

from typing import Final, NamedTuple

from gateway.core.history.conversation import Conversation
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.memory import Memory, Whose

# Some six thousand places.
_MAX_BYTES: Final = 4 << 20
_WEIGHT_BYTES: Final = 2 * ENTRY_WEIGHT_BYTES + 250


class ChainPlace(NamedTuple):
    """key: the link in hex. length: messages before it."""

    key: str
    length: int


class _Placed(NamedTuple):
    tag: str
    link: bytes
    length: int


class ChainPlaces:
    """Bounded: those that were added first are forgotten first."""

    def __init__(self, memory: Memory) -> None:
        self._places: Lru[tuple[str, bytes], _Placed] = memory.shelf(
            lambda placed: (Whose(placed.tag),), _MAX_BYTES
        )

    def add(self, tag: str, place: ChainPlace) -> None:
        link = bytes.fromhex(place.key)
        self._places.put((tag, link), _Placed(tag, link, place.length), _WEIGHT_BYTES)

    def find(self, tag: str, conversation: Conversation) -> list[ChainPlace]:
        """Those on the chain of a conversation, in the order of the chain."""
        chain, places = conversation.chain, self._places
        if not places.size_bytes:
            return []
        if len(places) <= len(chain):
            found = [
                each
                for each in places.values()
                if each.tag == tag and each.length < len(chain) and chain[each.length] == each.link
            ]
        else:
            found = [each for link in chain if (each := places.peek((tag, link))) is not None]
        found.sort(key=lambda each: each.length)
        return [ChainPlace(each.link.hex(), each.length) for each in found]

    def drop(self, tag: str, key: str) -> None:
        self._places.pop((tag, bytes.fromhex(key)))
