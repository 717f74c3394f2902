"""A response on its way to the client: it writes itself, with the head it was given and no other.

The library's response would add headers, change some, and fail on bytes that are not UTF-8. So the bytes go
to the request's transport, and the library gets `Written` in return.
"""

from collections.abc import Awaitable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web

from gateway.core.errors import RequestRefused
from gateway.downstream.request import Request
from gateway.headers import CONTENT_LENGTH, ResponseHead, make_fields
from gateway.wire.formats.registry import render_error

_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNKED: Final = {"Transfer-Encoding": "chunked"}
_CLOSE: Final = {"Connection": "close"}
_KEEP_ALIVE: Final = {"Connection": "keep-alive"}
# With more than this in the event loop's buffer, the sender waits for the client.
_HIGH_WATER_BYTES: Final = 1 << 16


class Written(web.StreamResponse):
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


class Response:
    """The head leaves with the first piece of the body, or by `flush`.

    status: of the head. keeps_alive: the connection may carry another request behind it. is_whole: its end
    has been sent.
    """

    def __init__(self, head: ResponseHead, request: Request) -> None:
        """Nothing is sent yet."""
        self._request = request
        self._transport = request.transport
        self._writer = request.writer
        self._is_bodiless = _is_bodiless(request.head.method, head.status)
        self._is_chunked = False
        self.status = head.status
        self.keeps_alive = not request.is_last
        self.is_whole = False
        if head.status == _NO_CONTENT:
            # RFC 9110 §8.6.
            head.drop(CONTENT_LENGTH)
        if not self._is_bodiless and not head.has(CONTENT_LENGTH):
            # RFC 9112 §6.3: without a length, chunks or the end of the connection show where the body ends.
            self._is_chunked = request.version >= HttpVersion11
            self.keeps_alive = self.keeps_alive and self._is_chunked
        if self._is_chunked:
            head.add(_CHUNKED)
        if not self.keeps_alive:
            head.add(_CLOSE)
        elif request.version == HttpVersion10:
            head.add(_KEEP_ALIVE)
        self._head = head.render(request.version)

    @property
    def has_left(self) -> bool:
        """Something of it has been sent."""
        return not self._head

    def flush(self) -> None:
        """Sends the head, if it has not left yet."""
        if self._head:
            self._send(b"")

    def send(self, data: bytes) -> bool:
        """True if the client does not keep up, so that the sender should wait for `drain`.

        Raises ConnectionError if the client has gone.
        """
        data = self._frame(data)
        return bool(data) and self._send(data) > _HIGH_WATER_BYTES

    def finish(self, data: bytes = b"") -> bool:
        """The same for the last piece, with the mark that ends the body."""
        data = self._frame(data)
        if self._is_chunked:
            data += _LAST_CHUNK
        self.is_whole = True
        return bool(data or self._head) and self._send(data) > _HIGH_WATER_BYTES

    def drain(self) -> Awaitable[None]:
        """Waits until the client keeps up. Raises ConnectionError if it has gone."""
        return self._writer.drain()

    def _send(self, data: bytes) -> int:
        """The number of bytes that are still to be sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if self._head:
            data, self._head = self._head + data, b""
            self._request.is_answered = True
        transport.write(data)
        return transport.get_write_buffer_size()

    def _frame(self, data: bytes) -> bytes:
        if not data or self._is_bodiless:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data


def send_local_response(
    request: Request, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> Response:
    """Writes a JSON response of the gateway itself. Raises ConnectionError if the client has gone."""
    response = Response(make_local_head(status, len(body), headers or {}), request)
    response.finish(body)
    return response


def send_refusal(request: Request, error: RequestRefused) -> Response:
    """Writes the error in the client's wire format. Raises ConnectionError if the client has gone."""
    body = render_error(request.head.target, error)
    return send_local_response(request, error.status, body, make_refusal_headers(error))


def make_refusal_headers(error: RequestRefused) -> dict[str, str]:
    if error.retry_after_seconds is None:
        return {}
    return {hdrs.RETRY_AFTER: str(error.retry_after_seconds)}


def make_local_head(status: int, length: int, headers: Mapping[str, str]) -> ResponseHead:
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
