"""The proxy between gateway and Redis passes bytes unchanged, until it is told to be slow or broken."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.toy.slow_proxy import SlowProxy, Traffic, running_proxy


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def proxied_echo() -> AsyncIterator[SlowProxy]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, running_proxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


@asynccontextmanager
async def connected(
    proxy: SlowProxy,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bytes_pass_and_are_counted() -> None:
    async with proxied_echo() as proxy, connected(proxy) as (reader, writer):
        for _ in range(3):
            writer.write(b"12345")
            assert await reader.readexactly(5) == b"12345"
        assert proxy.count() == Traffic(to_server_bytes=15, to_client_bytes=15, turns=3)
        assert proxy.count() == Traffic()


async def test_a_stalled_connection_stays_open_and_silent() -> None:
    async with proxied_echo() as proxy, connected(proxy) as (reader, writer):
        proxy.stall()
        writer.write(b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert not reader.at_eof()


async def test_a_cut_connection_ends_and_a_new_one_works() -> None:
    async with proxied_echo() as proxy:
        async with connected(proxy) as (reader, writer):
            writer.write(b"1")
            assert await reader.readexactly(1) == b"1"
            await proxy.cut()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        async with connected(proxy) as (reader, writer):
            writer.write(b"2")
            assert await reader.readexactly(1) == b"2"
        assert proxy.opened == 2


async def test_refused_connections_come_back_at_the_same_port() -> None:
    async with proxied_echo() as proxy:
        port = proxy.port
        await proxy.refuse()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        await proxy.start()
        async with connected(proxy) as (reader, writer):
            writer.write(b"1")
            assert await reader.readexactly(1) == b"1"
        assert proxy.port == port


@pytest.mark.parametrize("rounds", range(5))
async def test_a_connection_that_has_just_come_ends_with_the_proxy(rounds: int) -> None:
    """However far the event loop has come with it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        async with proxied_echo() as proxy:
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", proxy.port))
            for _ in range(rounds):
                await asyncio.sleep(0)
        # One that is left open is closed here, with a warning that fails the test.
        gc.collect()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 30) == b""
