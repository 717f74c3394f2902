"""The port: takes clients' connections, counts what is under way, and lets it end before closing.

Connections that nobody uses for long are closed.
"""

import asyncio
import time
from typing import Final

from gateway.downstream.connection import DownstreamConnection, Handler

_BACKLOG: Final = 1_024
# Longer than any proxy in front keeps one.
_IDLE_SECONDS: Final = 3_630.0
# What is still open after draining has had its time.
_CLOSE_SECONDS: Final = 0.1


class Server:
    """port: the one that is listened on, also where 0 was asked for. is_draining: from `drain` on."""

    def __init__(self, handler: Handler, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._handler = handler
        self._idle_seconds = idle_seconds
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._connections: set[DownstreamConnection] = set()
        self._requests = 0
        self._idle: asyncio.Future[None] | None = None
        self.is_draining = False
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Raises OSError for a port that is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: DownstreamConnection(loop, self._handler, self), host, port, backlog=_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._close_idle()

    async def drain(self, seconds: float) -> None:
        """Waits until nothing is under way, but not for longer. Each connection closes behind its answer."""
        self.is_draining = True
        if self._requests:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=seconds)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        await self.drain(_CLOSE_SECONDS)
        tasks = [task for connection in list(self._connections) if (task := connection.abort()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # What its connections tell it.

    def admit(self, connection: DownstreamConnection) -> None:
        self._connections.add(connection)

    def dismiss(self, connection: DownstreamConnection) -> None:
        self._connections.discard(connection)

    def count(self, requests: int) -> None:
        self._requests += requests
        if not self._requests and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _close_idle(self) -> None:
        oldest = time.monotonic() - self._idle_seconds
        for connection in list(self._connections):
            if connection.idle_since < oldest:
                connection.close()
        self._sweep = asyncio.get_running_loop().call_later(self._idle_seconds / 60, self._close_idle)
