"""An answer on its way to the client: it writes itself, and carries the head it was given and no other.

A library would add headers, and mend some.
"""

from collections.abc import Awaitable
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.helpers import must_be_empty_body

from gateway.downstream.request import Request
from gateway.headers import CONTENT_LENGTH, ResponseHead

_NO_CONTENT: Final = 204
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNKED: Final = {"Transfer-Encoding": "chunked"}
_CLOSE: Final = {"Connection": "close"}
_KEEP_ALIVE: Final = {"Connection": "keep-alive"}
# What the event loop takes before it says that the client does not keep up.
_HIGH_WATER_BYTES: Final = 1 << 16


class Response:
    """Its head leaves with the first piece of its body, or by `flush`.

    keeps_alive: may the connection carry another request behind it? is_whole: has its end been sent?
    """

    def __init__(self, head: ResponseHead, request: Request) -> None:
        """Nothing is sent yet."""
        line = request.head
        self._connection = request.connection
        self._is_bodiless = must_be_empty_body(line.method, head.status)
        self._is_chunked = False
        self.keeps_alive = line.keeps_alive and not request.connection.is_last
        self.is_whole = False
        if head.status == _NO_CONTENT:
            # RFC 9110 §8.6.
            head.drop(CONTENT_LENGTH)
        if not self._is_bodiless and not head.has(CONTENT_LENGTH):
            # RFC 9112 §6.3: without a length chunks tell where it ends, or the connection's end.
            self._is_chunked = line.version >= HttpVersion11
            self.keeps_alive = self.keeps_alive and self._is_chunked
        if self._is_chunked:
            head.add(_CHUNKED)
        if not self.keeps_alive:
            head.add(_CLOSE)
        elif line.version == HttpVersion10:
            head.add(_KEEP_ALIVE)
        self._head = head.render(line.version)

    def flush(self) -> None:
        """Sends the head, if it has not left yet."""
        if self._head:
            self._send(b"")

    def send(self, data: bytes) -> bool:
        """Does the client not keep up, so that more should wait for `drain`? Raises ConnectionError where it
        has gone.
        """
        data = self._frame(data)
        return bool(data) and self._send(data) > _HIGH_WATER_BYTES

    def finish(self, data: bytes = b"") -> bool:
        """The same for the last piece, with what tells that it is the last."""
        data = self._frame(data)
        if self._is_chunked:
            data += _LAST_CHUNK
        self.is_whole = True
        return bool(data or self._head) and self._send(data) > _HIGH_WATER_BYTES

    def drain(self) -> Awaitable[None]:
        """Waits until the client keeps up. Raises ConnectionError where it has gone."""
        return self._connection.drain()

    def _send(self, data: bytes) -> int:
        """Bytes that wait to be sent now."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("downstream has gone")
        if self._head:
            data, self._head = self._head + data, b""
        transport.write(data)
        return transport.get_write_buffer_size()

    def _frame(self, data: bytes) -> bytes:
        if not data or self._is_bodiless:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
