"""The store of conversations in Redis, opened, lost, and closed."""

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.quotas.meter import Rate
from gateway.quotas.redis import make_redis_backend
from gateway.store import Store, open_bounded_store, open_store
from gateway.store.leases import Held, Lease
from gateway.store.redis.address import parse_address
from gateway.store.redis.bounded import BoundedRedisStore
from gateway.store.redis.store import RedisStore
from tests.store.redis.servers import TAG, impatient, key, opened, two_processes
from tests.toy.redis_server import requires_redis, running_redis
from tests.toy.running import wait_until

pytestmark = requires_redis


async def test_it_is_opened_by_its_url_and_leaves_nothing_open() -> None:
    async with running_redis(password="pw") as server:
        store = open_store(server.patient_url)
        assert store.is_shared
        await store.open()
        clients = await server.run("CLIENT", "LIST")
        assert isinstance(clients, bytes) and len(clients.splitlines()) == 3
        await store.close()
        async with asyncio.timeout(30):
            while len(str(await server.run("CLIENT", "LIST")).split("\\n")) > 2:
                await asyncio.sleep(0.01)
        assert "unclosed" not in repr(store) and "pw" not in repr(store)


async def test_thirty_requests_without_a_server_wait_for_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with two_processes(timeout_ms=100) as setting:
        setting.proxy.stall()
        await asyncio.gather(*(setting.near.read(key("head", number)) for number in range(30)))
        for number in range(30):
            assert await setting.near.read(key("head", number)) is None
            await setting.near.write_durably(key("pivot", number), b"x", keep_seconds=60)
        setting.proxy.delay_seconds = 0
        await wait_until(lambda: "is back" in caplog.text)
        async with asyncio.timeout(30):
            while await setting.far.read(key("pivot", 29)) is None:
                await asyncio.sleep(0.01)
    assert len(caplog.records) == 2


async def test_a_server_that_came_back_empty_gets_what_is_written_again() -> None:
    async with two_processes() as setting:
        await setting.near.write_durably(key("head", 1), b"old", keep_seconds=60)
        generation = setting.near.news.generation
        await setting.server.restart_empty()
        await wait_until(lambda: setting.near.news.generation > generation)
        setting.near.write(key("head", 1), b"again", keep_seconds=60)
        async with asyncio.timeout(30):
            while await setting.far.read(key("head", 1)) != b"again":
                await asyncio.sleep(0.01)


async def test_an_end_without_a_server_does_not_wait_for_it() -> None:
    async with running_redis() as server:
        store = RedisStore(impatient(server.port, 10_000))
        await store.open()
        await server.kill()
        store.news.announce(TAG, "text")
        await asyncio.wait_for(store.close(), 30)


def _read_documented_rights() -> list[str]:
    """The words behind the password in the line of docs/configuration.md."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if "ACL SETUSER gateway" in line]
    return line.split(">PASSWORD", 1)[1].split()


async def test_the_rights_in_the_documentation_are_enough_for_everything() -> None:
    async with running_redis() as server:
        await server.run("ACL", "SETUSER", "gateway", "on", ">pw", *_read_documented_rights())
        url = server.patient_url.replace("redis://", "redis://gateway:pw@")
        async with (
            opened(open_store(url)) as store,
            opened(open_bounded_store(url, "named", 3_000)) as bounded,
        ):
            await use_everything(store)
            for number in range(10):
                bounded.write(key("turn", f"a:{number}"), bytes(500), keep_seconds=60)
            bounded.delete(key("turn", "a:9"))
            assert await bounded.purge(TAG) > 0 and await store.purge(TAG) > 0
        assert await server.run("ACL", "LOG") == []


async def use_everything(store: Store) -> None:
    store.news.announce(TAG, "pivot")
    await store.write_durably(key("head", 1), b"1", keep_seconds=60)
    await store.write_durably(key("taken", "a:1"), b"1", keep_seconds=60)
    assert await store.write_new(key("head", 2), b"2", keep_seconds=60) == b"2"
    assert await store.take(key("head", 2)) == b"2"
    assert await store.read_first([key("head", 2), key("head", 1)]) == (key("head", 1), b"1")
    assert len(await store.scan(key("taken", "a:"))) == len(await store.scan(key("taken", ""))) == 1
    lease = await store.leases.claim(key("lease", 1), [key("lease", 2)], keep_seconds=60)
    assert isinstance(lease, Lease) and lease.fence
    assert isinstance(await store.leases.claim(key("lease", 2), [key("lease", 1)], keep_seconds=60), Held)
    assert await store.leases.renew(lease, keep_seconds=60)
    assert await store.leases.write(lease, key("pivot", 1), b"p", keep_seconds=60)
    await store.leases.release(lease)


async def test_no_command_spans_slots_of_a_cluster() -> None:
    """The server has all slots, and refuses what names keys of two of them."""
    async with running_redis(options={"cluster-enabled": "yes"}) as server:
        await server.run("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        async with asyncio.timeout(30):
            while "cluster_state:ok" not in str(await server.run("CLUSTER", "INFO")):
                await asyncio.sleep(0.01)
        async with (
            opened(RedisStore(parse_address(server.patient_url))) as store,
            opened(BoundedRedisStore(parse_address(server.patient_url), "originals", 2_000)) as bounded,
        ):
            await name_many_keys(store)
            for number in range(10):
                await bounded.write_durably(key("original", f"c:{number}"), b"x" * 300, keep_seconds=60)
            assert 0 < len(await bounded.scan(key("original", "c:"))) < 10
            assert await bounded.purge(TAG) > 0 and await store.purge(TAG) > 0
        refused = str(await server.run("INFO", "errorstats"))
        assert "CROSSSLOT" not in refused and "MOVED" not in refused


async def name_many_keys(store: RedisStore) -> None:
    """Records of two tenants in one round trip, a list, a lease with rivals, and counts."""
    other = key("head", 1, "another")
    for name in (key("head", 1), key("report", "c:1"), other):
        assert await store.write_new(name, b"x", keep_seconds=60) == b"x"
    groups = [[key("head", 0), key("head", 1)], [other]]
    assert await store.read_groups(groups) == [(key("head", 1), b"x"), (other, b"x")]
    assert await store.scan(key("report", "c:")) == [(key("report", "c:1"), b"x")]
    lease = await store.leases.claim(key("lease", 1), [key("lease", 2), key("lease", 3)], keep_seconds=60)
    assert isinstance(lease, Lease) and lease.fence
    assert await store.leases.renew(lease, keep_seconds=60)
    assert await store.leases.write(lease, key("pivot", 1), b"p", keep_seconds=60)
    await store.leases.release(lease)
    assert await store.take(key("pivot", 1)) == b"p"
    counts = make_redis_backend(store)
    assert not await counts.meter.count(Rate(key("quota", "requests"), 5, 60))
    assert await counts.places.take(key("quota", "places"), "member", 1)
    await counts.places.renew({key("quota", "places"): ["member"]})
    await counts.places.give_back({key("quota", "places"): ["member"]})
