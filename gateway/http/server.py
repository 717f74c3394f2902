"""The data port: accepts connections, tracks open requests, and drains them before it closes.

aiohttp's server reads the requests, one after the other on each connection, and cancels the handler when the
client hangs up. What it would send itself goes through the log of this module, which keeps keys out.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http import HttpProcessingError

from gateway.core.errors import RequestRefused
from gateway.http.guard import Gate, Guard, PortBounds
from gateway.http.ports import BACKLOG, bind_port
from gateway.http.reply import Reply
from gateway.http.request import Request, RequestHead

# Operators know this name (docs/troubleshooting.md).
log = logging.getLogger("gateway.head_parser")

# Requests that are still open after draining get this long to end.
_CLOSE_SECONDS: Final = 0.1
# Requests whose heads have just been read get this long to reach their handlers.
_SETTLE_SECONDS: Final = 0.01
# Behind a response that was sent early, the rest of the body may come for so long.
_REST_SECONDS: Final = 10.0
# When this much of a body is unread, its sender has to wait.
_READ_BYTES: Final = 1 << 16
# Headers of agents carry turn metadata and cookies; 8,190 bytes (the library's default) is not enough.
_HEADER_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 256
_NOT_HTTP: Final = RequestRefused(400, "The request is not valid HTTP.")
# RFC 9110 §7.2, RFC 3986 §3.2.2: characters of a host and port.
_HOST: Final = re.compile(r"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)

# Raises only ConnectionError, if the client has gone.
Handler = Callable[[Request, Reply], Awaitable[None]]


class _Sent(web.StreamResponse):
    """Returned to the library for a response that has already been written. It writes nothing."""

    def __init__(self, *, keeps_alive: bool) -> None:
        super().__init__()
        self.keeps_alive = keeps_alive

    @property
    def keep_alive(self) -> bool:
        return self.keeps_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Writes no head."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Writes no end."""


_KEPT: Final = _Sent(keeps_alive=True)
_CLOSED: Final = _Sent(keeps_alive=False)


def make_library_options(bounds: PortBounds) -> dict[str, Any]:
    """Of aiohttp's server. A name that it does not know makes it ignore all of them."""
    return {
        "access_log": None,
        "auto_decompress": False,
        "handler_cancellation": True,
        "keepalive_timeout": bounds.idle_seconds,
        "lingering_time": _find_rest_seconds(bounds),
        "logger": make_library_log(),
        "max_field_size": _HEADER_BYTES,
        "max_headers": _MAX_HEADERS,
        "max_line_size": _HEADER_BYTES,
        "read_bufsize": _READ_BYTES,
    }


def _find_rest_seconds(bounds: PortBounds) -> float:
    return min(_REST_SECONDS, bounds.stall_seconds)


def make_library_log() -> logging.Logger:
    """Logs the class of an error, and nothing of its text: it quotes lines of heads, which may hold a key."""
    if not log.filters:
        log.addFilter(_without_text)
    return log


def _without_text(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    if kind is None:
        return True
    if issubclass(kind, ConnectionError):
        # The client has gone.
        return False
    if issubclass(kind, HttpProcessingError):
        # What a client sends is no error of ours.
        record.levelno, record.levelname = logging.INFO, "INFO"
    record.msg, record.args = "%s on a connection", (kind.__name__,)
    record.exc_info = record.exc_text = None
    return log.isEnabledFor(record.levelno)


def find_guard(http: web.BaseRequest) -> Guard | None:
    """None if the client has gone."""
    guard = http.transport.get_protocol() if http.transport is not None else None
    return guard if isinstance(guard, Guard) else None


class Server:
    """port: the one that is listened on, also if 0 was asked for. is_draining: from `drain` on."""

    def __init__(self, handler: Handler, bounds: PortBounds) -> None:
        self._handler = handler
        self._gate = Gate(bounds)
        # Connections that break off while the library waits for the rest of a body stay in memory
        # (aiohttp 3.14). So this waits itself.
        self._library = web.Server(self._serve, **make_library_options(bounds) | {"lingering_time": 0.0})
        self._rest_seconds = _find_rest_seconds(bounds)
        self._listeners: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._open: set[Request] = set()
        # Looked at only while draining: whether no request is open, or the wait has been ended.
        self._is_drained = asyncio.Event()
        self._is_impatient = False
        self._is_retiring = False
        self.is_draining = False
        self.port = 0

    @property
    def open_requests(self) -> int:
        return len(self._open)

    async def open(self, host: str, port: int) -> None:
        """Raises OSError for a port that is taken."""
        await self.open_sockets(await bind_port(host, port))

    async def open_sockets(self, sockets: Sequence[socket.socket]) -> None:
        """With sockets that listen already. They belong to the server."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            listener = await loop.create_server(self._make_guard, sock=listening, backlog=BACKLOG)
            self._listeners.append(listener)
            self.port = listener.sockets[0].getsockname()[1]
        self._sockets.extend(sockets)
        self._gate.sweep()

    async def drain(self, seconds: float) -> None:
        """Waits until no request is open, at most for `seconds`.

        Each connection closes behind its response.
        """
        self.is_draining = True
        for request in self._open:
            request.make_last()
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
        """Closes each connection behind its next response, also those that still come.

        For a worker that ends while others go on: clients move to those.
        """
        self._is_retiring = True
        for request in self._open:
            request.make_last()

    def close_unused(self) -> None:
        """Closes the connections on which nothing of a request has come."""
        self._gate.close_unused()

    async def leave_port(self) -> None:
        """Takes what waits to be accepted, which closing the sockets would reset, and nothing new."""
        accepted: list[socket.socket] = []
        for listening in self._sockets:
            # Nothing waits any more, or there are no descriptors.
            with suppress(OSError):
                while True:
                    accepted.append(listening.accept()[0])
        self.stop_listening()
        loop = asyncio.get_running_loop()
        for connected in accepted:
            await loop.connect_accepted_socket(self._make_guard, connected)

    def stop_listening(self) -> None:
        """Takes no new connections."""
        for listener in self._listeners:
            listener.close()

    async def close(self) -> None:
        self.stop_listening()
        self._gate.close()
        await self.drain(_CLOSE_SECONDS)
        for request in self._open:
            request.break_off()
        while self._open:
            self._is_drained.clear()
            await self._is_drained.wait()
        self._library.pre_shutdown()
        await self._library.shutdown(_CLOSE_SECONDS)

    def _make_guard(self) -> Guard:
        return Guard(self._library, self._gate)

    async def _serve(self, http: web.BaseRequest) -> _Sent:
        """Handles one request of the library's server."""
        guard = find_guard(http)
        if guard is None:
            return _CLOSED
        request = Request(http, guard, is_late=self.is_draining)
        if self._is_retiring:
            request.make_last()
        reply = Reply(request)
        refusal = _NOT_HTTP if request.is_lost else _find_refusal(request.head, request.version)
        if refusal is None:
            guard.begin(request.content, request.length, request.lose)
        self._open.add(request)
        try:
            if refusal is None:
                await self._handler(request, reply)
            else:
                await _refuse(request, reply, refusal)
        except ConnectionError:
            # The client has gone.
            pass
        finally:
            self._open.discard(request)
            if self.is_draining and not self._open:
                self._is_drained.set()
            # The head may have left before the port began to close.
            is_last = self.is_draining or self._is_retiring or not (reply.is_whole and reply.keeps_alive)
            if not reply.is_whole:
                request.break_off()
            guard.end(is_last=is_last)
            request.forget_error()
        if request.is_lost:
            guard.linger()
        elif not http.content.is_eof():
            await self._discard_rest(request)
        return _CLOSED if is_last else _KEPT

    async def _discard_rest(self, request: Request) -> None:
        """Of a body whose response has been sent. A client that is still sending might lose it otherwise."""
        # An upload to the upstream that has just been given up may still wait for the next piece.
        await asyncio.sleep(0)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self._rest_seconds):
                await request.discard_rest()


async def _refuse(request: Request, reply: Reply, error: RequestRefused) -> None:
    """The connection ends behind it, because what follows on it cannot be told apart from the request."""
    log.info("refused with %d on a connection", error.status)
    request.is_lost = True
    request.make_last()
    if request.version != HttpVersion10:
        request.version = HttpVersion11
    await reply.refuse(error)


def _find_refusal(head: RequestHead, version: HttpVersion) -> RequestRefused | None:
    """Why the connection must end behind an error; None for a request that may be served.

    What goes upstream is framed anew. So a request whose own framing, version or method could be read in two
    ways is not forwarded at all, also if the library's parser accepts it.
    """
    headers = head.headers
    if version not in (HttpVersion11, HttpVersion10):
        return RequestRefused(505, "Only HTTP/1.1 and HTTP/1.0 are supported.")
    if head.method == hdrs.METH_CONNECT:
        # It asks for a tunnel (RFC 9110 §9.3.6).
        return RequestRefused(501, "The method CONNECT is not supported.")
    coding = headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None:
        if version == HttpVersion10:
            # RFC 9112 §6.1.
            return RequestRefused(400, "HTTP/1.0 has no transfer coding.")
        if coding.lower() != "chunked":
            return RequestRefused(501, "No transfer coding but chunked is supported.")
    if headers.get(hdrs.EXPECT, "100-continue").lower() != "100-continue":
        return RequestRefused(417, "No expectation but 100-continue is supported.")
    if "#" in head.target or not _HOST.fullmatch(headers.get(hdrs.HOST, "")):
        return RequestRefused(400, "The request's target or host is not valid.")
    return None
