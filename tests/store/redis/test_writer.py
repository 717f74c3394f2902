"""Writes: sent at once, kept while the server is away or full, and sent again."""

import asyncio
import logging

import pytest

from gateway.store import StoreError
from gateway.store.redis.address import parse_address
from gateway.store.redis.link import ServerLink
from gateway.store.redis.naming import make_naming
from gateway.store.redis.writer import RecordWriter
from tests.store.redis.servers import key, linked
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.running import wait_until

pytestmark = requires_redis
KEY = key("pivot", 1)


def make_writer(link: ServerLink, server: RedisServer, max_bytes: int = 1 << 20) -> RecordWriter:
    naming = make_naming(parse_address(server.url))
    writer = RecordWriter(link, naming, max_bytes=max_bytes)
    link.condition.listen(up=writer.resume)
    writer.open()
    return writer


async def test_what_is_confirmed_waits_no_longer() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        writer.write(KEY, b"1", keep_seconds=60)
        assert writer.unsent.find(KEY) is not None
        await wait_until(lambda: not len(writer.unsent))
        left = await server.run("PTTL", f"gateway1:{KEY}")
        assert isinstance(left, int) and 50_000 < left <= 60_000
        writer.delete(KEY)
        await wait_until(lambda: not len(writer.unsent))
        assert await server.run("EXISTS", f"gateway1:{KEY}") == 0
        await writer.close()


async def test_what_is_written_while_the_server_is_away_reaches_it_later() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        replayed: list[int] = []
        writer.on_replayed = replayed.append
        await server.stop()
        await wait_until(lambda: not link.is_up)
        for number in range(300):
            writer.write(key("head", number), b"x", keep_seconds=60)
        await writer.write_durably(KEY, b"1", keep_seconds=60)
        assert len(writer.unsent) == 301
        await server.start()
        await wait_until(lambda: not len(writer.unsent))
        assert len(await server.list_keys()) == 302 and replayed[-1] == 301
        await writer.close()


async def test_a_new_record_of_that_time_replaces_none() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer, far = make_writer(link, server), make_writer(link, server)
        await server.stop()
        await wait_until(lambda: not link.is_up)
        assert await writer.write_new(KEY, b"ours", keep_seconds=60) == b"ours"
        assert await writer.write_new(KEY, b"again", keep_seconds=60) == b"ours"
        assert await far.write_new(KEY, b"theirs", keep_seconds=60) == b"theirs"
        await server.start()
        await wait_until(lambda: not len(writer.unsent) and not len(far.unsent))
        first = await writer.write_new(KEY, b"third", keep_seconds=60)
        assert first in (b"ours", b"theirs")
        assert await far.write_new(KEY, b"fourth", keep_seconds=60) == first
        await writer.close()
        await far.close()


@pytest.mark.parametrize("planted", [("SET", b"no record of ours"), ("LPUSH", b"x")])
async def test_what_is_no_record_of_ours_is_replaced(planted: tuple[str, bytes]) -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        await server.run(planted[0], f"gateway1:{KEY}", planted[1])
        assert await writer.write_new(KEY, b"ours", keep_seconds=60) == b"ours"
        await writer.close()
        assert await server.run("TYPE", f"gateway1:{KEY}") == b"string"
        value = await server.run("GET", f"gateway1:{KEY}")
        assert isinstance(value, bytes) and value.endswith(b"ours")


async def test_a_full_server_costs_one_line_and_gets_everything_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        await server.run("CONFIG", "SET", "maxmemory", "1")
        for number in range(10):
            await writer.write_durably(key("pivot", number), b"x", keep_seconds=60)
        writer.delete(key("pivot", 0))
        await link.ask(("UNLINK", "something"))  # a full server still deletes
        assert len(writer.unsent) == 10 and link.is_up
        await server.run("CONFIG", "SET", "maxmemory", "0")
        await wait_until(lambda: not len(writer.unsent))
        assert len(await server.list_keys()) == 10
        await writer.close()
    assert [record.getMessage().partition("/0 ")[2] for record in caplog.records] == [
        "takes no writes (its memory is full): records wait in memory",
        "takes writes again",
    ]


async def test_beyond_its_bound_memory_takes_no_promise() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server, max_bytes=1_500)
        await server.stop()
        await wait_until(lambda: not link.is_up)
        await writer.write_durably(KEY, bytes(1_000), keep_seconds=60)
        with pytest.raises(StoreError, match="too much is waiting"):
            await writer.write_durably(key("pivot", 2), bytes(1_000), keep_seconds=60)
        writer.write(key("head", 1), bytes(1_000), keep_seconds=60)
        assert [write.key for write in writer.unsent] == [KEY]
        await writer.close()


async def test_a_cancelled_caller_does_not_cancel_its_write() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        writing = asyncio.create_task(writer.write_durably(KEY, b"1", keep_seconds=60))
        await asyncio.sleep(0)
        writing.cancel()
        await wait_until(lambda: not len(writer.unsent))
        assert await server.run("EXISTS", f"gateway1:{KEY}") == 1
        await writer.close()


async def test_the_end_waits_for_what_is_on_its_way_and_takes_no_more() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        for number in range(500):
            writer.write(key("head", number), b"x", keep_seconds=60)
        await writer.close()
        assert len(await server.list_keys()) == 501
        writer.write(KEY, b"1", keep_seconds=60)
        with pytest.raises(StoreError):
            await writer.write_durably(KEY, b"1", keep_seconds=60)
        assert not len(writer.unsent)
        await writer.close()


async def test_what_never_reached_the_server_is_counted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        writer = make_writer(link, server)
        await server.stop()
        await wait_until(lambda: not link.is_up)
        writer.write(KEY, b"1", keep_seconds=60)
        await writer.close()
    assert ": 1 records could not be written" in caplog.text
