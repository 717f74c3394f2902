"""The data port: accepts connections, tracks open requests, and drains them before it closes.

aiohttp's server reads the requests, one after the other on each connection, and cancels the handler when the
client hangs up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import BadHttpMessage

from gateway.core.errors import RequestRefused
from gateway.downstream.library_log import make_library_log
from gateway.downstream.request import Request
from gateway.downstream.response import Response, Written, make_local_head, send_local_response
from gateway.wire.formats.registry import render_error

# Operators know this name (docs/troubleshooting.md).
log = logging.getLogger("gateway.head_parser")

_BACKLOG: Final = 1_024
# Unused connections are kept for longer than by any proxy in front of the gateway.
_IDLE_SECONDS: Final = 3_630.0
# How long the sender of a chunked body may pause.
_CHUNK_SECONDS: Final = 60.0
# Requests that are still open after draining get this long to end.
_CLOSE_SECONDS: Final = 0.1
# Requests whose heads have just been read get this long to reach their handlers.
_SETTLE_SECONDS: Final = 0.01
# When this much of a body is unread, its sender has to wait.
_READ_BYTES: Final = 1 << 18
# Headers of agents carry turn metadata and cookies; 8,190 bytes (the library's default) is not enough.
_HEADER_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 256
# The library's options, most of them defaults that a gateway must override.
_OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "auto_decompress": False,
    "max_line_size": _HEADER_BYTES,
    "max_field_size": _HEADER_BYTES,
    "max_headers": _MAX_HEADERS,
    "read_bufsize": _READ_BYTES,
}
_NOT_HTTP: Final = RequestRefused(400, "The request is not valid HTTP.")
_KEPT: Final = Written(keeps_alive=True)
_CLOSED: Final = Written(keeps_alive=False)

Handler = Callable[[Request], Awaitable[Response | None]]


class _Connection(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """status: 400 for bytes that are not HTTP; otherwise the gateway's own handler failed."""
        if status != 400:
            log.error("request failed inside the gateway", exc_info=exc)
            return _CLOSED
        # The error's text is not logged: it quotes the line that could not be read, which may hold a key.
        log.info("%s on a connection", type(exc).__name__)
        if self.transport is not None and not self.transport.is_closing():
            body = render_error("", _NOT_HTTP)
            head = make_local_head(_NOT_HTTP.status, len(body), {hdrs.CONNECTION: "close"})
            self.transport.write(head.render(HttpVersion11) + body)
        return _CLOSED


class Server:
    """port: the one that is listened on, also if 0 was asked for. is_draining: from `drain` on."""

    def __init__(
        self, handler: Handler, idle_seconds: float = _IDLE_SECONDS, chunk_seconds: float = _CHUNK_SECONDS
    ) -> None:
        """idle_seconds: how long an unused connection stays open."""
        self._handler = handler
        self._idle_seconds = idle_seconds
        self._chunk_seconds = chunk_seconds
        self._connections = web.Server(self._serve, handler_cancellation=True)
        self._listener: asyncio.Server | None = None
        # The open requests, each with the task of its handler.
        self._open: dict[Request, asyncio.Task[None]] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_draining = False
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Raises OSError for a port that is taken."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self.make_connection, host, port, backlog=_BACKLOG)
        self.port = self._listener.sockets[0].getsockname()[1]

    def make_connection(self) -> web.RequestHandler:
        return _Connection(
            self._connections,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._idle_seconds,
            logger=make_library_log(),
            **_OPTIONS,
        )

    async def drain(self, seconds: float) -> None:
        """Waits until no request is open, at most for `seconds`.

        Each connection closes behind its response.
        """
        self.is_draining = True
        for request in self._open:
            request.is_last = True
        await asyncio.sleep(_SETTLE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self.drain(_CLOSE_SECONDS)
        tasks = list(self._open.values())
        for request in self._open:
            request.break_off()
        if tasks:
            await asyncio.wait(tasks)
        self._connections.pre_shutdown()
        await self._connections.shutdown(_CLOSE_SECONDS)

    async def _serve(self, http: web.BaseRequest) -> Written:
        """Handles one request of the library's server."""
        request = Request(http, is_late=self.is_draining, chunk_seconds=self._chunk_seconds)
        self._begin(request)
        response = None
        try:
            response = _refuse(request) if request.is_lost else await self._handler(request)
        except ConnectionError:
            # The client has gone.
            pass
        finally:
            self._end(request)
            if response is None or not response.is_whole:
                request.break_off()
        if request.is_lost:
            http.protocol.force_close()
        elif not http.content.is_eof():
            # An upload that has just been given up may still wait for the next piece; now the library does.
            await asyncio.sleep(0)
        if response is None or not response.keeps_alive or request.is_last:
            return _CLOSED
        return _KEPT

    def _begin(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[request] = task
        self._is_idle.clear()

    def _end(self, request: Request) -> None:
        del self._open[request]
        if not self._open:
            self._is_idle.set()


def _refuse(request: Request) -> Response:
    log.info("%s on a connection", BadHttpMessage.__name__)
    return send_local_response(request, _NOT_HTTP.status, render_error(request.head.target, _NOT_HTTP))
