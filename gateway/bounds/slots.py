"""Limits how much work is under way at once, in all and for each owner; the rest waits for its turn.

Work that a client waits for goes before work in the background, and some places are kept for it. Among work
of one kind the owners take turns. Knows nothing of what the work is.
"""

import asyncio
from collections import Counter
from types import TracebackType
from typing import Final, Self

from gateway.bounds.fair_queue import FairQueue

# Background work never takes more than this share of the places, as it may hold them for a minute. The rest
# is free for work that a client waits for.
_BACKGROUND_SHARE: Final = 0.75
# So many times as much may wait in the background as may be under way. What does not fit is not worth waiting
# for: the next response of its conversation asks again.
_WAITING_SHARE: Final = 4


class Slots:
    """Used on one event loop."""

    def __init__(self, most: int, most_per_owner: int) -> None:
        self._most = most
        self._most_per_owner = most_per_owner
        # How many places each owner has taken.
        self._taken: Counter[str] = Counter()
        self._awaited: FairQueue[Place] = FairQueue()
        self._background: FairQueue[Place] = FairQueue()

    @property
    def taken(self) -> int:
        return self._taken.total()

    @property
    def waiting(self) -> int:
        return len(self._awaited) + len(self._background)

    def is_crowded(self, owner: str) -> bool:
        """Whether so much waits in the background that this owner should not add to it."""
        waiting = self._background
        return (
            len(waiting) >= _WAITING_SHARE * self._most
            or waiting.count(owner) >= _WAITING_SHARE * self._most_per_owner
        )

    def place(self, owner: str, *, is_awaited: bool) -> "Place":
        """For one piece of work. is_awaited: whether a client waits for it."""
        return Place(self, owner, is_awaited=is_awaited)

    async def enter(self, place: "Place") -> None:
        """Waits for a free place."""
        place.entry = asyncio.get_running_loop().create_future()
        self._queue_of(place).put(place.owner, place)
        self._let_in()
        try:
            await place.entry
        except asyncio.CancelledError:
            self._queue_of(place).drop(place.owner, place)
            if not place.entry.cancelled():
                self.leave(place)
            raise

    def leave(self, place: "Place") -> None:
        self._taken[place.owner] -= 1
        if not self._taken[place.owner]:
            del self._taken[place.owner]
        self._let_in()

    def hurry(self, place: "Place") -> None:
        """A client waits for it from now on."""
        if not place.is_awaited:
            is_waiting = self._background.drop(place.owner, place)
            place.is_awaited = True
            if is_waiting:
                self._awaited.put(place.owner, place)
                self._let_in()

    def _queue_of(self, place: "Place") -> "FairQueue[Place]":
        return self._awaited if place.is_awaited else self._background

    def _let_in(self) -> None:
        self._take_from(self._awaited, self._most, self._most_per_owner)
        self._take_from(
            self._background,
            max(1, int(self._most * _BACKGROUND_SHARE)),
            max(1, int(self._most_per_owner * _BACKGROUND_SHARE)),
        )

    def _take_from(self, queue: "FairQueue[Place]", most: int, most_per_owner: int) -> None:
        while self.taken < most:
            full = {owner for owner, taken in self._taken.items() if taken >= most_per_owner}
            place = queue.take(full)
            if place is None:
                return
            # A cancelled one has not left the queue yet.
            if not place.entry.done():
                self._taken[place.owner] += 1
                place.entry.set_result(None)


class Place:
    """Is entered as a context: the work runs inside."""

    # Done once the work may begin.
    entry: asyncio.Future[None]

    def __init__(self, slots: Slots, owner: str, *, is_awaited: bool) -> None:
        self.owner = owner
        self.is_awaited = is_awaited
        self._slots = slots

    def hurry(self) -> None:
        """A client waits for the work from now on."""
        self._slots.hurry(self)

    async def __aenter__(self) -> Self:
        await self._slots.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots.leave(self)
