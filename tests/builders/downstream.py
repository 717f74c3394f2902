"""A client's connection in memory, and requests to send on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gateway.downstream.gate import PortBounds
from gateway.downstream.request import Request
from gateway.downstream.response import Response
from gateway.downstream.server import Server

Handler = Callable[[Request], Awaitable[Response | None]]
_TURNS = 20


class Line(asyncio.Transport):
    """written: what the gateway has sent. responses: how many of them began with status 200.

    unsent_bytes: what the client is said not to have read yet.
    """

    def __init__(self, connection: web.RequestHandler) -> None:
        super().__init__()
        self.connection = connection
        self.written = b""
        self.responses = 0
        self.unsent_bytes = 0
        self.is_paused = self.is_closed = self.is_aborted = False
        connection.connection_made(self)

    async def send(self, data: bytes) -> None:
        """Lets the gateway do what it can do without waiting."""
        self.connection.data_received(data)
        await settle()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.responses += bytes(data).startswith(b"HTTP/1.1 200 OK")

    def write_eof(self) -> None:
        """The gateway writes no more."""

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_reading(self) -> bool:
        return not self.is_paused

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()


@asynccontextmanager
async def open_line(handler: Handler) -> AsyncIterator[Line]:
    line = Line(Server(handler, PortBounds()).make_connection())
    await settle()
    try:
        yield line
    finally:
        line.close()
        await settle()


async def settle() -> None:
    """Waits for everything that needs no more than some turns of the event loop."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def render_get(target: str = "/", *, version: str = "1.1", method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/{version}\r\nHost: a\r\n\r\n".encode()
