"""The response to one request: its head, its framing, and how its client is kept waiting.

Nothing is sent before it must be. The first keep-alive commits status 200; after that a failure can only be
an error event in the stream or a broken connection, never a clean end (docs/design.md, Transparency).

It is written with the head it was given and no other. The library's response would add headers, change some,
and fail on bytes that are not UTF-8. So the bytes go to the request's transport.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeVar

from aiohttp import HttpVersion10, HttpVersion11, hdrs

from gateway.core.errors import RequestRefused
from gateway.headers import CONTENT_LENGTH, ResponseHead, make_fields
from gateway.http.answered import Answered
from gateway.http.request import Request
from gateway.settings import Keepalive
from gateway.wire.format import Format
from gateway.wire.registry import CHAT, render_error

T = TypeVar("T")

_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNKED: Final = {"Transfer-Encoding": "chunked"}
_CLOSE: Final = {"Connection": "close"}
_KEEP_ALIVE: Final = {"Connection": "keep-alive"}
# With more than this in the event loop's buffer, the sender waits for the client.
_HIGH_WATER_BYTES: Final = 1 << 16
# JSON allows white space before the value, so a client that waits for a whole response accepts it.
_SPACE: Final = b" "
_ALLOWED_ORIGIN: Final = b"access-control-allow-origin"


class Reply:
    """status: 0 until a head is set. is_committed: a keep-alive has been sent, so status and headers are the
    gateway's; the body may follow. is_whole: the response's end has been sent. keeps_alive: the connection
    may carry another request behind it. answered: what is known of the request.
    """

    # What is sent to a client that waits, and when; the settings decide.
    keepalive: Keepalive
    # The web page that may read the response; None for programs.
    origin: str | None = None

    def __init__(self, request: Request) -> None:
        self._request = request
        self._format: Format = CHAT
        self._headers: Mapping[str, str] = {}
        self._is_streaming = False
        self._head = b""
        self._is_bodiless = False
        self._is_chunked = False
        self.status = 0
        self.is_committed = False
        self.is_whole = False
        self.keeps_alive = False
        self.answered = Answered()

    def set_format(self, wire_format: Format, headers: Mapping[str, str], *, is_streaming: bool) -> None:
        """All are known once the body has been read. headers: of what the gateway sends as a model would."""
        self._format = wire_format
        self._headers = headers
        self._is_streaming = is_streaming

    def end(self) -> Answered:
        """What is known of the request. Call it once, when it is done."""
        self.answered.end(self.status, self._request.read_seconds)
        return self.answered

    async def wait_for(self, work: "asyncio.Future[T]", max_seconds: float = math.inf) -> bool:
        """Waits for work without cancelling it, with keep-alives from `after_seconds` on.

        Returns whether the work is done; False after `max_seconds`.
        """
        ends = time.monotonic() + max_seconds
        pause = self.keepalive.after_seconds
        while (left := ends - time.monotonic()) > 0:
            done, _ = await asyncio.wait((work,), timeout=min(pause, left))
            if done:
                return True
            if time.monotonic() < ends:
                await self._keep_alive()
        return work.done()

    def begin(self, head: ResponseHead) -> None:
        """Sets status and headers, unless a keep-alive has already sent some.

        They leave with the first piece of the body, or by `flush`.
        """
        if self.status:
            return
        request = self._request
        self.status = head.status
        self._is_bodiless = _is_bodiless(request.head.method, head.status)
        self._is_chunked, self.keeps_alive = False, not request.is_last
        if head.status == _NO_CONTENT:
            # RFC 9110 §8.6.
            head.drop(CONTENT_LENGTH)
        if not self._is_bodiless and not head.has(CONTENT_LENGTH):
            # RFC 9112 §6.3: without a length, chunks or the end of the connection show where the body ends.
            self._is_chunked = request.version >= HttpVersion11
            self.keeps_alive = self.keeps_alive and self._is_chunked
        if self._is_chunked:
            head.own |= _CHUNKED
        if not self.keeps_alive:
            head.own |= _CLOSE
        elif request.version == HttpVersion10:
            head.own |= _KEEP_ALIVE
        if self.origin is not None and not head.has(_ALLOWED_ORIGIN):
            head.own |= {hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: self.origin, hdrs.VARY: "Origin"}
        self._head = head.render(request.version)

    def take_back(self) -> bool:
        """Forgets a response of which nothing has been sent. False if something has, or there is none."""
        if not self._head:
            return False
        self._head, self.status = b"", 0
        return True

    def flush(self) -> None:
        """Sends the head now, for a client that need not wait for the body to see it."""
        if self._head:
            self._send(b"")

    def send(self, data: bytes) -> bool:
        """Sends a piece of the body. True if the client does not keep up, so that `drain` should follow.

        Raises ConnectionError if the client has gone.
        """
        data = self._frame(data)
        return bool(data) and self._send(data) > _HIGH_WATER_BYTES

    async def finish(self, rest: bytes = b"") -> None:
        """Sends the last piece of the body, and its end; waits if the client does not keep up."""
        data = self._frame(rest)
        if self._is_chunked:
            data += _LAST_CHUNK
        self.is_whole = True
        if (data or self._head) and self._send(data) > _HIGH_WATER_BYTES:
            begun_seconds = time.monotonic()
            await self.drain()
            self.answered.client_seconds += time.monotonic() - begun_seconds

    def drain(self) -> Awaitable[None]:
        """Waits until the client keeps up. Raises ConnectionError if it has gone."""
        return self._request.writer.drain()

    async def reply(self, body: bytes) -> None:
        """Sends a whole response of the gateway itself, as a model would send it."""
        length = {} if self._is_streaming else {str(hdrs.CONTENT_LENGTH): str(len(body))}
        self.begin(self._make_head(length))
        await self.finish(body)

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends JSON of the gateway itself."""
        self.begin(_make_local_head(status, len(body), headers or {}))
        await self.finish(body)

    async def refuse(self, error: RequestRefused) -> None:
        """Sends an error of ours in the client's wire format.

        After a keep-alive it is an event of the stream. Inside a response only the connection can be broken
        off.
        """
        body = render_error(self._request.head.target, error)
        if not self.status:
            await self.answer(error.status, body, _make_refusal_headers(error))
        elif self.is_committed:
            await self.fail(body, error.status)
        else:
            self.abort()

    async def fail(self, upstream_body: bytes, status: int) -> None:
        """Ends a committed response: an error event in a stream, then a broken connection, so that the client
        sees a failure.
        """
        if self._is_streaming and self.status:
            self.send(self._format.render_stream_error(upstream_body, status))
            await asyncio.sleep(0)
            self._request.break_off(is_flushed=True)
        else:
            self.abort()

    def abort(self) -> None:
        """Breaks the connection, so that the client cannot take the response for a whole one."""
        self._request.break_off()

    async def _keep_alive(self) -> None:
        if not self.status:
            self.begin(self._make_head({}))
            self.is_committed = True
        if self.send(self._format.keepalive if self._is_streaming else _SPACE):
            await self.drain()

    def _make_head(self, length: dict[str, str]) -> ResponseHead:
        content_type = "text/event-stream" if self._is_streaming else "application/json"
        headers = {hdrs.CONTENT_TYPE: content_type, **self._headers, **length}
        return ResponseHead(200, "OK", make_fields(headers))

    def _send(self, data: bytes) -> int:
        """The number of bytes that are still to be sent."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if self._head:
            data, self._head = self._head + data, b""
            self._request.is_answered = True
        try:
            transport.write(data)
            return transport.get_write_buffer_size()
        except RuntimeError as error:
            # uvloop has closed it while it was written to.
            raise ConnectionResetError("the client has gone") from error

    def _frame(self, data: bytes) -> bytes:
        assert self.status, "nothing is sent before `begin`"
        if not data or self._is_bodiless:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data


def render_refusal(error: RequestRefused) -> bytes:
    """A whole response that ends its connection, where there is no request yet."""
    body = render_error("", error)
    headers = {hdrs.CONNECTION: "close", **_make_refusal_headers(error)}
    return _make_local_head(error.status, len(body), headers).render(HttpVersion11) + body


def _make_refusal_headers(error: RequestRefused) -> dict[str, str]:
    if error.retry_after_seconds is None:
        return {}
    return {hdrs.RETRY_AFTER: str(error.retry_after_seconds)}


def _make_local_head(status: int, length: int, headers: Mapping[str, str]) -> ResponseHead:
    """length: of the body in bytes. The gateway dates what it writes itself (RFC 9110 §6.6.1)."""
    own = {
        hdrs.CONTENT_TYPE: "application/json",
        hdrs.DATE: formatdate(usegmt=True),
        hdrs.CONTENT_LENGTH: str(length),
        **headers,
    }
    return ResponseHead(status, HTTPStatus(status).phrase, make_fields(own))


def _is_bodiless(method: str, status: int) -> bool:
    """RFC 9112 §6.3."""
    if method == hdrs.METH_HEAD or status < 200 or status in (_NO_CONTENT, _NOT_MODIFIED):
        return True
    return method == hdrs.METH_CONNECT and status < 300
