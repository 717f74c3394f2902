"""The body of a request: read whole where it has to be understood, streamed through where not."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from aiohttp import StreamReader, hdrs

from gateway.core.errors import RequestRefused
from gateway.downstream.request import Request
from gateway.wire.content_encoding import DecodeError, decode_body

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_INLINE_BYTES = 64 * 1024


class ReceivedBody(msgspec.Struct, frozen=True):
    """raw: as it came. plain: with its content encoding taken off, the same object where there is none."""

    raw: bytes
    plain: bytes


def take_body(request: Request, max_bytes: int) -> ReceivedBody | None:
    """What most bodies are: all there, and not encoded. None for one that `read_body` is needed for."""
    raw = request.body
    if raw is None or len(raw) > max_bytes or hdrs.CONTENT_ENCODING in request.head.headers:
        return None
    return ReceivedBody(raw, raw)


async def read_body(request: Request, max_bytes: int) -> ReceivedBody:
    """Raises RequestRefused (413). A body whose encoding we cannot undo stays as it came: unreadable, so
    relayed.
    """
    request.head.is_read_whole = True
    raw = await _read_bounded(request, max_bytes)
    encoding = request.head.headers.get(hdrs.CONTENT_ENCODING, "")
    if not encoding or encoding == "identity":
        return ReceivedBody(raw, raw)
    try:
        if len(raw) < _INLINE_BYTES:
            return ReceivedBody(raw, decode_body(raw, encoding, max_bytes))
        return ReceivedBody(raw, await asyncio.to_thread(decode_body, raw, encoding, max_bytes))
    except DecodeError:
        return ReceivedBody(raw, raw)


def stream_body(request: Request) -> bytes | AsyncIterator[bytes] | None:
    """The body, as it comes where it is not there yet; None where the request has none."""
    content = request.content
    if content is None:
        return request.body
    _let_it_come(request, content)
    return content.iter_any()


async def _read_bounded(request: Request, max_bytes: int) -> bytes:
    content, length = request.content, request.length
    if length is not None and length > max_bytes:
        raise _too_large(max_bytes)
    if content is None:
        return request.body or b""
    _let_it_come(request, content)
    if length is not None:
        return await content.read()
    pieces = []
    size = 0
    while True:
        chunk = await content.readany()
        if not chunk:
            break
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(chunk)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _let_it_come(request: Request, content: StreamReader) -> None:
    """A client that asks first waits a second or for ever for this line."""
    transport = request.connection.transport
    if request.head.asks_first and transport is not None and not content.is_eof():
        transport.write(_CONTINUE)


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        413, f"The request body is larger than {max_bytes} bytes.", code="request_too_large"
    )
