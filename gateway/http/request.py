"""A client's request: its head, and its body, which is read whole or streamed through."""

import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import HttpVersion, HttpVersion11, StreamReader, hdrs, web
from multidict import CIMultiDictProxy

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import Share
from gateway.core.errors import RequestRefused
from gateway.headers import RawHeaders
from gateway.wire.content_encoding import (
    STEP_BYTES,
    DecodedTooLarge,
    DecodeError,
    decode_in_steps,
    make_decoder,
)

if TYPE_CHECKING:
    from gateway.http.guard import Guard

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# The one header that differs from turn to turn of a conversation.
_LENGTH: Final = b"content-length"
# A petabyte, less one byte. The library's parser takes some larger numbers for "no body".
_MAX_LENGTH_DIGITS: Final = 15
# SO_LINGER on, with no time to linger: closing sends a RST.
_RESET: Final = struct.pack("ii", 1, 0)

# What is decoded at a time, before the memory for more is asked for; some steps give nothing.
_DECODED_BYTES: Final = 1 << 22
_DECODED_STEPS: Final = 1_000
# Text is compressed to a tenth, and seldom to a hundredth. A body that decodes to more than a hundred times
# its bytes is passed on as it came, unless it is small even so.
_MAX_RATIO: Final = 100
_ALWAYS_DECODED_BYTES: Final = 1 << 20

# Method, target, and the headers in one piece: dozens of small ones would be compared one by one.
HeadKey = tuple[str, str, bytes]


class RequestHead(msgspec.Struct, frozen=True):
    """target: path and query as they came. raw_headers: in their order, as bytes."""

    method: str
    target: str
    headers: CIMultiDictProxy[str]
    raw_headers: RawHeaders

    @property
    def head_key(self) -> HeadKey:
        """Equal for requests that differ in the length of their bodies only, also across connections."""
        lines = [b":".join(pair) for pair in self.raw_headers if pair[0].lower() != _LENGTH]
        return self.method, self.target, b"\n".join(lines)


class Request:
    """length: of the body in bytes, None if it comes in chunks or if there is none.

    content: the body, None if there is none. is_late: the gateway was already shutting down when it came.
    is_lost: the end of the body cannot be found. is_answered: its response has begun.
    """

    def __init__(self, http: web.BaseRequest, guard: "Guard", *, is_late: bool) -> None:
        self.head = RequestHead(http.method, http.raw_path, http.headers, http.raw_headers)
        self.version: HttpVersion = http.version
        self.content: StreamReader | None = http.content if http.body_exists else None
        length = http.headers.get(hdrs.CONTENT_LENGTH, "")
        self.is_lost = len(length) > _MAX_LENGTH_DIGITS
        self.length = int(length) if length and not self.is_lost else None
        self.is_late = is_late
        self._is_last = is_late or self.is_lost or self._offers_protocol() or not http.keep_alive
        self.is_answered = False
        # When the whole body was there; 0 if it was not waited for.
        self.read_seconds = 0.0
        self.transport = http.transport
        self.writer = http.writer
        self._guard = guard

    @property
    def is_last(self) -> bool:
        """Whether the connection closes behind the response."""
        return self._is_last or self._guard.closes

    def make_last(self) -> None:
        self._is_last = True

    def _offers_protocol(self) -> bool:
        """True if what follows on the connection may be in another protocol.

        Java's client offers h2c with each request, and continues in HTTP/1.1 if the offer is not accepted.
        Only what a client sends right after its offer, in the same TCP segment, is lost (aiohttp 3.14).
        """
        upgrade = self.head.headers.get(hdrs.UPGRADE, "").lower()
        if not upgrade or self.length:
            return self.head.method == hdrs.METH_CONNECT
        return self.content is not None or upgrade == "websocket"

    def lose(self, error: RequestRefused) -> None:
        """The rest of the body will not come: its reader gets the error, unless the response has begun."""
        if self.is_answered:
            return
        self.is_lost = self._is_last = True
        if self.content is not None:
            self.content.set_exception(error)

    async def discard_rest(self) -> None:
        """Reads the body to its end. Raises ConnectionError if the client goes."""
        if self.content is not None:
            async for _ in _read_pieces(self.content):
                pass

    def forget_error(self) -> None:
        """The handler has ended. An error of the body would keep its frames, and all they know, in memory."""
        error = self.content.exception() if self.content is not None else None
        if error is not None:
            error.__traceback__ = None

    def break_off(self, *, is_flushed: bool = False) -> None:
        """Ends the connection so that the client cannot take the response for a whole one.

        is_flushed: what has been written still reaches the client.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self.version < HttpVersion11:
            # Without chunks, a FIN is the clean end of a response; only a RST shows that it is broken.
            with suppress(OSError):
                # The client may have gone.
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if is_flushed:
            transport.close()
        else:
            transport.abort()


class ReceivedBody(msgspec.Struct, frozen=True):
    """raw: as it came. plain: with its content encoding removed; the same object if it has none.

    Both are counted in the share that they were read with. beyond: why a body that is too large when it is
    decoded was not decoded; it can be shown.
    """

    raw: bytes
    plain: bytes
    beyond: str | None = None


async def read_body(request: Request, max_bytes: int, share: Share, lanes: Lanes) -> ReceivedBody:
    """Raises RequestRefused: 413 for a body that is too large, 408 or 400 for one whose rest does
    not come or is malformed, 503 if its share of the memory does not become free.

    If the encoding cannot be undone, the body stays as it came; it is then relayed as unreadable.
    """
    raw = await _read_bounded(request, max_bytes, share)
    request.read_seconds = time.monotonic()
    encoding = request.head.headers.get(hdrs.CONTENT_ENCODING, "")
    if not encoding or encoding == "identity":
        return ReceivedBody(raw, raw)
    max_bytes = min(max_bytes, max(_ALWAYS_DECODED_BYTES, _MAX_RATIO * len(raw)))
    before_bytes = share.size_bytes
    try:
        return ReceivedBody(raw, await _decode(raw, encoding, max_bytes, share, lanes))
    except DecodeError as error:
        share.shrink(share.size_bytes - before_bytes)
        return ReceivedBody(raw, raw, str(error) if isinstance(error, DecodedTooLarge) else None)


async def _decode(raw: bytes, encoding: str, max_bytes: int, share: Share, lanes: Lanes) -> bytes:
    """In a thread, however small the body is: a hundred bytes may decode to many megabytes."""
    decoder = make_decoder(encoding)
    if decoder is None:
        raise DecodeError("unknown content encoding")
    steps = decode_in_steps(decoder, raw, max_bytes)
    pieces: list[bytes] = []
    is_last = False
    await share.grow(decoder.window_bytes)
    while not is_last:
        await share.grow(_DECODED_BYTES)
        piece, is_last = await lanes.run(share.owner, len(raw), _take_steps, steps)
        share.shrink(_DECODED_BYTES - len(piece))
        pieces.append(piece)
    share.shrink(decoder.window_bytes)
    return b"".join(pieces)


def _take_steps(steps: Iterator[bytes]) -> tuple[bytes, bool]:
    """At most `_DECODED_BYTES`, and whether they are the last. Raises DecodeError."""
    pieces: list[bytes] = []
    size = 0
    for piece in steps:
        pieces.append(piece)
        size += len(piece)
        if size > _DECODED_BYTES - STEP_BYTES or len(pieces) >= _DECODED_STEPS:
            return b"".join(pieces), False
    return b"".join(pieces), True


def stream_body(request: Request) -> bytes | AsyncIterator[bytes] | None:
    """The body piece by piece, None if the request has none.

    A body whose length is known comes as one piece if all of it has arrived. A chunked one is always an
    iterator, so that it is forwarded in chunks.
    """
    content = request.content
    if content is None:
        return None
    if hdrs.EXPECT in request.head.headers:
        _invite_body(request)
    if request.length is None or not content.is_eof():
        return _read_pieces(content)
    return content.read_nowait()


async def _read_bounded(request: Request, max_bytes: int, share: Share) -> bytes:
    content, length = request.content, request.length
    if length is not None and length > max_bytes:
        raise _too_large(max_bytes)
    if content is None:
        return b""
    if hdrs.EXPECT in request.head.headers:
        _invite_body(request)
    if content.is_eof():
        # It has arrived whole, as small ones have.
        body = content.read_nowait()
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        await share.grow(len(body))
        return body
    # Not a list of pieces: a client may send two bytes at a time.
    pieces = bytearray()
    async for piece in _read_pieces(content):
        if len(pieces) + len(piece) > max_bytes:
            raise _too_large(max_bytes)
        # Counted as it comes, so that announcing a body takes nothing. While this waits, nothing is read.
        await share.grow(len(piece))
        pieces += piece
    return bytes(pieces)


async def _read_pieces(content: StreamReader) -> AsyncIterator[bytes]:
    """Raises ConnectionResetError if the client has gone."""
    try:
        async for piece in content.iter_any():
            yield piece
    except RuntimeError as error:
        # The library raises it if the connection was lost before the reader asked for more (aiohttp 3.14).
        raise ConnectionResetError("the client has gone") from error


def _invite_body(request: Request) -> None:
    """A client that sends `Expect: 100-continue` waits for this line, some of them forever.

    In HTTP/1.0 it would be taken for the response (RFC 9110 §15.2).
    """
    expects = request.head.headers[hdrs.EXPECT].lower() == "100-continue"
    if request.version < HttpVersion11 or not expects:
        return
    transport = request.transport
    if transport is None or transport.is_closing():
        return
    if request.content and not request.content.is_eof():
        transport.write(_CONTINUE)


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        413, f"The request body is larger than {max_bytes} bytes.", code="request_too_large"
    )
