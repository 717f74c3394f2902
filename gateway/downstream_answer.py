"""An answer on its way to the client: it writes itself, and carries the head it was given and no other.

The library would add headers, and mend some.
"""

from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.helpers import must_be_empty_body
from multidict import CIMultiDict

from gateway.answer_head import CONTENT_LENGTH, AnswerHead

_NO_CONTENT: Final = 204
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNKED: Final = {"Transfer-Encoding": "chunked"}
_CLOSE: Final = {"Connection": "close"}
_KEEP_ALIVE: Final = {"Connection": "keep-alive"}
# For the library, which never looks.
_NONE: Final = CIMultiDict[str]()
# What the event loop takes before it says that the client does not keep up.
_HIGH_WATER_BYTES: Final = 1 << 16


class Answer(web.StreamResponse):
    """Its head leaves with the first piece of its body, or by `flush`."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(status=head.status, reason="", _real_headers=_NONE)
        self._lines = head
        self._head = b""
        self._chunks = False

    async def prepare(self, request: web.BaseRequest) -> None:
        """The library asks for it once more when the handler is done."""
        if self._req is None and not self._eof_sent:
            self.begin(request)

    def begin(self, request: web.BaseRequest) -> None:
        """Nothing is sent yet."""
        self._req = request
        self._payload_writer = request._payload_writer
        self._must_be_empty_body = must_be_empty_body(request.method, self._status)
        self._keep_alive = request.keep_alive
        head, version = self._lines, request.version
        if self._status == _NO_CONTENT:
            # RFC 9110 §8.6.
            head.drop(CONTENT_LENGTH)
        if not self._must_be_empty_body and not head.has(CONTENT_LENGTH):
            # RFC 9112 §6.3: without a length chunks tell where it ends, or the connection's end.
            self._chunks = version >= HttpVersion11
            self._keep_alive = self._keep_alive and self._chunks
        if self._chunks:
            head.add(_CHUNKED)
        if not self._keep_alive:
            head.add(_CLOSE)
        elif version == HttpVersion10:
            head.add(_KEEP_ALIVE)
        self._head = head.render(version)

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
        if self._chunks:
            data += _LAST_CHUNK
        self._eof_sent = True
        return bool(data or self._head) and self._send(data) > _HIGH_WATER_BYTES

    async def drain(self) -> None:
        """Waits until the client keeps up. Raises ConnectionError where it has gone."""
        if self._payload_writer is not None:
            await self._payload_writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """The library asks for it when the handler is done."""
        if not self._eof_sent:
            self.finish(data)
        self._req = self._payload_writer = None

    def _send(self, data: bytes) -> int:
        """Bytes that wait to be sent now."""
        transport = self._req.transport if self._req is not None else None
        if transport is None or transport.is_closing():
            raise ConnectionResetError("downstream has gone")
        if self._head:
            data, self._head = self._head + data, b""
        transport.write(data)
        return transport.get_write_buffer_size()

    def _frame(self, data: bytes) -> bytes:
        if not data or self._must_be_empty_body:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunks else data
