"""Carries events to whoever subscribed, inside this process. Publishing never waits and never fails.

A subscriber that does not keep up loses the oldest and is told how many. Belongs to one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gateway.events import Event, Lost

# Compactions are rare: this many are hours of them, and 100 KB at most.
_QUEUE: Final = 256


class Subscription:
    """One subscriber's queue."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Event] = deque()
        self._lost = 0
        self._something = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(event)
        self._something.set()

    async def next(self) -> Event:
        """Waits for one; what was lost before it is told first."""
        await self._something.wait()
        if self._lost:
            lost, self._lost = Lost(count=self._lost), 0
            return lost
        event = self._waiting.popleft()
        if not self._waiting:
            self._something.clear()
        return event


class Bus:
    def __init__(self, queue: int = _QUEUE) -> None:
        """queue: events that wait for one subscriber at most."""
        self._queue = queue
        self._subscriptions: set[Subscription] = set()

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def publish(self, event: Event) -> None:
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Everything that is published while this is open."""
        subscription = Subscription(self._queue)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
