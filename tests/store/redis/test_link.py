"""The way to the server: one round trip for all commands of a moment, and what happens when it fails."""

import asyncio
import logging

import pytest

from gateway.store import StoreError
from gateway.store.redis.address import parse_address
from gateway.store.redis.link import ScriptCall, ServerLink
from gateway.store.redis.naming import make_naming
from gateway.store.redis.replies import AWAY
from gateway.store.redis.scripts import READ_FIRST
from tests.store.redis.servers import linked, proxied
from tests.toy.redis_server import requires_redis, running_redis
from tests.toy.running import wait_until

pytestmark = requires_redis


async def test_all_commands_of_a_moment_make_one_round_trip() -> None:
    async with proxied(10_000) as (_, proxy, address), linked(address) as link:
        proxy.count()
        asked = [link.ask(("SET", f"key:{number}", number)) for number in range(100)]
        asked += [link.ask(("GET", f"key:{number}")) for number in range(100)]
        replies = await asyncio.gather(*asked)
        assert replies[100:] == [b"%d" % number for number in range(100)]
        assert proxy.count().turns == 1


async def test_a_script_travels_in_full_once() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        for _ in range(3):
            assert await link.ask(ScriptCall(READ_FIRST, ["a"])) == [0, b"", 0]
        calls = await server.count_calls()
        assert (calls["eval"], calls["evalsha"]) == (1, 2)
        await server.run("SCRIPT", "FLUSH")
        assert await link.ask(ScriptCall(READ_FIRST, ["a"])) == [0, b"", 0]


async def test_a_cancelled_question_disturbs_no_other() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        await server.run_all([("SET", "a", "1"), ("SET", "b", "2")])
        cancelled, kept = link.ask(("GET", "a")), link.ask(("GET", "b"))
        cancelled.cancel()
        assert await kept == b"2"
        assert await link.ask(("GET", "a")) == b"1"


async def test_a_server_that_stalls_costs_one_wait_and_is_found_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with proxied(100) as (server, proxy, address), linked(address) as link:
        await server.run("SET", "a", "1")
        proxy.stall()
        asked = [link.ask(("GET", "a")) for _ in range(50)]
        assert await asyncio.gather(*asked) == [AWAY] * 50
        assert not link.is_up and await link.ask(("GET", "a")) == AWAY
        proxy.delay_seconds = 0
        await wait_until(lambda: link.is_up)
        assert await link.ask(("GET", "a")) == b"1"
    words = [record.getMessage().partition("/0 ")[2] for record in caplog.records]
    assert words[0] == "is away (it does not answer in time): state is in memory until it is back"
    assert words[1].startswith("is back after") and len(words) == 2


async def test_a_server_that_was_cut_off_is_found_again() -> None:
    async with proxied(10_000) as (_, proxy, address), linked(address) as link:
        await proxy.refuse()
        assert await link.ask(("PING",)) == AWAY
        await proxy.start()
        await wait_until(lambda: link.is_up)
        assert await link.ask(("PING",)) == b"PONG"


async def test_an_idle_connection_that_is_dead_is_noticed_before_it_is_used() -> None:
    async with proxied(100) as (_, proxy, address), linked(address) as link:
        proxy.stall()
        await wait_until(lambda: not link.is_up)


async def test_a_server_that_became_a_replica_counts_as_away() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        await server.run("REPLICAOF", "127.0.0.1", 1)
        await wait_until(lambda: not link.is_up)
        assert await link.ask(("GET", "a")) == AWAY
        await server.run("REPLICAOF", "NO", "ONE")
        await wait_until(lambda: link.is_up)


async def test_a_server_that_lost_its_records_is_noticed_without_a_lost_connection() -> None:
    async with running_redis() as server, linked(parse_address(server.patient_url)) as link:
        emptied = asyncio.Event()
        link.condition.listen(emptied=emptied.set)
        await server.run("FLUSHALL")
        await asyncio.wait_for(emptied.wait(), 30)


@pytest.mark.parametrize("login", ["", ":hunter2@"])
async def test_a_wrong_password_is_an_error_at_the_start(login: str) -> None:
    async with running_redis(password="secret") as server:
        address = parse_address(f"redis://{login}127.0.0.1:{server.port}")
        with pytest.raises(StoreError, match="refuses this gateway") as refusal:
            await ServerLink(address, make_naming(address).epoch).open()
        assert "hunter2" not in str(refusal.value)


async def test_a_missing_right_is_an_error_at_the_start() -> None:
    async with running_redis() as server:
        await server.run("ACL", "SETUSER", "gw", "on", ">pw", "~*", "+get")
        address = parse_address(f"redis://gw:pw@127.0.0.1:{server.port}")
        with pytest.raises(StoreError, match="its ACL lacks a permission"):
            await ServerLink(address, make_naming(address).epoch).open()


async def test_a_server_that_is_away_at_the_start_is_waited_for_in_the_background() -> None:
    async with running_redis() as server:
        await server.stop()
        async with linked(parse_address(server.patient_url)) as link:
            assert not link.is_up and await link.ask(("PING",)) == AWAY
            await server.start()
            await wait_until(lambda: link.is_up)


async def test_what_is_asked_after_the_end_is_answered() -> None:
    async with running_redis() as server:
        async with linked(parse_address(server.patient_url)) as link:
            late = link.ask(("GET", "a"))
        assert await late in (None, AWAY)
        assert await link.ask(("GET", "a")) == AWAY


async def test_a_round_trip_does_not_wait_for_the_one_before() -> None:
    async with proxied(10_000) as (_, proxy, address), linked(address) as link:
        proxy.stall()
        proxy.count()
        first = link.ask(("SET", "first", bytes(500)))
        await wait_until(lambda: proxy.traffic.to_server_bytes > 500)
        second = link.ask(("SET", "second", bytes(5_000)))
        await wait_until(lambda: proxy.traffic.to_server_bytes > 5_500)
        assert not first.done() and not second.done()
