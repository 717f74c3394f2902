"""What is known of the history of a request: its nearest head, also behind what was cleared or dropped.

Memory is enough where this process has answered the turn before and nothing can have changed since. Otherwise
the store is asked, once for everything that the request names itself, and once for what that names.
"""

from functools import partial

import msgspec

from gateway.conversations import trimmed_histories
from gateway.conversations.reading import Received
from gateway.core.history.conversation import count_replies
from gateway.core.history.ends import HistoryEnd, HistorySource
from gateway.core.history.head import Head
from gateway.core.sizing.estimate import Meter
from gateway.state import State
from gateway.state.news import ChainPlace
from gateway.state.trip import Trip
from gateway.store.interface import Unknown
from gateway.store.keys import make_tag


class Subject(msgspec.Struct, frozen=True):
    """A request whose history is looked for, and what its history must have in common with it."""

    received: Received
    # Both as in Turn.
    scope: str
    source: HistorySource
    # What counts its tokens, and the name under which limits of its model are learned: both are asked for
    # together with the rest.
    meter: Meter
    learned_name: str
    # What the policy puts in place of a cleared result.
    placeholder: str
    # Seconds that the request may wait for the store.
    patience: float


class KnownHistory(msgspec.Struct, frozen=True):
    """What is known about a request."""

    # With the messages that its client has dropped, if they were found.
    received: Received
    # The nearest one.
    head: Head | None
    # Whether the model has replied between the head and this request without a head of that.
    lacks_replies: bool
    # The store has not said what it knows of it: there may be a newer head, or a summary.
    is_unsure: bool = False

    @property
    def keeps_pivot(self) -> bool:
        """Whether the pivot that the head names stands for a part of this history."""
        if self.head is None or self.head.pivot is None:
            return True
        return bytes.fromhex(self.head.pivot) in self.received.conversation.known_chain


def make_known(received: Received, head: Head | None) -> KnownHistory:
    added = received.conversation.messages[head.length if head is not None else 0 :]
    return KnownHistory(received, head, count_replies(added) > (1 if head is not None else 0))


class HistorySearch:
    def __init__(self, state: State) -> None:
        self._state = state

    async def find(self, subject: Subject) -> KnownHistory:
        """Suspends only if the store has to be asked. What memory has if it says nothing in time."""
        known = self._find_head(subject, subject.received)
        trimmed = self._find_trimmed(subject) if known.lacks_replies else None
        is_whole = trimmed is not None and trimmed.keeps_pivot and not trimmed.lacks_replies
        best = trimmed if trimmed is not None and is_whole else known
        try:
            if best.lacks_replies:
                return await self._search(subject, known, trimmed)
            return await self._search(subject, best, None) if self._may_be_outdated(best) else best
        except Unknown:
            return msgspec.structs.replace(trimmed or known, is_unsure=True)

    def _find_head(self, subject: Subject, received: Received) -> KnownHistory:
        """In memory alone."""
        return make_known(received, self._state.heads.find(received.conversation, subject.scope))

    def _find_trimmed(self, subject: Subject) -> KnownHistory | None:
        """As the continuation of a history in memory of which the client has dropped a part."""
        received = self._continue(subject)
        known = self._find_head(subject, received) if received is not None else None
        return known if known is not None and known.head is not None else None

    def _may_be_outdated(self, known: KnownHistory) -> bool:
        """What is missing in memory was lost there, or another process has made it."""
        state, head = self._state, known.head
        if head is not None and (not state.heads.is_current(head) or state.pivots.lacks(head)):
            return True
        return bool(self._find_news(known))

    def _find_news(self, known: KnownHistory) -> list[ChainPlace]:
        """Places where the store has to be looked at. What the head's pivot has replaced is not used."""
        received, head = known.received, known.head
        found = self._state.news.places.find("news", make_tag(received.owner), received.conversation)
        return [place for place in found if head is None or place.length >= head.covers] if found else found

    async def _search(
        self, subject: Subject, known: KnownHistory, trimmed: KnownHistory | None
    ) -> KnownHistory:
        """In the store, and behind what the client has cleared or dropped, if replies are missing."""
        state, received, ends = self._state, known.received, list[HistoryEnd]()
        trip = self._begin_trip(subject)
        self._ask(trip, subject, known)
        if trimmed is not None:
            self._ask(trip, subject, trimmed)
        elif known.lacks_replies:
            keys = [key for _, key in trimmed_histories.list_ends(state, received, subject.source)]
            state.histories.ask(trip, keys, ends.append)
        await trip.run()
        known = self._find_head(subject, received)
        if not known.lacks_replies:
            await self._load_named([known], self._begin_trip(subject))
            return known
        if trimmed is not None:
            trimmed = self._find_head(subject, trimmed.received)
        resumed = self._resume(subject, ends[0]) if ends else None
        trip = self._begin_trip(subject)
        if resumed is not None:
            self._ask(trip, subject, resumed)
            state.pivots.ask_names(trip, received.owner, ends[0].pivot, ends[0].batches)
        await self._load_named([each for each in (known, trimmed) if each is not None], trip)
        if trimmed is None and resumed is not None:
            trimmed = self._find_head(subject, resumed.received)
            trimmed = trimmed if trimmed.head is not None else None
            await self._load_named([trimmed] if trimmed is not None else [], self._begin_trip(subject))
        return trimmed or known

    def _resume(self, subject: Subject, end: HistoryEnd) -> KnownHistory | None:
        """As the continuation of a stored history. Its head is still to be loaded."""
        received = self._continue(subject, end)
        return make_known(received, None) if received is not None else None

    def _continue(self, subject: Subject, end: HistoryEnd | None = None) -> Received | None:
        received, source, placeholder = subject.received, subject.source, subject.placeholder
        return trimmed_histories.find(self._state, received, source, placeholder, end)

    def _begin_trip(self, subject: Subject) -> Trip:
        return self._state.begin_trip(subject.received.owner, subject.patience)

    def _ask(self, trip: Trip, subject: Subject, known: KnownHistory) -> None:
        """For what is newer than what memory has of this history: a head, a marker, a pivot."""
        state, owner, conversation = self._state, known.received.owner, known.received.conversation
        state.calibrations.ask(trip, owner, subject.meter, subject.learned_name)
        state.heads.ask(trip, conversation, subject.scope)
        state.tasks.ask(trip, conversation, known.head)
        state.pivots.ask_newest(trip, conversation, is_known=known.head is not None)
        state.pivots.ask_named(trip, owner, known.head)
        news = self._find_news(known)
        for place in news:
            state.pivots.ask_pivot(trip, owner, place.key)
        # What is told of them from now on has to be looked at again.
        trip.on_done(partial(state.news.places.settle, "news", make_tag(owner), news))

    async def _load_named(self, known: list[KnownHistory], trip: Trip) -> None:
        """What their heads name, with what the trip asks for already."""
        for each in known:
            self._state.pivots.ask_named(trip, each.received.owner, each.head)
        await trip.run()
