"""One connection: login, TLS, and in which words it fails."""

import asyncio
from dataclasses import replace

import pytest

from gateway.store.redis.address import parse_address
from gateway.store.redis.replies import RefusalKind, ServerRefusal
from gateway.store.redis.session import Session, SessionError
from tests.toy.redis_server import requires_redis, running_redis
from tests.toy.slow_proxy import running_proxy

pytestmark = requires_redis


async def fail(url: str) -> SessionError:
    session = Session(parse_address(url))
    with pytest.raises(SessionError) as caught:
        await session.open()
    await session.close()
    return caught.value


async def greet(url: str) -> object:
    session = Session(parse_address(url))
    await session.open()
    try:
        return await session.exchange([("PING",)])
    finally:
        await session.close()


async def test_every_command_gets_its_own_reply() -> None:
    async with running_redis() as server:
        session = Session(parse_address(server.url))
        await session.open()
        commands = [("SET", "a", b"\x00\xff"), ("LLEN", "a"), ("GET", "a"), ("GET", "b"), ("INCR", "c")]
        replies = await session.exchange(commands)
        await session.close()
        assert replies == [b"OK", ServerRefusal(RefusalKind.WRONG_TYPE), b"\x00\xff", None, 1]


@pytest.mark.parametrize("tls", [False, True])
async def test_user_password_and_database_are_used(tls: bool) -> None:
    async with running_redis(password="p@ss", tls=tls) as server:
        await server.run("ACL", "SETUSER", "gw", "on", ">s3cret", "~*", "&*", "+@all")
        assert await greet(server.url) == [b"PONG"]
        assert await greet(server.url.replace(":p@ss@", "gw:s3cret@").replace("/0", "/2")) == [b"PONG"]
        for wrong in (":hunter2@", "gw:hunter2@", "other:hunter2@"):
            error = await fail(server.url.replace(":p@ss@", wrong))
            assert (error.is_final, str(error)) == (True, "it does not accept user and password")


async def test_a_server_without_a_certificate_that_we_trust_is_refused() -> None:
    async with running_redis(tls=True) as server:
        error = await fail(server.url.partition("?")[0])
        assert (error.is_final, str(error)) == (True, "its TLS certificate is not accepted")


async def test_a_client_certificate_is_shown() -> None:
    async with running_redis(tls=True, options={"tls-auth-clients": "yes"}) as server:
        files = server.certificates
        assert files is not None
        both = f"&certificate_file={files.client}&key_file={files.client_key}"
        assert await greet(server.url + both) == [b"PONG"]
        with pytest.raises(SessionError):
            await greet(server.url)


async def test_a_database_that_does_not_exist_is_refused_for_good() -> None:
    async with running_redis(options={"databases": "2"}) as server:
        error = await fail(server.url.replace("/0", "/5"))
        assert (error.is_final, str(error)) == (True, "it refuses the database of this number")


async def test_nothing_at_the_port_and_a_lost_connection_may_change() -> None:
    async with running_redis() as server, running_proxy(server.port) as proxy:
        await proxy.refuse()
        error = await fail(f"redis://127.0.0.1:{proxy.port}")
        assert (error.is_final, str(error)) == (False, "connection refused")
        await proxy.start()
        session = Session(parse_address(f"redis://127.0.0.1:{proxy.port}"))
        await session.open()
        await proxy.cut()
        with pytest.raises(SessionError, match="the connection was lost"):
            await session.exchange([("PING",)])
        await session.close()


async def test_a_server_of_another_kind_is_a_lost_connection() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with web:
        session = Session(parse_address(f"redis://127.0.0.1:{web.sockets[0].getsockname()[1]}"))
        with pytest.raises(SessionError):
            await session.open()
            await session.exchange([("PING",)])
        await session.close()


async def test_a_cancelled_exchange_leaves_nothing_for_the_next_one() -> None:
    async with running_redis() as server, running_proxy(server.port) as proxy:
        await server.run("SET", "secret", "of another")
        session = Session(replace(parse_address(server.url), port=proxy.port))
        await session.open()
        proxy.stall()
        reading = asyncio.create_task(session.exchange([("GET", "secret")]))
        await asyncio.wait({reading}, timeout=0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        proxy.delay_seconds = 0
        assert await session.exchange([("GET", "other")]) == [None]
        assert proxy.opened == 2
        await session.close()
