"""Tells those who watch, once a second, which conversations have changed.

One event holds all of them. Requests publish nothing themselves, and without a listener no event is made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from gateway.activity.book import ActivityBook
from gateway.activity.rows import ActivityEvent, Row, make_row
from gateway.reporting.events import Bus, Relayed

PERIOD_SECONDS: Final = 1.0
# The largest event. Without a listener changes add up to far more.
MOST_ROWS: Final = 500

# Gives what has changed since it was asked before.
TakeRows = Callable[[], Awaitable[Sequence[Row]]]


class ActivityFeed:
    def __init__(self, bus: Bus, take_rows: TakeRows, period_seconds: float = PERIOD_SECONDS) -> None:
        self._bus = bus
        self._take_rows = take_rows
        self._period_seconds = period_seconds

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(self._period_seconds)
            if self._bus.has_watchers:
                await self.publish()

    async def publish(self) -> None:
        rows = await self._take_rows()
        if rows:
            # Rendered once, however many watch.
            event = ActivityEvent(conversations=rows[:MOST_ROWS])
            self._bus.publish_to_watchers(Relayed(name=event.type, data=msgspec.json.encode(event)))


async def take_rows(book: ActivityBook) -> list[Row]:
    """What has changed in this process, the newest first."""
    changed = sorted(book.take_changed(), key=lambda activity: activity.seen_seconds, reverse=True)
    return [make_row(activity) for activity in changed[:MOST_ROWS]]
