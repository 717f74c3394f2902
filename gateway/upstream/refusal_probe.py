"""Keeps the beginning of an answer back until it is known whether it calls the request too large.

An error is read whole. A good answer is read to its first content only, and not for long: a client must not
wait because we are curious. Whatever was read is passed on after all, byte for byte, and breaks off where it
broke off.
"""

import asyncio
from contextlib import suppress
from typing import Final, Literal

import msgspec
from aiohttp import hdrs

from gateway.core.errors import UpstreamFailed
from gateway.core.refusal.overflow import Overflow, Refusal, parse_overflow
from gateway.headers import ResponseHead
from gateway.upstream.body import read_more, read_piece
from gateway.upstream.idle_timeout import Watch
from gateway.upstream.response import UpstreamResponse
from gateway.wire.content_encoding import DecodeError, decode_body, make_decoder
from gateway.wire.response.refusal import read_refusal
from gateway.wire.response.stream_start import PENDING, Refused, StreamStart, Verdict

# An error may quote the whole prompt.
_MOST_ERROR_BYTES: Final = 1 << 20
_MOST_PLAIN_BYTES: Final = 1 << 20
_REST_SECONDS: Final = 0.5

# none: not looked at. errors: answers with a status of an error. start: good answers too, to their first
# content, and errors that say nothing at all.
ProbeMode = Literal["none", "errors", "start"]


class HeldResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that calls the request too large. Nothing of it went downstream."""

    head: ResponseHead
    # Of the body.
    encoding: str
    body: bytes
    overflow: Overflow


class ProbeResult(msgspec.Struct, frozen=True):
    """read: what was taken of the body so far, as it came. overflow: what it says, if it says that."""

    read: bytes
    overflow: Overflow | None


async def hold_back(
    response: UpstreamResponse, watch: Watch, beginning: bytes, care: ProbeMode, patience_seconds: float
) -> ProbeResult:
    """`beginning`: what was read of the body already. Never raises: a body that breaks off is passed on as
    far as it came, and breaks off there.
    """
    pieces = [beginning] if beginning else []
    overflow = None
    with suppress(TimeoutError, UpstreamFailed, DecodeError):
        async with asyncio.timeout(patience_seconds):
            if response.status >= 400:
                overflow = await _judge_error(response, watch, pieces, care)
            else:
                overflow = await _judge_start(response, watch, pieces)
    return ProbeResult(b"".join(pieces), overflow)


def may_be_refusal(response: UpstreamResponse, care: ProbeMode) -> bool:
    """Is it worth holding back?"""
    return care != "none" and (response.status >= 400 or (care == "start" and response.status == 200))


async def _judge_error(
    response: UpstreamResponse, watch: Watch, pieces: list[bytes], care: ProbeMode
) -> Overflow | None:
    """One without a word may mean anything far below the lines."""
    refusal = await _read_error(response, watch, pieces)
    if refusal is None or (refusal.is_empty and care != "start"):
        return None
    return parse_overflow(refusal)


async def _read_error(response: UpstreamResponse, watch: Watch, pieces: list[bytes]) -> Refusal | None:
    """None for one that is longer than any error: it is passed on as it comes."""
    await read_more(response, watch, pieces, _MOST_ERROR_BYTES)
    if not response.content.at_eof():
        return None
    encoding = response.headers.get(hdrs.CONTENT_ENCODING, "")
    body = b"".join(pieces)
    return read_refusal(response.status, decode_body(body, encoding, _MOST_PLAIN_BYTES) if encoding else body)


async def _judge_start(response: UpstreamResponse, watch: Watch, pieces: list[bytes]) -> Overflow | None:
    decoder = make_decoder(response.headers.get(hdrs.CONTENT_ENCODING, ""), max_feed_bytes=_MOST_PLAIN_BYTES)
    if decoder is None:
        return None
    start = StreamStart()
    verdict: Verdict = PENDING
    while verdict is PENDING and (piece := await read_piece(response, watch)):
        pieces.append(piece)
        verdict = start.feed(decoder.feed(piece))
    if verdict is PENDING:
        verdict = start.finish()
    overflow = parse_overflow(verdict.refusal) if isinstance(verdict, Refused) else None
    if overflow is not None:
        with suppress(TimeoutError, UpstreamFailed):
            # Some servers leave a stream open behind their last word, or break it off.
            async with asyncio.timeout(_REST_SECONDS):
                await read_more(response, watch, pieces, _MOST_ERROR_BYTES)
    return overflow
