"""Stands between the transport of an upstream's connection and the library's protocol, and sees bytes first.

It knows what the library does not tell: whether any byte of a response has come, that an idle connection is
broken or was spoken on, and whether a body that ends with its connection ended cleanly. It bounds what an
upstream may send before the head of its response is complete.
"""

import asyncio
import select
import ssl
import time
from typing import Final

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import LineTooLong

# A whole head, as for requests. The library bounds lines and their number only, which is 16 MB together.
MAX_HEAD_BYTES: Final = 1 << 18


class ConnectionGuard(asyncio.Protocol):
    """is_used: the connection has carried a request before.

    is_over: the upstream has closed it, or spoken while nothing was asked.
    has_answered: a byte has come since the last `begin`.
    """

    def __init__(self, transport: asyncio.Transport, protocol: ResponseHandler) -> None:
        self._transport = transport
        self._library = protocol
        self._ssl: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._is_idle = True
        # Of the response that is awaited; None while its body comes.
        self._head_bytes: int | None = None
        # The body that comes.
        self._body: StreamReader | None = None
        self._is_unframed = False
        self._is_lost = False
        self._is_cut_off = False
        # When the last response ended, by time.monotonic().
        self._idle_since_seconds = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self.is_used = False
        self.is_over = False
        self.has_answered = False

    def begin(self) -> None:
        """A request is about to be sent."""
        self._is_idle = False
        self._head_bytes = 0
        self.has_answered = False

    def end_head(self) -> None:
        """The head of the response has been read. What follows is its body, which has no bound here."""
        self._head_bytes = None

    def end(self) -> None:
        """The response has come to its end. Whatever comes from now on belongs to no request."""
        self._is_idle = True
        self._body = None
        self._idle_since_seconds = time.monotonic()
        self.is_used = True

    def watch_end(self, body: StreamReader, *, is_unframed: bool) -> None:
        """From now on a body that loses its connection fails at once. The library leaves some waiting.

        is_unframed: the end of the connection is the end of the body, so it must be a clean one
        (RFC 9112 §9.8).
        """
        self._body, self._is_unframed = body, is_unframed
        if self._is_lost:
            self._check_body()

    def is_silent(self) -> bool:
        """Whether the connection is open and nothing waits to be read, asked of the system."""
        return not (self.is_over or self._transport.is_closing() or self._poll.poll(0))

    def has_rested(self, seconds: float) -> bool:
        """Whether the connection has carried a request before, and none for so long."""
        return self.is_used and time.monotonic() - self._idle_since_seconds > seconds

    async def wait_for_sign(self, seconds: float) -> None:
        """Waits until the upstream closes the connection or sends something, at most for so long."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self.is_over = True
            self._transport.abort()
            return
        self.has_answered = True
        self._wake()
        # A message in the queue is a complete head, and what follows may be its body.
        if self._head_bytes is not None and not len(self._library):
            if self._head_bytes > MAX_HEAD_BYTES:
                self._library.set_exception(make_head_error())
                self._transport.abort()
                return
            self._head_bytes += len(data)
        self._library.data_received(data)

    def eof_received(self) -> None:
        self.is_over = True
        self._wake()
        self._library.eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_over = True
        self._wake()
        self._is_cut_off = exc is not None or not self._is_ssl_closed()
        if self._is_cut_off and self._is_unframed:
            # The library would take this for the end.
            self._fail_body()
        self._library.connection_lost(exc)
        self._is_lost = True
        self._check_body()

    def pause_writing(self) -> None:
        self._library.pause_writing()

    def resume_writing(self) -> None:
        self._library.resume_writing()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_body(self) -> None:
        if self._body is not None and (not self._body.is_eof() or (self._is_unframed and self._is_cut_off)):
            self._fail_body()

    def _fail_body(self) -> None:
        if self._body is not None and self._body.exception() is None:
            self._body.set_exception(aiohttp.ClientPayloadError("the connection was cut off"))

    def _is_ssl_closed(self) -> bool:
        """Whether TLS has said that the connection ends. If not, anyone on the way may have cut it off."""
        if self._ssl is None:
            return True
        try:
            return not self._ssl.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False


def guard_connection(protocol: ResponseHandler) -> ConnectionGuard:
    """The guard of an open connection. A new connection gets one."""
    transport = protocol.transport
    assert transport is not None, "the connector gives open connections only"
    found = transport.get_protocol()
    if isinstance(found, ConnectionGuard):
        return found
    made = ConnectionGuard(transport, protocol)
    transport.set_protocol(made)
    return made


def make_head_error() -> LineTooLong:
    return LineTooLong(b"", MAX_HEAD_BYTES)
