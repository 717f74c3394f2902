"""The events of all workers come on one bus, whichever of them ends or is new."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.admin.merged.collector import MetricsCollector
from gateway.admin.merged.event_relay import EventRelay
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.reporting.events import Bus, Pruned, Relayed, Subscription, event_name, render_event
from tests.toy.workers import ToyWorker, running_toys


@asynccontextmanager
async def relaying(live: LiveWorkers) -> AsyncIterator[tuple[Subscription, MetricsCollector]]:
    bus, collector = Bus(), MetricsCollector(live)
    task = asyncio.ensure_future(EventRelay(live, bus, collector).run())
    try:
        with bus.subscribe() as subscription:
            yield subscription, collector
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def prune(toy: ToyWorker, marks: int) -> None:
    toy.bus.publish(Pruned(session_id="c", tenant="t", marks=marks, saved_tokens=0))


async def read_marks(subscription: Subscription) -> int:
    event = await subscription.next()
    assert isinstance(event, Relayed) and event.name == "pruned"
    marks: int = json.loads(event.data)["marks"]
    return marks


async def test_events_come_as_the_worker_rendered_them() -> None:
    event = Pruned(session_id="c", tenant="blue: \n\n data", marks=1, saved_tokens=2)
    async with running_toys(1) as (live, (toy,)), relaying(live) as (heard, _):
        toy.bus.publish(event)
        relayed = await heard.next()
    assert (event_name(relayed), render_event(relayed)) == ("pruned", render_event(event))


async def test_events_of_all_workers_come_in_the_order_of_each() -> None:
    async with running_toys(3) as (live, toys), relaying(live) as (heard, _):
        for number in range(4):
            for at, toy in enumerate(toys):
                prune(toy, 10 * at + number)
        marks = [await read_marks(heard) for _ in range(12)]
    assert sorted(marks) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    for at in range(3):
        assert [mark for mark in marks if mark // 10 == at] == [10 * at + number for number in range(4)]


async def test_what_a_worker_did_before_it_was_found_is_heard() -> None:
    live = LiveWorkers()
    async with running_toys(1) as (_, (toy,)), relaying(live) as (heard, _):
        prune(toy, 1)
        live.add(toy.socket)
        assert await read_marks(heard) == 1


async def test_a_worker_whose_socket_comes_late_is_heard() -> None:
    async with running_toys(1) as (live, (toy,)), relaying(live) as (heard, _):
        late = ToyWorker(toy.socket.with_suffix(".2"))
        live.add(late.socket)
        prune(late, 1)
        prune(toy, 2)
        assert await read_marks(heard) == 2
        await late.start()
        assert await read_marks(heard) == 1
        await late.crash()


async def test_the_death_of_a_worker_disturbs_no_other_and_its_replacement_is_heard() -> None:
    async with running_toys(2) as (live, toys), relaying(live) as (heard, _):
        prune(toys[0], 1)
        assert await read_marks(heard) == 1
        await toys[0].crash()
        prune(toys[1], 2)
        assert await read_marks(heard) == 2
        live.remove(toys[0].socket)
        fresh = ToyWorker(toys[0].socket.with_suffix(".2"))
        await fresh.start()
        live.add(fresh.socket)
        prune(fresh, 3)
        assert await read_marks(heard) == 3
        await fresh.crash()


async def test_a_worker_that_ends_in_order_leaves_all_its_events_and_its_metrics() -> None:
    async with running_toys(2) as (live, toys), relaying(live) as (heard, collector):
        prune(toys[0], 1)
        assert await read_marks(heard) == 1
        # Nobody has asked for its metrics yet.
        await collector.render()
        for mark in (2, 3):
            prune(toys[0], mark)
            toys[0].metrics.count_pruning()
        await toys[0].end()
        assert [await read_marks(heard) for _ in range(2)] == [2, 3]
        live.remove(toys[0].socket)
        text = (await collector.render()).decode()
    assert "\ngateway_prunings_total 2.0\n" in text
