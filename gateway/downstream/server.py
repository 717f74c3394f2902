"""The data port: accepts connections, tracks open requests, and drains them before it closes.

aiohttp's server reads the requests, one after the other on each connection, and cancels the handler when the
client hangs up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web

from gateway.core.errors import RequestRefused
from gateway.downstream.connection import ClientConnection
from gateway.downstream.framing import find_refusal
from gateway.downstream.gate import Gate, PortBounds
from gateway.downstream.request import Request
from gateway.downstream.response import Response, Written, send_refusal
from gateway.downstream.shared_port import BACKLOG, SharedPort

# Operators know this name (docs/troubleshooting.md).
log = logging.getLogger("gateway.head_parser")

# Requests that are still open after draining get this long to end.
_CLOSE_SECONDS: Final = 0.1
# Requests whose heads have just been read get this long to reach their handlers.
_SETTLE_SECONDS: Final = 0.01
_NOT_HTTP: Final = RequestRefused(400, "The request is not valid HTTP.")
_KEPT: Final = Written(keeps_alive=True)
_CLOSED: Final = Written(keeps_alive=False)

Handler = Callable[[Request], Awaitable[Response | None]]


class Server:
    """port: the one that is listened on, also if 0 was asked for. is_draining: from `drain` on."""

    def __init__(self, handler: Handler, bounds: PortBounds) -> None:
        self._handler = handler
        self._gate = Gate(bounds)
        self._connections = web.Server(self._serve, handler_cancellation=True)
        self._listener: asyncio.Server | SharedPort | None = None
        self._open: set[Request] = set()
        # Looked at only while draining: whether no request is open, or the wait has been ended.
        self._is_drained = asyncio.Event()
        self._is_impatient = False
        self._is_retiring = False
        self.is_draining = False
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Raises OSError for a port that is taken."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self.make_connection, host, port, backlog=BACKLOG)
        self._listener = listener
        self.port = listener.sockets[0].getsockname()[1]
        self._gate.open()

    def open_shared(self, shared: SharedPort) -> None:
        """As one of several workers."""
        self._listener = shared
        self.port = shared.port
        self._gate.report_to(shared.note_count)
        self._gate.open()
        shared.open(self.make_connection)

    def make_connection(self) -> ClientConnection:
        return ClientConnection(self._connections, self._gate)

    async def drain(self, seconds: float) -> None:
        """Waits until no request is open, at most for `seconds`.

        Each connection closes behind its response.
        """
        self.is_draining = True
        for request in self._open:
            request.is_last = True
        await asyncio.sleep(_SETTLE_SECONDS)
        if self._open and not self._is_impatient:
            self._is_drained.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_drained.wait()

    def stop_draining(self) -> None:
        """`drain` returns at once, and does not wait again."""
        self._is_impatient = True
        self._is_drained.set()

    def retire(self) -> None:
        """Takes no new connections, and closes each open one behind its next response.

        For a worker that ends while others go on: clients move to those.
        """
        self.stop_listening()
        self._is_retiring = True
        for request in self._open:
            request.is_last = True

    def close_unused(self) -> None:
        """Closes the connections on which nothing of a request has come."""
        self._gate.close_unused()

    def stop_listening(self) -> None:
        """Takes no new connections."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        self.stop_listening()
        await self._gate.close()
        await self.drain(_CLOSE_SECONDS)
        for request in self._open:
            request.break_off()
        while self._open:
            self._is_drained.clear()
            await self._is_drained.wait()
        self._connections.pre_shutdown()
        await self._connections.shutdown(_CLOSE_SECONDS)

    async def _serve(self, http: web.BaseRequest) -> Written:
        """Handles one request of the library's server."""
        request = Request(http, is_late=self.is_draining)
        request.is_last = request.is_last or self._is_retiring
        connection = http.protocol
        assert isinstance(connection, ClientConnection)
        refusal = find_refusal(request.head, request.version)
        if refusal is None:
            connection.begin(request.content, request.length, request.lose)
        self._open.add(request)
        response = None
        try:
            if refusal is None and not request.is_lost:
                response = await self._handler(request)
            else:
                response = _refuse(request, refusal or _NOT_HTTP)
        except ConnectionError:
            # The client has gone.
            pass
        finally:
            self._open.discard(request)
            if self.is_draining and not self._open:
                self._is_drained.set()
            is_last = request.is_last or response is None or not response.keeps_alive
            if response is None or not response.is_whole:
                request.break_off()
            connection.end(is_last=is_last)
            request.forget_error()
        if request.is_lost:
            connection.force_close()
        elif not http.content.is_eof():
            # An upload that has just been given up may still wait for the next piece; now the library does.
            await asyncio.sleep(0)
        return _CLOSED if is_last else _KEPT


def _refuse(request: Request, error: RequestRefused) -> Response:
    """The connection ends behind it, because what follows on it cannot be told apart from the request."""
    log.info("refused with %d on a connection", error.status)
    request.is_lost = request.is_last = True
    if request.version != HttpVersion10:
        request.version = HttpVersion11
    return send_refusal(request, error)
