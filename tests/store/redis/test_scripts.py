"""The scripts, one by one, on a real server. What they are used for is tested with their users."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.store.redis import scripts
from gateway.store.redis.scripts import Script
from tests.toy.redis_server import RedisServer, Reply, requires_redis, running_redis

pytestmark = requires_redis


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with running_redis() as server:
        yield server


async def call(server: RedisServer, script: Script, keys: list[str], *arguments: str | bytes | int) -> Reply:
    return await server.run("EVAL", script.text, len(keys), *keys, *arguments)


async def test_digests_are_those_of_the_server(server: RedisServer) -> None:
    known = [each for each in vars(scripts).values() if isinstance(each, Script)]
    loaded = [await server.run("SCRIPT", "LOAD", each.text) for each in known]
    assert [each.digest.encode() for each in known] == loaded and len(known) >= 8


async def test_the_first_value_is_found_and_other_types_are_passed_over(server: RedisServer) -> None:
    await server.run_all([("LPUSH", "list", "x"), ("SET", "c", "3"), ("SET", "d", "4")])
    assert await call(server, scripts.READ_FIRST, ["a", "list", "c", "d"]) == [3, b"3", 1]
    assert await call(server, scripts.READ_FIRST, ["d", "list"]) == [1, b"4", 0]
    assert await call(server, scripts.READ_FIRST, ["a", "b"]) == [0, b"", 0]


async def test_a_list_lives_as_long_as_its_longest_member(server: RedisServer) -> None:
    await call(server, scripts.ADD_TO_LIST, ["list"], "long", 90_000)
    await call(server, scripts.ADD_TO_LIST, ["list"], "short", 1)
    left = await server.run("PTTL", "list")
    assert isinstance(left, int) and 80_000 < left <= 90_000
    await asyncio.sleep(0.01)
    await call(server, scripts.ADD_TO_LIST, ["list"], "next", 1_000)
    assert await server.run("ZCARD", "list") == 2


async def test_a_list_of_another_type_is_replaced(server: RedisServer) -> None:
    await server.run("SET", "list", "x")
    assert await call(server, scripts.ADD_TO_LIST, ["list"], "member", 1_000) == 1
    assert await server.run("TYPE", "list") == b"zset"


async def test_a_lease_is_granted_once_and_fences_grow(server: RedisServer) -> None:
    granted = await call(server, scripts.CLAIM, ["fence", "a", "b"], "ab12", 60_000)
    assert isinstance(granted, list) and granted[0] == 1
    fence = granted[1]
    assert isinstance(fence, bytes)
    held = await call(server, scripts.CLAIM, ["fence", "b", "a"], "cd34", 60_000)
    assert isinstance(held, list) and held[:3] == [0, 2, fence + b":ab12"]
    other = await call(server, scripts.CLAIM, ["fence", "c"], "cd34", 60_000)
    assert isinstance(other, list) and isinstance(other[1], bytes) and int(other[1]) > int(fence)


@pytest.mark.parametrize("value", ["something", "12:"])
async def test_what_is_no_lease_holds_nothing(server: RedisServer, value: str) -> None:
    await server.run_all(
        [("SET", "a", value), ("LPUSH", "b", value), ("SET", "c", "1:ab"), ("SET", "fence", "x")]
    )
    granted = await call(server, scripts.CLAIM, ["fence", "a", "b", "c"], "ab12", 60_000)
    assert isinstance(granted, list) and granted[0] == 1


async def test_an_expired_lease_is_good_until_another_is_granted(server: RedisServer) -> None:
    granted = await call(server, scripts.CLAIM, ["fence", "a"], "ab12", 60_000)
    assert isinstance(granted, list) and isinstance(granted[1], bytes)
    holder, fence = granted[1] + b":ab12", granted[1]
    await server.run("DEL", "a")
    assert await call(server, scripts.RENEW, ["a", "fence"], holder, fence, 60_000) == 1
    await server.run("FLUSHALL")
    assert await call(server, scripts.WRITE_FENCED, ["a", "fence", "r"], holder, fence, 9_000, "pivot") == 1
    await call(server, scripts.CLAIM, ["fence", "a"], "cd34", 60_000)
    assert await call(server, scripts.RENEW, ["a", "fence"], holder, fence, 60_000) == 0
    assert await call(server, scripts.WRITE_FENCED, ["a", "fence", "r"], holder, fence, 9_000, "late") == 0
    await server.run("DEL", "a")
    assert await call(server, scripts.WRITE_FENCED, ["a", "fence", "r"], holder, fence, 9_000, "late") == 0
    assert await server.run("GET", "r") == b"pivot"


async def test_only_its_holder_releases_a_lease(server: RedisServer) -> None:
    await server.run("SET", "a", "7:ab12")
    assert await call(server, scripts.RELEASE, ["a"], "8:cd34", "channel", "message") == 0
    assert await call(server, scripts.RELEASE, ["a"], "7:ab12", "channel", "message") == 1
    assert await server.run("EXISTS", "a") == 0


async def test_the_index_counts_the_bytes_of_its_members(server: RedisServer) -> None:
    keys = ["times", "sizes", "total"]
    assert await call(server, scripts.ADD_TO_INDEX, keys, "a", 100, 1) == 100
    assert await call(server, scripts.ADD_TO_INDEX, keys, "b", 50, 2) == 150
    assert await call(server, scripts.ADD_TO_INDEX, keys, "a", 10, 3) == 60
    assert await call(server, scripts.CHOOSE_OLDEST, keys, 60, 64) == []
    assert await call(server, scripts.CHOOSE_OLDEST, keys, 30, 64) == [b"b"]
    assert await call(server, scripts.CHOOSE_OLDEST, keys, 0, 64) == [b"b", b"a"]
    assert await call(server, scripts.CHOOSE_OLDEST, keys, 0, 1) == [b"b"]
    assert await call(server, scripts.DROP_FROM_INDEX, keys, "b", "absent") == 10
    assert await call(server, scripts.DROP_FROM_INDEX, keys, "b") == 10


async def test_an_index_of_another_type_begins_again(server: RedisServer) -> None:
    await server.run_all([("SET", "times", "x"), ("SET", "total", "5")])
    assert await call(server, scripts.ADD_TO_INDEX, ["times", "sizes", "total"], "a", 100, 1) == 100
