"""Records in Redis, as the contract of stores wants them, with several processes at once."""

import asyncio

import pytest

from gateway.store import StoreError
from gateway.store.keys import make_tag
from gateway.store.redis.address import parse_address
from gateway.store.redis.scripts import make_script
from gateway.store.redis.store import RedisStore
from tests.store.redis.servers import key, opened, two_processes
from tests.toy.redis_server import requires_redis, running_redis

pytestmark = requires_redis


async def test_what_one_process_writes_another_reads() -> None:
    async with two_processes() as setting:
        for value in (b"", b"\x00\xff", bytes(3 << 20)):
            await setting.near.write_durably(key("head", 1), value, keep_seconds=60)
            assert await setting.far.read(key("head", 1)) == value


async def test_records_expire_on_the_server() -> None:
    async with two_processes() as setting:
        await setting.near.write_durably(key("head", 1), b"1", keep_seconds=0.05)
        await setting.near.write_durably(key("head", 2), b"2", keep_seconds=0)
        async with asyncio.timeout(30):
            while await setting.far.read(key("head", 1)) is not None:
                await asyncio.sleep(0.01)
        assert await setting.far.read(key("head", 2)) is None
        assert await setting.server.list_keys() == ["gateway1:epoch"]


async def test_of_many_that_take_a_record_one_gets_it() -> None:
    async with two_processes() as setting:
        await setting.near.write_durably(key("marker", 1), b"m", keep_seconds=60)
        taken = [store.take(key("marker", 1)) for store in [setting.near, setting.far] * 20]
        assert sorted(filter(None, await asyncio.gather(*taken))) == [b"m"]


async def test_a_record_that_waits_here_is_taken_once_even_without_the_server() -> None:
    async with two_processes() as setting:
        await setting.proxy.refuse()
        setting.near.write(key("marker", 1), b"m", keep_seconds=60)
        assert [await setting.near.take(key("marker", 1)) for _ in range(2)] == [b"m", None]
        await setting.proxy.start()
        async with asyncio.timeout(30):
            while not (
                await setting.near.write_new(key("x", 1), b"x", keep_seconds=60) and await _has(setting.far)
            ):
                await asyncio.sleep(0.01)
        assert await setting.far.read(key("marker", 1)) is None


async def _has(store: RedisStore) -> bool:
    return await store.read(key("x", 1)) is not None


async def test_of_many_that_write_a_new_record_the_first_one_counts() -> None:
    async with two_processes() as setting:
        writes = [
            store.write_new(key("pivot", 1), b"%d" % number, keep_seconds=60)
            for number, store in enumerate([setting.near, setting.far] * 20)
        ]
        found = set(await asyncio.gather(*writes))
        assert len(found) == 1 and {await setting.near.read(key("pivot", 1))} == found


async def test_a_purge_leaves_no_key_of_a_tenant_and_all_of_the_others() -> None:
    async with two_processes() as setting:
        for owner in ("one", "two"):
            await setting.near.write_durably(key("head", 1, owner), b"x", keep_seconds=60)
            await setting.near.write_durably(key("taken", "c:1", owner), b"x", keep_seconds=60)
            await setting.near.leases.claim(key("lease", 1, owner), (), keep_seconds=60)
        before = await setting.server.list_keys()
        setting.near.write(key("head", 2, "one"), b"x", keep_seconds=60)
        assert await setting.near.purge(make_tag("one")) == 3
        left = await setting.server.list_keys()
        assert left == [name for name in before if make_tag("one") not in name]
        assert len(left) == 6


async def test_a_purge_without_a_server_says_so() -> None:
    async with two_processes() as setting:
        await setting.proxy.refuse()
        with pytest.raises(StoreError):
            await setting.near.purge(make_tag("one"))


async def test_prefixes_and_databases_are_stores_of_their_own() -> None:
    async with running_redis() as server:
        more = ("/0", "/0?prefix=team", "/1")
        for rest in more:
            address = parse_address(server.url.removesuffix("/0") + rest)
            async with opened(RedisStore(address)) as store:
                assert await store.read(key("head", 1)) is None
                await store.write_durably(key("head", 1), b"x", keep_seconds=60)
        assert len(await server.list_keys()) == 4


async def test_records_of_another_version_are_neither_read_nor_overwritten() -> None:
    async with two_processes() as setting:
        other = f"gateway2:{key('head', 1)}"
        await setting.server.run("SET", other, "theirs")
        await setting.near.write_durably(key("head", 1), b"ours", keep_seconds=60)
        assert await setting.server.run("GET", other) == b"theirs"


async def test_scripts_of_others_run_on_the_same_connection() -> None:
    script = make_script("return {redis.call('INCR', KEYS[1]), ARGV[1]}")
    async with two_processes() as setting:
        for count in (1, 2):
            assert await setting.near.run_script(script, [key("quota", 1)], ("x",)) == [count, b"x"]
        assert f"gateway1:{key('quota', 1)}" in await setting.server.list_keys()
        await setting.near.write_durably(key("head", 1), b"a record", keep_seconds=60)
        with pytest.raises(StoreError, match="refused a command"):
            await setting.near.run_script(script, [key("head", 1)], ("x",))
        await setting.proxy.refuse()
        with pytest.raises(StoreError, match="does not answer"):
            await setting.near.run_script(script, [key("quota", 1)], ("x",))
