"""Stores in Redis with a bound: the oldest go first, of all processes, and a purge leaves nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.store import Store, open_bounded_store, open_store
from gateway.store.keys import make_tag
from tests.store.redis.servers import key
from tests.toy.redis_server import RedisServer, requires_redis, running_redis

pytestmark = requires_redis
_BOUND = 20_000


@asynccontextmanager
async def two_bounded() -> AsyncIterator[tuple[RedisServer, Store, Store]]:
    async with running_redis() as server:
        near, far = [open_bounded_store(server.patient_url, "originals", _BOUND) for _ in range(2)]
        await near.open()
        await far.open()
        try:
            yield server, near, far
        finally:
            await near.close()
            await far.close()


async def count_bytes(server: RedisServer) -> int:
    total = await server.run("GET", "gateway1:originals/{index}total")
    assert isinstance(total, bytes)
    return int(total)


async def wait_for_bound(server: RedisServer) -> None:
    """Returns once the index counts no more than the bound."""
    async with asyncio.timeout(30):
        while await count_bytes(server) > _BOUND:
            await asyncio.sleep(0.01)


async def test_beyond_the_bound_the_oldest_of_all_processes_go() -> None:
    async with two_bounded() as (server, near, far):
        for number in range(40):
            store = (near, far)[number % 2]
            await store.write_durably(key("original", f"{number:02}"), bytes(1_000), keep_seconds=60)
        await wait_for_bound(server)
        kept = [
            number for number in range(40) if await near.read(key("original", f"{number:02}")) is not None
        ]
        assert kept == list(range(40 - len(kept), 40)) and 10 <= len(kept) <= 14


async def test_a_record_that_is_dropped_leaves_its_list() -> None:
    async with two_bounded() as (server, near, far):
        for number in range(40):
            await near.write_durably(key("taken", f"c:{number:02}"), bytes(1_000), keep_seconds=60)
        await wait_for_bound(server)
        found = await far.scan(key("taken", "c:"))
        members = await server.run("ZCARD", f"gateway1:originals/list/{key('taken', 'c:')}")
        assert members == len(found) and 10 <= len(found) <= 14


async def test_rewriting_and_deleting_a_record_keeps_the_count_right() -> None:
    async with two_bounded() as (server, near, far):
        for _ in range(30):
            await near.write_durably(key("original", 1), bytes(1_000), keep_seconds=60)
        await far.write_durably(key("original", 2), bytes(1_000), keep_seconds=60)
        assert await far.read(key("original", 1)) is not None
        near.delete(key("original", 1))
        far.delete(key("original", 2))
        await near.write_durably(key("original", 3), b"", keep_seconds=0)
        await far.write_durably(key("original", 3), b"", keep_seconds=0)
        assert await server.run("GET", "gateway1:originals/{index}total") == b"0"
        assert await server.run("HLEN", "gateway1:originals/{index}sizes") == 0


async def test_a_purge_leaves_nothing_of_a_tenant_not_even_in_the_index() -> None:
    async with two_bounded() as (server, near, far):
        for owner in ("one", "two"):
            await near.write_durably(key("original", 1, owner), b"x", keep_seconds=60)
            await far.write_durably(key("taken", "c:1", owner), b"x", keep_seconds=60)
        assert await near.purge(make_tag("one")) == 2
        sizes = await server.run("HKEYS", "gateway1:originals/{index}sizes")
        assert isinstance(sizes, list) and len(sizes) == 2
        assert not any(make_tag("one") in name for name in [*await server.list_keys(), str(sizes)])


async def test_a_purge_of_the_main_store_takes_its_records_too() -> None:
    async with two_bounded() as (server, near, _):
        await near.write_durably(key("original", 1, "one"), b"x", keep_seconds=60)
        main = open_store(server.patient_url)
        await main.open()
        assert await main.purge(make_tag("one")) == 1
        await main.close()
        assert await near.read(key("original", 1, "one")) is None


async def test_bounded_stores_have_no_leases_and_no_news_and_are_shared() -> None:
    async with two_bounded() as (_, near, far):
        assert near.is_shared and near.news.generation == 0
        await near.write_durably(key("turn", 1), b"x", keep_seconds=60)
        assert await far.read(key("turn", 1)) == b"x"
