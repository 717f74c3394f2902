"""One client's connection: the library's, with bounds around it.

The library reads one request after the other. It is given the bytes of one request at a time, so that the
gateway knows which bytes are a head, which a body, and which were sent ahead, and can bound all three. Of a
head nothing is read here but its end.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from aiohttp import HttpVersion11, StreamReader, hdrs, web

from gateway.core.errors import RequestRefused
from gateway.downstream.chunks import ChunkScanner
from gateway.downstream.gate import Gate
from gateway.downstream.library_log import make_library_log
from gateway.downstream.response import Written, make_local_head, make_refusal_headers
from gateway.downstream.unread import UnreadBytes
from gateway.wire.formats.registry import render_error

# Operators know this name (docs/troubleshooting.md).
log = logging.getLogger("gateway.head_parser")

# When this much of a body is unread, its sender has to wait.
_READ_BYTES: Final = 1 << 16
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
_END_OF_HEAD: Final = b"\r\n\r\n"
# What an HTTP/2 client sends first. The library's parser would wait for more.
_HTTP2: Final = b"PRI * HTTP/2"
_LINGER_SECONDS: Final = 1.0
# Behind a response that was sent early, the rest of the body may come for so long (the library's default).
_REST_SECONDS: Final = 10.0
_NOT_HTTP: Final = RequestRefused(400, "The request is not valid HTTP.")
_MALFORMED_CHUNK: Final = "The chunked request body is malformed."
_CLOSED: Final = Written(keeps_alive=False)

# head: no request is open · queued: its head is complete, its handler has not begun · body: it is being read
# · ahead: all of it has come, its response has not ended · refused: the gate did not admit the connection
_Stage = Literal["head", "queued", "body", "ahead", "refused"]


class ClientConnection(web.RequestHandler):
    """Its server calls `begin` and `end` for each request."""

    def __init__(self, server: web.Server, gate: Gate) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=gate.bounds.idle_seconds,
            lingering_time=min(_REST_SECONDS, gate.bounds.stall_seconds),
            logger=make_library_log(),
            **_OPTIONS,
        )
        self._gate = gate
        self._line: asyncio.Transport | None = None
        self._stage: _Stage = "head"
        # What has come and may not be given to the library yet.
        self._held: bytes | bytearray = b""
        self._is_holding_back = False
        self._pending_bytes = 0
        # Of the current head: its size so far, its last bytes, and when it began.
        self._head_bytes = 0
        self._head_tail = b""
        self._head_seconds = 0.0
        # Of the current body: bytes still to come if its length is known, else what finds its end.
        self._left_bytes = 0
        self._chunks: ChunkScanner | None = None
        self._content: StreamReader | None = None
        self._fail: Callable[[RequestRefused], None] | None = None
        self._is_answered = False
        # When the client last sent something.
        self._heard_seconds = 0.0
        self._unread = UnreadBytes()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have this interface without inheriting from it.
        line = self._line = cast(asyncio.Transport, transport)
        peer, socket = line.get_extra_info("peername"), line.get_extra_info("socket")
        address = str(peer[0]) if peer else ""
        refusal = self._gate.admit(self, address, socket.fileno() if socket is not None else 0)
        if refusal is not None:
            self._stage = "refused"
            self._turn_away(line, refusal)
            return
        super().connection_made(transport)
        self._gate.rest(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._stage == "refused":
            return
        self._gate.leave(self)
        self._count_pending(0)
        self._held, self._line, self._content, self._fail = b"", None, None, None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not data:
            # The library goes on with bytes that it held back.
            super().data_received(data)
        elif self._stage != "refused":
            self._heard_seconds = time.monotonic()
            self._advance(data)

    # What the server calls

    def begin(
        self, content: StreamReader | None, length: int | None, fail: Callable[[RequestRefused], None]
    ) -> None:
        """A handler begins, for a body of so many bytes, or a chunked one if `length` is None.

        fail: called if the rest of the body does not come, or cannot be read.
        """
        self._stage, self._content, self._fail, self._is_answered = "body", content, fail, False
        self._left_bytes = length or 0
        self._chunks = ChunkScanner() if content is not None and length is None else None
        if self._chunks is None and not self._left_bytes:
            self._stage = "ahead"
        self._head_bytes = 0
        self._release()

    def end(self, *, is_last: bool) -> None:
        """The handler has ended. The rest of the body, if any, goes to the library, which ignores it.

        is_last: no request follows on this connection.
        """
        self._is_answered = True
        if self._stage == "ahead" and not is_last:
            self._expect_head()
            if self._held:
                self._release()

    # What the gate calls

    @property
    def is_unused(self) -> bool:
        return self._stage == "head" and not self._head_bytes

    def check(self, now_seconds: float) -> None:
        """Ends the connection if its client has been silent, or has not read, for too long."""
        bounds = self._gate.bounds
        head_seconds = now_seconds - self._head_seconds
        if self._stage in ("head", "queued") and self._head_bytes and head_seconds > bounds.head_seconds:
            self._refuse(RequestRefused(408, "The request's head did not arrive in time."))
        elif self._is_missing_body and now_seconds - self._heard_seconds > bounds.stall_seconds:
            self._fail_body(408, "The rest of the request body did not arrive in time.")
        if self._line is None:
            return
        is_answering = not self.writing_paused and not self._is_answered and self._stage in ("body", "ahead")
        if self._unread.count_seconds(self._line, now_seconds, may_grow=is_answering) > bounds.stall_seconds:
            self._line.abort()

    def give_way(self) -> None:
        """Closes a connection on which no request is open."""
        self._gate.leave(self)
        self.force_close()

    # Errors

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
        if exc is not None:
            # Its frames refer to this connection, which would stay in memory.
            exc.__traceback__ = None
        # The error's text is not logged: it quotes the line that could not be read, which may hold a key.
        log.info("%s on a connection", type(exc).__name__)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(_render_refusal(_NOT_HTTP))
        return _CLOSED

    def _refuse(self, error: RequestRefused) -> None:
        """Ends a connection on which no request is open, with a reason."""
        log.info("refused with %d on a connection", error.status)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(_render_refusal(error))
        self._held = b""
        self.force_close()

    def _turn_away(self, transport: asyncio.Transport, error: RequestRefused) -> None:
        """Sends a refusal without reading the request.

        If bytes were unread when the connection closes, the client might lose the refusal. So some clients
        get a moment to read it.
        """
        gate = self._gate
        transport.write(_render_refusal(error))
        if not gate.has_room_to_linger:
            transport.close()
            return
        gate.lingering += 1
        transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, _end_lingering, gate, transport)

    def _fail_body(self, status: int, message: str) -> None:
        """The rest of the body will not come."""
        if self._fail is not None:
            log.info("refused with %d on a connection", status)
            self._fail(RequestRefused(status, message))

    # Bytes, in the order of a request

    @property
    def _is_missing_body(self) -> bool:
        """Whether the next byte of a body is up to the client."""
        content = self._content
        if self._stage not in ("body", "ahead") or self._is_answered or content is None or content.is_eof():
            return False
        return self._line is not None and self._line.is_reading()

    def _advance(self, data: bytes) -> None:
        """Gives the library what it may have, and holds the rest."""
        while data:
            if self._stage == "head":
                data = self._take_head(data)
            elif self._stage == "body":
                data = self._take_body(data)
            else:
                self._hold(data)
                return

    def _take_head(self, data: bytes) -> bytes:
        """Returns what is behind the head."""
        gate = self._gate
        if not self._head_bytes:
            # RFC 9112 §2.2: empty lines before a request are ignored.
            data = data.lstrip(b"\r\n")
            if not data:
                return b""
            if data.startswith(_HTTP2):
                self._refuse(_NOT_HTTP)
                return b""
            self._head_seconds, self._head_tail = time.monotonic(), b""
        elif gate.is_crowded:
            self._refuse(RequestRefused(503, "Too many unfinished requests; try again.", kind="server_error"))
            return b""
        beginning = self._head_tail + data
        end = beginning.find(_END_OF_HEAD)
        is_whole = end >= 0
        taken = end + len(_END_OF_HEAD) - len(self._head_tail) if is_whole else len(data)
        self._head_bytes += taken
        if self._head_bytes > gate.bounds.head_bytes:
            self._refuse(RequestRefused(431, f"The head is larger than {gate.bounds.head_bytes} bytes."))
            return b""
        if is_whole:
            self._stage = "queued"
            gate.wake(self)
        else:
            self._head_tail = beginning[1 - len(_END_OF_HEAD) :]
            self._count_pending(self._head_bytes)
        super().data_received(data[:taken])
        return data[taken:]

    def _take_body(self, data: bytes) -> bytes:
        """Returns what is behind the body."""
        if self._chunks is not None:
            return self._take_chunks(self._chunks, data)
        taken = data[: self._left_bytes]
        self._left_bytes -= len(taken)
        super().data_received(taken)
        if not self._left_bytes:
            self._end_body()
        return data[len(taken) :]

    def _take_chunks(self, chunks: ChunkScanner, data: bytes) -> bytes:
        try:
            taken, end = chunks.scan(data)
        except ValueError:
            self._stage = "ahead"
            self._fail_body(400, _MALFORMED_CHUNK)
            return b""
        if taken:
            super().data_received(taken)
        if end is None:
            return b""
        if self._is_missing_body:
            # The library's parser has not found the end, and does not say why.
            self._fail_body(400, _MALFORMED_CHUNK)
        self._end_body()
        return data[end:]

    def _end_body(self) -> None:
        self._stage = "ahead"
        if self._is_answered:
            self._expect_head()

    def _expect_head(self) -> None:
        self._stage, self._content, self._fail = "head", None, None
        self._gate.rest(self)

    def _hold(self, data: bytes) -> None:
        """Keeps bytes whose turn has not come; if they are too many, their sender has to wait."""
        if not self._held:
            self._held = data
        else:
            if isinstance(self._held, bytes):
                self._held = bytearray(self._held)
            self._held += data
        self._count_pending(len(self._held))
        if self._line is not None and (
            len(self._held) > self._gate.bounds.head_bytes or self._gate.is_crowded
        ):
            self._is_holding_back = True
            self._line.pause_reading()

    def _release(self) -> None:
        """Goes on with the bytes that were held."""
        self._count_pending(0)
        if self._is_holding_back and self._line is not None and not self._line.is_closing():
            # The library may want the sender to wait, too, and says so again with the next byte.
            self._is_holding_back = False
            self._line.resume_reading()
        held, self._held = bytes(self._held), b""
        self._advance(held)

    def _count_pending(self, size_bytes: int) -> None:
        self._gate.pending_bytes += size_bytes - self._pending_bytes
        self._pending_bytes = size_bytes


def _render_refusal(error: RequestRefused) -> bytes:
    body = render_error("", error)
    headers = {hdrs.CONNECTION: "close", **make_refusal_headers(error)}
    return make_local_head(error.status, len(body), headers).render(HttpVersion11) + body


def _end_lingering(gate: Gate, transport: asyncio.Transport) -> None:
    gate.lingering -= 1
    transport.abort()
