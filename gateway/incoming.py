"""The body of a request: read whole where it has to be understood, streamed through where not."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from aiohttp import hdrs, web

from gateway.core.errors import RequestRefused
from gateway.wire.encoding import DecodeError, decode_body

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_INLINE_BYTES = 64 * 1024


class Body(msgspec.Struct, frozen=True):
    """raw: as it came. plain: with its content encoding taken off, the same object where there is none."""

    raw: bytes
    plain: bytes


def take_body(request: web.BaseRequest, max_bytes: int) -> Body | None:
    """What most bodies are: all there, and not encoded. None for one that `read_body` is needed for."""
    content, length = request.content, request.content_length
    if length is None or length > max_bytes or not content.is_eof():
        return None
    if hdrs.CONTENT_ENCODING in request.headers:
        return None
    raw = content.read_nowait()
    return Body(raw, raw)


async def read_body(request: web.BaseRequest, max_bytes: int) -> Body:
    """Raises RequestRefused (413). A body whose encoding we cannot undo stays as it came: unreadable, so
    relayed.
    """
    raw = await _read_bounded(request, max_bytes)
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "")
    if not encoding or encoding == "identity":
        return Body(raw, raw)
    try:
        if len(raw) < _INLINE_BYTES:
            return Body(raw, decode_body(raw, encoding, max_bytes))
        return Body(raw, await asyncio.to_thread(decode_body, raw, encoding, max_bytes))
    except DecodeError:
        return Body(raw, raw)


async def stream_body(request: web.BaseRequest) -> AsyncIterator[bytes] | None:
    """The body as it comes, None where the request has none."""
    if not request.body_exists:
        return None
    _let_it_come(request)
    return request.content.iter_any()


async def _read_bounded(request: web.BaseRequest, max_bytes: int) -> bytes:
    content, length = request.content, request.content_length
    if length is not None and length > max_bytes:
        raise _too_large(max_bytes)
    _let_it_come(request)
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


def _let_it_come(request: web.BaseRequest) -> None:
    """A client that asks first waits a second or for ever for this line."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(_CONTINUE)


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        413, f"The request body is larger than {max_bytes} bytes.", code="request_too_large"
    )
