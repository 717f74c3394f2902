"""Keeps the beginning of an answer back until it is known whether it calls the request too large.

An error is read whole. A good answer is read to its first content only, and not for long: a client must not
wait because we are curious. Whatever was read is passed on after all, byte for byte.
"""

import asyncio
from typing import Final, Literal

import aiohttp
import msgspec
from aiohttp import hdrs
from multidict import CIMultiDict

from gateway.core.refusal import Overflow, Refusal, read_overflow
from gateway.upstream_body import read_bounded, read_piece
from gateway.watchdog import Watch
from gateway.wire.encoding import DecodeError, Decoder, decode_body, make_decoder
from gateway.wire.refusal import read_refusal
from gateway.wire.stream_start import PENDING, Refused, StreamStart

_MOST_ERROR_BYTES: Final = 1 << 16
_MOST_PLAIN_BYTES: Final = 1 << 20

# none: not looked at. errors: answers with a status of an error. start: good answers too, to their first
# content, and errors that say nothing at all.
Care = Literal["none", "errors", "start"]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that calls the request too large. Nothing of it went downstream."""

    status: int
    reason: str
    headers: CIMultiDict[str]
    body: bytes
    overflow: Overflow


class Beginning(msgspec.Struct, frozen=True):
    """read: what was taken of the body so far, as it came. overflow: what it says, if it says that."""

    read: bytes
    overflow: Overflow | None


async def hold_back(
    response: aiohttp.ClientResponse, watch: Watch, beginning: bytes, care: Care, patience_seconds: float
) -> Beginning:
    """`beginning`: what was read of the body already. Raises UpstreamFailed."""
    if care == "none":
        return Beginning(beginning, None)
    encoding = response.headers.get(hdrs.CONTENT_ENCODING, "")
    if response.status >= 400:
        body = beginning + await read_bounded(response, watch, _MOST_ERROR_BYTES)
        return Beginning(body, _judge_error(response.status, body, encoding, care))
    if care == "errors" or response.status != 200:
        return Beginning(beginning, None)
    decoder = make_decoder(encoding, max_feed_bytes=_MOST_PLAIN_BYTES)
    if decoder is None:
        return Beginning(beginning, None)
    return await _hold_start(response, watch, decoder, patience_seconds)


async def _hold_start(
    response: aiohttp.ClientResponse, watch: Watch, decoder: Decoder, patience_seconds: float
) -> Beginning:
    start, pieces = StreamStart(), []
    verdict = start.feed(b"")
    try:
        async with asyncio.timeout(patience_seconds):
            while verdict is PENDING and (piece := await read_piece(response, watch)):
                pieces.append(piece)
                verdict = start.feed(decoder.feed(piece))
            if verdict is PENDING:
                verdict = start.finish()
            if isinstance(verdict, Refused):
                pieces.append(await read_bounded(response, watch, _MOST_ERROR_BYTES))
    except (TimeoutError, DecodeError):
        # Not for us to judge, or no time left: it goes on its way.
        return Beginning(b"".join(pieces), None)
    overflow = read_overflow(verdict.refusal) if isinstance(verdict, Refused) else None
    return Beginning(b"".join(pieces), overflow)


def _judge_error(status: int, body: bytes, encoding: str, care: Care) -> Overflow | None:
    try:
        plain = decode_body(body, encoding, _MOST_PLAIN_BYTES) if encoding else body
    except DecodeError:
        return None
    refusal: Refusal | None = read_refusal(status, plain)
    if refusal is None or (refusal.is_empty and care != "start"):
        return None
    return read_overflow(refusal)
