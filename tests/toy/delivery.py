"""How the toy sends a response: slowly, in other pieces, compressed, broken off, malformed, or never.

A response is a status, headers and pieces of a body.
"""

import asyncio
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import web
from multidict import CIMultiDict

# clean: a proper end · close: FIN without the last chunk · abort: RST · malformed: a chunk size that is none
# (and then silence) · hang: silence
Ending = Literal["clean", "close", "abort", "malformed", "hang"]
STREAM_HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"),)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """write_bytes None: one piece per write. stop_after_bytes counts body bytes as sent (after gzip)."""

    before_headers_seconds: float = 0.0
    between_writes_seconds: float = 0.0
    write_bytes: int | None = None
    gzip: bool = False
    stop_after_bytes: int | None = None
    ending: Ending = "clean"
    never: bool = False  # not even headers
    after: asyncio.Event | None = None  # nothing is sent before it is set


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    """Any answer at all. `length`: send Content-Length instead of chunks."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    pieces: tuple[bytes, ...] = ()
    length: bool = True
    delivery: Delivery = field(default_factory=Delivery)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


async def send(request: web.BaseRequest, answer: RawAnswer) -> web.StreamResponse:
    """Carry out one answer. Cancelled when the other side hangs up."""
    delivery = answer.delivery
    await asyncio.sleep(delivery.before_headers_seconds)
    if delivery.after is not None:
        await delivery.after.wait()
    if delivery.never:
        await asyncio.Event().wait()
    response = web.StreamResponse(status=answer.status, headers=CIMultiDict(answer.headers))
    pieces = answer.pieces
    if delivery.gzip and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.headers["Content-Encoding"] = "gzip"
        pieces = tuple(_compressed(pieces))
    if answer.length:
        response.content_length = sum(map(len, pieces))
    await response.prepare(request)
    for piece in _recut(pieces, delivery):
        await response.write(piece)
        if delivery.between_writes_seconds:
            await asyncio.sleep(delivery.between_writes_seconds)
    await _end(request, response, delivery.ending)
    return response


async def _end(request: web.BaseRequest, response: web.StreamResponse, ending: Ending) -> None:
    transport = request.transport
    if ending == "clean" or transport is None:
        await response.write_eof()
    elif ending == "close":
        transport.close()
    elif ending == "abort":
        transport.abort()
    else:
        if ending == "malformed":
            transport.write(b"this is no chunk size\r\n")
        await asyncio.Event().wait()


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One gzip stream, flushed after each piece so that a reader can follow."""
    compressor = zlib.compressobj(wbits=31)
    for piece in pieces:
        yield compressor.compress(piece) + compressor.flush(zlib.Z_SYNC_FLUSH)
    yield compressor.flush()


def _recut(pieces: tuple[bytes, ...], delivery: Delivery) -> Iterator[bytes]:
    if delivery.stop_after_bytes is None and delivery.write_bytes is None:
        yield from pieces
        return
    left = delivery.stop_after_bytes if delivery.stop_after_bytes is not None else sum(map(len, pieces))
    for piece in pieces if delivery.write_bytes is None else (b"".join(pieces),):
        size = delivery.write_bytes or max(1, len(piece))
        for start in range(0, min(left, len(piece)), size):
            yield piece[start : min(start + size, left)]
        left = max(0, left - len(piece))
