"""A TCP proxy between a gateway and its Redis: it delays, stalls, cuts and refuses, and counts what passes.

Bytes are never changed. It runs in the event loop of the test.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

# Of the event loop, until a connection that was accepted has a task.
_ROUNDS = 8


@dataclass
class Traffic:
    """turns: how often the client began to send after the server had; one for each round trip."""

    to_server_bytes: int = 0
    to_client_bytes: int = 0
    turns: int = 0


class SlowProxy:
    """delay_seconds: what the server sends arrives so much later; math.inf: never (a stall)."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.delay_seconds = 0.0
        self.traffic = Traffic()
        # Connections that clients have opened so far.
        self.opened = 0
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._is_clients_turn = True

    async def start(self) -> None:
        """Listens; after `refuse` at the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """New connections are refused, and those that are open end."""
        server, self._server = self._server, None
        if server is not None:
            await _end_accepting(server)
            server.close()
        await self.cut()

    def lead_to(self, host: str, port: int) -> None:
        """New connections go to another server."""
        self._target = (host, port)

    def stall(self) -> None:
        """Nothing arrives any more, as from a machine that has lost its power: a half-open connection."""
        self.delay_seconds = math.inf

    async def cut(self) -> None:
        """Ends every connection."""
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def count(self) -> Traffic:
        """What has passed since the last call."""
        traffic, self.traffic = self.traffic, Traffic()
        self._is_clients_turn = True
        return traffic

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            await self._link(reader, writer)
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # the connection has ended, which is all that any of them means here
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            async with asyncio.TaskGroup() as group:
                upward = group.create_task(self._send_up(reader, far_writer))
                downward = group.create_task(self._send_down(far_reader, writer))
                await asyncio.wait((upward, downward), return_when=asyncio.FIRST_COMPLETED)
                upward.cancel()
                downward.cancel()
        finally:
            far_writer.transport.abort()

    async def _send_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self._is_clients_turn:
                self.traffic.turns += 1
            self._is_clients_turn = False
            self.traffic.to_server_bytes += len(data)
            writer.write(data)
            await writer.drain()

    async def _send_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.delay_seconds:
                await self._delay()
            self._is_clients_turn = True
            self.traffic.to_client_bytes += len(data)
            writer.write(data)
            await writer.drain()

    async def _delay(self) -> None:
        if math.isinf(self.delay_seconds):
            await asyncio.Event().wait()
        await asyncio.sleep(self.delay_seconds)


async def _end_accepting(server: asyncio.Server) -> None:
    """Python 3.11 leaves a connection open that it has accepted a moment before its server is closed."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


@asynccontextmanager
async def running_proxy(port: int, host: str = "127.0.0.1") -> AsyncIterator[SlowProxy]:
    """In front of the server at this port."""
    proxy = SlowProxy(host, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.refuse()
