"""Holds the beginning of a response back until it is known whether it calls the request too large.

An error is read whole. A successful response is read up to its first content only, and only for a short time:
a client must not wait for this check. Everything that was read is passed on afterwards, byte for byte.
"""

import asyncio
from contextlib import suppress
from typing import Final, Literal

import msgspec

from gateway.core.errors import UpstreamFailed
from gateway.core.refusal.overflow import Overflow, Refusal, parse_overflow
from gateway.headers import ResponseHead
from gateway.http.client import UpstreamResponse
from gateway.wire.content_encoding import DecodeError, decode_body, make_decoder
from gateway.wire.reader import PENDING, Refused, StreamStart, Verdict
from gateway.wire.refusal import parse_refusal

# An error may quote the whole prompt.
_MAX_ERROR_BYTES: Final = 1 << 20
_MAX_PLAIN_BYTES: Final = 1 << 20
# The rest of a refusal in a stream is awaited this long: some servers leave the stream open.
_REST_SECONDS: Final = 0.5

# none: no response is held back. errors: responses with an error status. start: successful responses too, up
# to their first content; and an error status without any text may then mean that the request was too large.
ProbeMode = Literal["none", "errors", "start"]


class HeldResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that calls the request too large. Nothing of it was sent downstream."""

    head: ResponseHead
    # The content encoding of the body.
    encoding: str
    body: bytes
    overflow: Overflow


class ProbeResult(msgspec.Struct, frozen=True):
    # What was read of the body so far, as it came.
    read: bytes
    # Set if the response calls the request too large.
    overflow: Overflow | None


def must_probe(response: UpstreamResponse, mode: ProbeMode) -> bool:
    return mode != "none" and (response.status >= 400 or (mode == "start" and response.status == 200))


async def probe(
    response: UpstreamResponse, beginning: bytes, mode: ProbeMode, max_seconds: float
) -> ProbeResult:
    """beginning: what was read of the body already.

    Never raises: if the body breaks off, what has come is passed on, and the next read meets the error again.
    """
    pieces = [beginning] if beginning else []
    overflow = None
    with suppress(TimeoutError, UpstreamFailed, DecodeError):
        async with asyncio.timeout(max_seconds):
            if response.status >= 400:
                overflow = await _probe_error(response, pieces, mode)
            else:
                overflow = await _probe_start(response, pieces)
    return ProbeResult(b"".join(pieces), overflow)


async def _probe_error(response: UpstreamResponse, pieces: list[bytes], mode: ProbeMode) -> Overflow | None:
    refusal = await _read_error(response, pieces)
    if refusal is None or (refusal.is_empty and mode != "start"):
        return None
    return parse_overflow(refusal)


async def _read_error(response: UpstreamResponse, pieces: list[bytes]) -> Refusal | None:
    """None if it is longer than any error; then it is passed on as it comes."""
    await response.read_into(pieces, _MAX_ERROR_BYTES)
    if not response.is_read:
        return None
    body, encoding = b"".join(pieces), response.encoding
    plain = decode_body(body, encoding, _MAX_PLAIN_BYTES) if encoding else body
    return parse_refusal(response.status, plain)


async def _probe_start(response: UpstreamResponse, pieces: list[bytes]) -> Overflow | None:
    decoder = make_decoder(response.encoding)
    if decoder is None:
        return None
    start = StreamStart()
    verdict: Verdict = PENDING
    size = sum(map(len, pieces))
    while verdict is PENDING and (piece := await response.read_piece()):
        pieces.append(piece)
        size += len(piece)
        for plain in decoder.feed(piece):
            verdict = start.feed(plain)
            if verdict is not PENDING or decoder.work_bytes > _MAX_PLAIN_BYTES:
                break
        if max(size, decoder.work_bytes) > _MAX_PLAIN_BYTES:
            # Bytes that decode to nothing, or to far too much.
            return None
    if verdict is PENDING:
        verdict = start.finish()
    overflow = parse_overflow(verdict.refusal) if isinstance(verdict, Refused) else None
    if overflow is not None:
        with suppress(TimeoutError, UpstreamFailed):
            async with asyncio.timeout(_REST_SECONDS):
                await response.read_into(pieces, _MAX_ERROR_BYTES)
    return overflow
