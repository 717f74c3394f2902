"""Markers of compactions that are due, and the outcome of commands that were carried out."""

from gateway.core.compaction.manual import Compacted
from gateway.core.history.conversation import Conversation, list_links
from gateway.core.history.head import Head
from gateway.state.cached import Storage
from gateway.state.kinds import Marker
from gateway.state.news import ChainPlace, StateNews
from gateway.state.trip import Trip
from gateway.store.interface import LATEST
from gateway.store.keys import make_tag


class Tasks:
    def __init__(self, storage: Storage, news: StateNews) -> None:
        self._news = news
        self._markers = storage.records.markers
        self._commands = storage.records.commands

    def save_marker(self, marker: Marker) -> None:
        """For a compaction that this process is about to do. Only a later process finds it."""
        self._markers.put(marker.owner, marker.key, marker, group=marker.conversation)

    def leave_marker(self, marker: Marker) -> None:
        """For the chain's next request, in this process, in another one, or in a later one. Others find it by
        the head at its place.
        """
        self.save_marker(marker)
        self.wait(marker)
        self._news.announce_place("marker", marker.owner, ChainPlace(marker.key, marker.length))

    def ask(self, trip: Trip, conversation: Conversation, head: Head | None) -> None:
        """For the newest marker behind this head, or at it: it waits for the chain's next request."""

        def take(_: str, marker: Marker | None) -> None:
            if marker is not None:
                self.wait(marker)

        links = list_links(conversation, head.length if head is not None else 1)
        trip.ask(self._markers, (link.hex() for link in links), take)

    def wait(self, marker: Marker) -> None:
        """For the chain's next request in this process."""
        place = ChainPlace(marker.key, marker.length, marker)
        self._news.places.add("waiting", make_tag(marker.owner), place)

    def pop_waiting(self, owner: str, conversation: Conversation) -> Marker | None:
        """The newest marker on the chain. Its head may be an earlier one than that of the request: while a
        summary is made, the client goes on, and then the process may end.
        """
        places, tag = self._news.places, make_tag(owner)
        for place in reversed(places.find("waiting", tag, conversation)):
            places.drop("waiting", tag, place.key)
            return place.marker
        return None

    async def take(self, owner: str, key: str) -> Marker | None:
        """The marker at this chain, out of the store: of several processes one gets it, and does what it
        stands for. Raises StoreError.
        """
        self._news.places.drop("waiting", make_tag(owner), key)
        return await self._markers.take(owner, key)

    def drop_marker(self, owner: str, key: str) -> None:
        self._markers.drop(owner, key)

    async def load_command(self, owner: str, key: str) -> Compacted | None:
        """What the command did. key: the chain of the request that the command was. Raises Unknown."""
        return await self._commands.get(owner, key, wait=LATEST)

    async def save_command(self, owner: str, key: str, outcome: Compacted, conversation_id: str) -> None:
        """Durable when this returns, and so is all that was saved before it. Raises StoreError."""
        await self._commands.put_durable(owner, key, outcome, group=conversation_id)
