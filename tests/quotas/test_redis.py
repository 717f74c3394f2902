"""The same counts for all gateways at one real Redis."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.quotas.ledger import Backend, Ledger
from gateway.quotas.meter import Rate
from gateway.quotas.redis import ScriptRunner, make_redis_backend
from gateway.store import StoreError
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from gateway.store.redis.address import parse_address
from gateway.store.redis.store import RedisStore
from tests.store.redis.servers import impatient, opened
from tests.toy.redis_server import RedisServer, requires_redis, running_redis

pytestmark = requires_redis

_TAG = make_tag("tenant:a")
_RATE = Rate(make_key(_TAG, "quota", "requests"), 3, 3_600)
_PLACES = make_key(_TAG, "quota", "places")


@asynccontextmanager
async def two_backends(redis: RedisServer) -> AsyncIterator[tuple[Backend, Backend]]:
    async with AsyncExitStack() as stack:
        address = parse_address(redis.patient_url)
        stores = [await stack.enter_async_context(opened(RedisStore(address))) for _ in range(2)]
        yield make_redis_backend(stores[0]), make_redis_backend(stores[1])


def test_only_a_store_on_a_server_runs_scripts() -> None:
    assert isinstance(RedisStore(parse_address("redis://localhost")), ScriptRunner)
    assert not isinstance(MemoryStore(), ScriptRunner)


async def test_gateways_count_together(empty_redis: RedisServer) -> None:
    async with two_backends(empty_redis) as (first, second):
        assert await first.meter.count(_RATE, cost=2) == 0.0
        assert await second.meter.count(_RATE) == 0.0
        wait_seconds = await first.meter.count(_RATE)
        assert 3_590 < wait_seconds <= 3_601
        await second.meter.correct(_RATE, -1)
        assert await first.meter.count(_RATE) == 0.0


async def test_many_attempts_at_once_never_exceed_the_limit(empty_redis: RedisServer) -> None:
    wide = _RATE._replace(most=50)
    async with two_backends(empty_redis) as backends:
        waits = await asyncio.gather(*[backends[at % 2].meter.count(wide) for at in range(200)])
        members = [f"m{at}" for at in range(100)]
        taken = await asyncio.gather(
            *[backends[at % 2].places.take(_PLACES, member, 7) for at, member in enumerate(members)]
        )
    assert waits.count(0.0) == 50
    assert taken.count(True) == 7


async def test_who_waits_as_long_as_told_gets_through(empty_redis: RedisServer) -> None:
    async with two_backends(empty_redis) as (first, second):
        rate = _RATE._replace(seconds=1)
        for _ in range(3):
            wait_seconds = await first.meter.count(rate)
            while not wait_seconds:
                wait_seconds = await first.meter.count(rate)
            await asyncio.sleep(wait_seconds)
            assert await second.meter.count(rate) == 0.0


async def test_gateways_share_places(empty_redis: RedisServer) -> None:
    async with two_backends(empty_redis) as (first, second):
        assert await first.places.take(_PLACES, "a", 2)
        await second.places.renew({_PLACES: ["b"]})
        assert not await first.places.take(_PLACES, "c", 2)
        await first.places.give_back({_PLACES: ["b", "never taken"]})
        assert await second.places.take(_PLACES, "c", 2)


async def test_all_keys_lie_in_the_slot_of_their_tenant_and_expire(empty_redis: RedisServer) -> None:
    async with two_backends(empty_redis) as (first, _):
        await first.meter.count(_RATE)
        await first.places.take(_PLACES, "a", 1)
    keys = [key for key in await empty_redis.list_keys() if "quota" in key]
    assert keys == [f"gateway1:quota:{{{_TAG}}}places", f"gateway1:quota:{{{_TAG}}}requests"]
    lives = [await empty_redis.run("PTTL", key) for key in keys]
    assert [life for life in lives if isinstance(life, int) and 0 < life <= 7_200_000] == lives


async def test_a_purge_of_the_tenant_deletes_its_counts(empty_redis: RedisServer) -> None:
    async with opened(RedisStore(parse_address(empty_redis.patient_url))) as store:
        backend = make_redis_backend(store)
        await backend.meter.count(_RATE)
        await backend.places.take(_PLACES, "a", 1)
        await store.purge(_TAG)
    assert [key for key in await empty_redis.list_keys() if _TAG in key] == []


@pytest.mark.parametrize(
    "command", [("HSET", "f", "v"), ("SET", "no number"), ("ZADD", "1", "m"), ("LPUSH", "x")]
)
async def test_what_something_else_wrote_under_the_keys_is_replaced(
    empty_redis: RedisServer, command: tuple[str, ...]
) -> None:
    name, *values = command
    for key in (_RATE.key, f"{_RATE.key}/-1", *([_PLACES] if name != "ZADD" else [])):
        await empty_redis.run(name, f"gateway1:{key}", *values)
    async with two_backends(empty_redis) as (first, second):
        assert await first.meter.count(_RATE, cost=3) == 0.0
        assert await second.meter.count(_RATE) > 0
        assert await first.places.take(_PLACES, "a", 1)
        assert not await second.places.take(_PLACES, "b", 1)


async def test_without_the_server_every_call_says_so() -> None:
    async with running_redis() as redis, opened(RedisStore(impatient(redis.port))) as store:
        backend = make_redis_backend(store)
        await redis.kill()
        for call in (
            backend.meter.count(_RATE),
            backend.meter.correct(_RATE, 1),
            backend.places.take(_PLACES, "a", 1),
            backend.places.renew({_PLACES: ["a"]}),
            backend.places.give_back({_PLACES: ["a"]}),
        ):
            with pytest.raises(StoreError):
                await call


async def test_while_the_server_is_away_each_gateway_counts_alone_and_together_again_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.quotas")
    async with running_redis() as redis, AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(opened(RedisStore(parse_address(redis.patient_url))))
            for _ in "ab"
        ]
        ledgers = [Ledger(make_redis_backend(store), renew_seconds=0.05) for store in stores]
        for ledger in ledgers:
            await ledger.open()
            stack.push_async_callback(ledger.close)
        place = ledgers[0].make_place(_PLACES)
        assert await ledgers[0].take(place, 1)
        assert [await ledger.count(_RATE, 2) > 0 for ledger in ledgers] == [False, True]
        await redis.kill()
        assert [await ledger.count(_RATE, 2) > 0 for ledger in ledgers * 2] == [False, False, True, True]
        await redis.start()
        # It is empty. The place of the running request is held again, and the counts begin anew.
        async with asyncio.timeout(30):
            while await redis.run("ZCARD", f"gateway1:{_PLACES}") != 1:
                await asyncio.sleep(0.02)
        assert not await ledgers[1].take(ledgers[1].make_place(_PLACES), 1)
        assert [await ledger.count(_RATE, 2) > 0 for ledger in ledgers] == [False, True]
    alone = "limits of tenants hold in each process alone: the store cannot be reached"
    together = "limits of tenants hold over all processes again"
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.quotas"]
    assert lines == [alone] * 2 + [together] * 2


@pytest.mark.parametrize("number", ["1e1", "0x3", "3.5"])
async def test_a_number_that_is_no_count_is_an_error_of_the_store(
    empty_redis: RedisServer, number: str
) -> None:
    await empty_redis.run("SET", f"gateway1:{_RATE.key}", number, "PX", 7_000_000)
    async with two_backends(empty_redis) as (first, _):
        for _ in range(2):
            with pytest.raises(StoreError):
                await first.meter.count(_RATE)
