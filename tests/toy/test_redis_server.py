"""The toy that starts Redis does to it what it says."""

import asyncio

import pytest

from tests.toy.redis_server import RedisRefused, requires_redis, running_redis

pytestmark = requires_redis


async def test_it_keeps_its_port_and_what_it_holds_over_an_orderly_restart() -> None:
    async with running_redis() as server:
        url = server.url
        await server.run("SET", "key", b"\x00\xff")
        await server.stop()
        with pytest.raises(OSError):
            await server.run("PING")
        await server.start()
        assert server.url == url and await server.run("GET", "key") == b"\x00\xff"


async def test_it_can_be_restarted_empty() -> None:
    async with running_redis() as server:
        await server.run("SET", "key", "value")
        await server.restart_empty()
        assert await server.list_keys() == []


async def test_a_paused_server_answers_once_it_goes_on() -> None:
    async with running_redis() as server:
        server.pause()
        answer = asyncio.ensure_future(server.run("PING"))
        done, _ = await asyncio.wait({answer}, timeout=0.1)
        server.resume()
        assert not done and await answer == b"PONG"


async def test_options_reach_the_server_and_calls_are_counted() -> None:
    async with running_redis(options={"maxmemory": "3mb", "databases": "2"}) as server:
        assert await server.run("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"3145728"]
        await server.run_all([("GET", "a"), ("GET", "b")])
        assert (await server.count_calls())["get"] == 2
        with pytest.raises(RedisRefused, match="out of range"):
            await server.run("SELECT", 5)


@pytest.mark.parametrize("tls", [False, True])
async def test_it_wants_its_password_with_and_without_tls(tls: bool) -> None:
    async with running_redis(password="p@ss/word", tls=tls) as server:
        assert await server.run("PING") == b"PONG"
        server.password = "another"
        with pytest.raises(RedisRefused, match="WRONGPASS"):
            await server.run("PING")
