"""What watchers are told, and that nothing is done while there are none."""

import asyncio
import json
from functools import partial

from gateway.activity.rows import Row
from gateway.reporting.activity_feed import MOST_ROWS, ActivityFeed, take_rows
from gateway.reporting.events import Bus, event_name, render_event
from tests.activity.talk import make_book, plan, turn


async def test_watchers_get_one_event_for_all_conversations_that_changed() -> None:
    book, bus = make_book(), Bus()
    feed = ActivityFeed(bus, partial(take_rows, book))
    with bus.subscribe(watches=True) as watcher, bus.subscribe() as other:
        for identity in ("a", "b", "a"):
            book.note_request(turn(identity), plan(), None)
        await feed.publish()
        event = await watcher.next()
        await feed.publish()
        book.note_request(turn("b"), plan(), None)
        await feed.publish()
        second = await watcher.next()
        async with asyncio.timeout(1):
            bus.publish(second)
            assert await other.next() is second
    assert event_name(event) == "activity"
    told = json.loads(render_event(event))
    assert told["type"] == "activity"
    assert {row["id"]: row["requests"] for row in told["conversations"]} == {"a": 2, "b": 1}
    assert [row["id"] for row in json.loads(render_event(second))["conversations"]] == ["b"]


async def test_nothing_is_asked_while_nobody_watches() -> None:
    asked: list[int] = []

    async def take() -> list[Row]:
        asked.append(bus.watchers)
        has_asked.set()
        return []

    bus, has_asked = Bus(), asyncio.Event()
    running = asyncio.create_task(ActivityFeed(bus, take, period_seconds=0.001).run())
    with bus.subscribe():
        await asyncio.sleep(0.05)
        assert asked == []
        with bus.subscribe(watches=True):
            await asyncio.wait_for(has_asked.wait(), 30)
    running.cancel()
    assert set(asked) == {1} and bus.watchers == 0


async def test_an_event_has_a_bounded_number_of_rows_the_newest_first() -> None:
    book = make_book()
    for number in range(MOST_ROWS + 10):
        book.note_request(turn(f"{number}"), plan(), None)
    rows = await take_rows(book)
    assert len(rows) == MOST_ROWS and await take_rows(book) == []
