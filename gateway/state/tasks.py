"""Markers of compactions that are due, and the outcome of commands that were carried out."""

from typing import Final

from gateway.core.compaction.manual import Compacted
from gateway.core.history.conversation import Conversation, list_links
from gateway.core.history.head import Head
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.cached import Storage
from gateway.state.chain_places import ChainPlace
from gateway.state.heads import Heads
from gateway.state.kinds import Marker
from gateway.state.memory import Whose
from gateway.state.news import StateNews
from gateway.state.trip import Trip
from gateway.store.interface import LATEST
from gateway.store.keys import make_tag

_WAITING_BYTES: Final = 1 << 20
_MARKER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600


class Tasks:
    def __init__(self, storage: Storage, heads: Heads, news: StateNews) -> None:
        self._heads = heads
        self._news = news
        self._markers = storage.records.markers
        self._commands = storage.records.commands
        # Markers that the next request of their chain takes, by that chain.
        self.waiting: Lru[str, Marker] = storage.memory.shelf(
            lambda marker: (Whose(make_tag(marker.owner), marker.conversation),), _WAITING_BYTES
        )

    def save_marker(self, marker: Marker) -> None:
        """For a compaction that this process is about to do. Only a later process finds it."""
        self._markers.put(marker.owner, marker.key, marker, group=marker.conversation)

    def leave_marker(self, marker: Marker) -> None:
        """For the chain's next request, in this process, in another one, or in a later one."""
        self.save_marker(marker)
        self.wait(marker)
        # Another process finds the marker by its head.
        self._heads.save_held(marker.key)
        self._news.announce_place("marker", marker.owner, ChainPlace(marker.key, marker.length))

    def ask(self, trip: Trip, conversation: Conversation, head: Head | None) -> None:
        """For the newest marker behind this head, or at it: it waits for the chain's next request."""
        links = list_links(conversation, head.length if head is not None else 1)
        trip.ask(self._markers, (link.hex() for link in links), self._take)

    def pop_waiting(self, conversation: Conversation) -> Marker | None:
        """The newest marker on the chain. Its head may be an earlier one than that of the request: while a
        summary is made, the client goes on, and then the process may end.
        """
        chain = conversation.chain
        on_chain = [
            marker
            for marker in (self.waiting.values() if len(self.waiting) else ())
            if marker.length < len(chain) and chain[marker.length].hex() == marker.key
        ]
        newest = max(on_chain, key=lambda marker: marker.length, default=None)
        return self.waiting.pop(newest.key) if newest is not None else None

    async def take(self, owner: str, key: str) -> Marker | None:
        """The marker at this chain, out of the store: of several processes one gets it, and does what it
        stands for. Raises StoreError.
        """
        self.waiting.pop(key)
        return await self._markers.take(owner, key)

    def drop_marker(self, owner: str, key: str) -> None:
        self._markers.drop(owner, key)

    async def load_command(self, owner: str, key: str) -> Compacted | None:
        """What the command did. key: the chain of the request that the command was. Raises Unknown."""
        found = await self._commands.get(owner, (key,), wait=LATEST)
        return found.record if found is not None else None

    async def save_command(self, owner: str, key: str, outcome: Compacted, conversation_id: str) -> None:
        """Durable when this returns, and so is all that was saved before it. Raises StoreError."""
        await self._commands.put_durable(owner, key, outcome, group=conversation_id)

    def _take(self, _: str, marker: Marker | None) -> None:
        if marker is not None:
            self.wait(marker)

    def wait(self, marker: Marker) -> None:
        """For the chain's next request in this process."""
        weight_bytes = _MARKER_WEIGHT_BYTES + weigh_texts(marker.instructions)
        self.waiting.put(marker.key, marker, weight_bytes)
