"""An answer on its way to the client: it writes itself, and carries the headers it was given and no others.

The library would add some, mend some, and cannot write bytes that are no text (RFC 9110 §5.5 allows them).
"""

from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.helpers import must_be_empty_body
from multidict import CIMultiDict

from gateway.header_text import CONTROL

_NO_CONTENT: Final = 204
# What the event loop takes before it says that the client does not keep up.
_HIGH_WATER_BYTES: Final = 1 << 16


class Answer(web.StreamResponse):
    """Its head leaves with the first piece of its body, or by `flush`."""

    def __init__(
        self, *, status: int, reason: str | None = None, headers: CIMultiDict[str] | None = None
    ) -> None:
        reason = _without_control(reason) if reason else reason
        super().__init__(status=status, reason=reason, _real_headers=headers)
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
        headers, version = self._headers, request.version
        if self._status == _NO_CONTENT:
            # RFC 9110 §8.6.
            headers.popall(hdrs.CONTENT_LENGTH, None)
        if not self._must_be_empty_body and hdrs.CONTENT_LENGTH not in headers:
            # RFC 9112 §6.3: without a length chunks tell where it ends, or the connection's end.
            self._chunks = version >= HttpVersion11
            self._keep_alive = self._keep_alive and self._chunks
        if self._chunks:
            headers[hdrs.TRANSFER_ENCODING] = "chunked"
        if not self._keep_alive:
            headers[hdrs.CONNECTION] = "close"
        elif version == HttpVersion10:
            headers[hdrs.CONNECTION] = "keep-alive"
        self._head = self._render_head(version)

    def flush(self) -> None:
        """Sends the head, if it has not left yet."""
        if self._head:
            self._send(b"")

    async def write(self, data: bytes) -> None:  # type: ignore[override]
        """Waits while the client does not keep up. Raises ConnectionError where it has gone."""
        if not data or self._must_be_empty_body:
            return
        if self._chunks:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._send(data) > _HIGH_WATER_BYTES:
            await self._drain()

    async def write_eof(self, data: bytes = b"") -> None:
        if self._eof_sent:
            return
        await self.write(data)
        if self._head or self._chunks:
            self._send(b"0\r\n\r\n" if self._chunks else b"")
            await self._drain()
        self._eof_sent = True
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

    async def _drain(self) -> None:
        if self._payload_writer is not None:
            await self._payload_writer.drain()

    def _render_head(self, version: tuple[int, int]) -> bytes:
        items = list(self._headers.items())
        if not "".join([value for _, value in items]).isprintable():
            items = [(name, _without_control(value)) for name, value in items]
        lines = [f"{name}: {value}\r\n" for name, value in items]
        text = f"HTTP/{version[0]}.{version[1]} {self._status} {self._reason}\r\n{''.join(lines)}\r\n"
        return text.encode("utf-8", "surrogateescape")


def _without_control(value: str) -> str:
    """A space takes the place of each control character (RFC 9110 §5.5)."""
    return value if value.isprintable() else CONTROL.sub(" ", value)
