import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from gateway.upstream.spares import Spares

PLACE = "http://upstream/v1"


class Upstream:
    """Accepts connections, and says nothing on them unless told to."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []

    async def accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)


@asynccontextmanager
async def connecting(count: int) -> AsyncIterator[tuple[Upstream, list[Connection]]]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connector = aiohttp.TCPConnector(force_close=True)
    request = aiohttp.ClientRequest("POST", URL(f"http://127.0.0.1:{port}"), loop=asyncio.get_running_loop())
    connections = [await connector.connect(request, [], aiohttp.ClientTimeout()) for _ in range(count)]
    while len(upstream.writers) < count:
        await asyncio.sleep(0)
    try:
        yield upstream, connections
    finally:
        for connection in connections:
            connection.close()
        await connector.close()
        server.close()
        for writer in upstream.writers:
            writer.close()


def is_closed(connection: Connection) -> bool:
    return connection.closed


async def test_the_one_used_last_is_used_first_and_only_where_it_leads_to() -> None:
    async with connecting(2) as (_, (first, second)):
        spares = Spares(60)
        spares.keep(PLACE, first)
        spares.keep(PLACE, second)
        assert spares.take("http://elsewhere/v1") is None
        assert [spares.take(PLACE) for _ in range(3)] == [second, first, None]
        spares.close()


async def test_one_that_upstream_closed_or_spoke_on_is_closed_and_not_used() -> None:
    async with connecting(3) as (upstream, connections):
        spares = Spares(60)
        for connection in connections:
            spares.keep(PLACE, connection)
        upstream.writers[2].close()
        upstream.writers[1].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await asyncio.sleep(0.1)
        assert spares.take(PLACE) is connections[0]
        assert [is_closed(connection) for connection in connections] == [False, True, True]
        spares.close()


async def test_what_waited_too_long_is_closed_by_itself_and_by_whoever_asks() -> None:
    async with connecting(2) as (_, (first, second)):
        spares = Spares(0.1)
        spares.keep(PLACE, first)
        await asyncio.sleep(0.25)
        assert is_closed(first)
        spares.keep(PLACE, second)
        await asyncio.sleep(0.09)
        assert not is_closed(second)
        await asyncio.sleep(0.03)
        assert spares.take(PLACE) is None and is_closed(second)
        spares.close()


async def test_nothing_is_kept_once_all_is_closed() -> None:
    async with connecting(2) as (_, (first, second)):
        spares = Spares(60)
        spares.keep(PLACE, first)
        spares.close()
        spares.keep(PLACE, second)
        assert is_closed(first) and is_closed(second) and spares.take(PLACE) is None
