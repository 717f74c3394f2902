"""Places on chains, of each tenant: where something is that the next request of a conversation must look at.

A place is a link and the number of messages before it, so one comparison tells whether it is on the chain of
a conversation.
"""

from typing import Final, NamedTuple

from gateway.core.history.conversation import Conversation
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru

# Some six thousand places.
_MAX_BYTES: Final = 4 << 20
# Of both dictionaries.
_WEIGHT_BYTES: Final = 2 * ENTRY_WEIGHT_BYTES + 250


class ChainPlace(NamedTuple):
    """key: the link in hex. length: messages before it."""

    key: str
    length: int


class ChainPlaces:
    """Bounded: those that were added first are forgotten first."""

    def __init__(self) -> None:
        self._order: Lru[tuple[str, bytes], tuple[str, bytes]] = Lru(_MAX_BYTES)
        self._lengths: dict[str, dict[bytes, int]] = {}

    def add(self, tag: str, place: ChainPlace) -> None:
        link = bytes.fromhex(place.key)
        self._lengths.setdefault(tag, {})[link] = place.length
        for gone in self._order.put((tag, link), (tag, link), _WEIGHT_BYTES):
            self._drop(*gone)

    def find(self, tag: str, conversation: Conversation) -> list[ChainPlace]:
        """Those on the chain of a conversation, in the order of the chain."""
        lengths = self._lengths.get(tag)
        if not lengths:
            return []
        chain = conversation.chain
        if len(lengths) <= len(chain):
            links = [
                link for link, length in lengths.items() if length < len(chain) and chain[length] == link
            ]
        else:
            links = [link for link in chain if link in lengths]
        places = [ChainPlace(link.hex(), lengths[link]) for link in links]
        return sorted(places, key=lambda place: place.length)

    def drop(self, tag: str, key: str) -> None:
        link = bytes.fromhex(key)
        self._order.pop((tag, link))
        self._drop(tag, link)

    def forget(self, tag: str) -> None:
        """All of a tenant."""
        for link in self._lengths.pop(tag, {}):
            self._order.pop((tag, link))

    def _drop(self, tag: str, link: bytes) -> None:
        lengths = self._lengths.get(tag)
        if lengths is None:
            return
        lengths.pop(link, None)
        if not lengths:
            del self._lengths[tag]
