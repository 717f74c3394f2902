"""Counts over all processes, and in each process alone while they cannot be reached."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.quotas.ledger import Ledger
from gateway.quotas.meter import Rate
from tests.builders.quotas import ToySupervisor
from tests.toy.running import wait_until

_RATE = Rate("quota:{tag}requests", 3, 3_600)


@asynccontextmanager
async def opened(supervisor: ToySupervisor | None = None, renew_seconds: float = 60) -> AsyncIterator[Ledger]:
    ledger = Ledger(supervisor.connect() if supervisor is not None else None, renew_seconds)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def is_refused(ledger: Ledger) -> bool:
    return await ledger.count(_RATE) > 0


async def test_one_process_counts_for_itself() -> None:
    async with opened() as ledger:
        assert [await is_refused(ledger) for _ in range(4)] == [False, False, False, True]
        await ledger.correct(_RATE, -1)
        assert [await is_refused(ledger) for _ in range(2)] == [False, True]
        first, second = ledger.make_place("k"), ledger.make_place("k")
        assert [await ledger.take(place, 1) for place in (first, second)] == [True, False]
        ledger.give_back(first)
        assert await ledger.take(second, 1)


async def test_processes_count_together() -> None:
    supervisor = ToySupervisor()
    async with opened(supervisor) as first, opened(supervisor) as second:
        turns = (first, second, first, second, first)
        assert [await is_refused(ledger) for ledger in turns] == [False, False, False, True, True]


async def test_a_place_that_one_process_gives_back_is_free_for_another() -> None:
    supervisor = ToySupervisor()
    async with opened(supervisor) as first, opened(supervisor) as second:
        place = first.make_place("k")
        assert await first.take(place, 1)
        assert not await second.take(second.make_place("k"), 1)
        first.give_back(place)
        await wait_until(lambda: "give back" in supervisor.calls)
        assert await second.take(second.make_place("k"), 1)


async def test_a_process_that_ends_gives_back_what_it_holds() -> None:
    supervisor = ToySupervisor()
    async with opened(supervisor) as second:
        async with opened(supervisor) as first:
            assert await first.take(first.make_place("k"), 1)
        assert await second.take(second.make_place("k"), 1)


async def test_places_of_running_requests_are_renewed() -> None:
    supervisor = ToySupervisor()
    async with opened(supervisor, renew_seconds=0.01) as ledger:
        await ledger.take(ledger.make_place("k"), 1)
        await wait_until(lambda: supervisor.calls.count("renew") > 2)


async def test_while_they_cannot_be_reached_each_process_counts_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.quotas")
    supervisor = ToySupervisor()
    async with opened(supervisor) as first, opened(supervisor) as second:
        assert [await is_refused(first) for _ in range(4)] == [False, False, False, True]
        supervisor.is_away = True
        for ledger in (first, second):
            assert [await is_refused(ledger) for _ in range(4)] == [False, False, False, True]
        supervisor.is_away = False
        assert [await is_refused(ledger) for ledger in (first, second)] == [True, True]
    alone = "limits of tenants hold in each process alone: the store cannot be reached"
    together = "limits of tenants hold over all processes again"
    assert [record.getMessage() for record in caplog.records] == [alone] * 2 + [together] * 2


async def test_requests_that_ran_before_hold_their_places_while_the_store_is_away() -> None:
    supervisor = ToySupervisor()
    async with opened(supervisor) as ledger:
        place = ledger.make_place("k")
        assert await ledger.take(place, 1)
        supervisor.is_away = True
        assert not await ledger.take(ledger.make_place("k"), 1)
        ledger.give_back(place)
        assert await ledger.take(ledger.make_place("k"), 1)


async def test_requests_that_began_alone_hold_their_places_when_the_store_is_back() -> None:
    supervisor = ToySupervisor()
    supervisor.is_away = True
    async with opened(supervisor, renew_seconds=0.01) as first, opened(supervisor) as second:
        assert await first.take(first.make_place("k"), 1)
        supervisor.is_away = False
        supervisor.calls.clear()
        await wait_until(lambda: "renew" in supervisor.calls)
        assert not await second.take(second.make_place("k"), 1)


@pytest.mark.parametrize("steps", range(6))
async def test_a_request_that_ends_while_its_place_is_taken_leaves_none(steps: int) -> None:
    supervisor = ToySupervisor()
    async with opened(supervisor) as ledger:
        place = ledger.make_place("k")
        taking = asyncio.create_task(ledger.take(place, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        ledger.give_back(place)
        await wait_until(lambda: "give back" in supervisor.calls)
        await asyncio.sleep(0)
        assert await ledger.take(ledger.make_place("k"), 1)
