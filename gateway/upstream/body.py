"""The body of an upstream's answer, piece by piece, with every failure of the way translated."""

import asyncio
import ssl
import time
from typing import Final, NoReturn

import aiohttp

from gateway.core.errors import UpstreamFailed
from gateway.upstream.idle_timeout import Watch
from gateway.upstream.response import UpstreamResponse

# What the library and the system raise where upstream, or the way there, is at fault; and a cancelled wait.
FOREIGN: Final = (
    *(TimeoutError, aiohttp.ClientError, OSError, ssl.SSLError, ValueError),
    asyncio.CancelledError,
)


def read_at_hand(response: UpstreamResponse) -> bytes:
    """What has come of the body already. A failure waits for whoever reads on."""
    content = response.content
    return content.read_nowait() if content.exception() is None else b""


async def read_piece(response: UpstreamResponse, watch: Watch) -> bytes:
    """What has come of the body; nothing at its end. A sign of life. Raises UpstreamFailed."""
    content = response.content
    if content.at_eof():
        return b""
    try:
        chunk = await content.readany()
    except FOREIGN as error:
        translate(error, watch)
    watch.seen_seconds = time.monotonic()
    return chunk


async def read_bounded(response: UpstreamResponse, watch: Watch, most_bytes: int) -> bytes:
    """The body up to its end or, roughly, to so many bytes. Raises UpstreamFailed."""
    pieces: list[bytes] = []
    await read_more(response, watch, pieces, most_bytes)
    return b"".join(pieces)


async def read_more(response: UpstreamResponse, watch: Watch, pieces: list[bytes], most_bytes: int) -> None:
    """Adds to what was read already, which stays read where this raises UpstreamFailed."""
    size = sum(map(len, pieces))
    while size < most_bytes and (piece := await read_piece(response, watch)):
        pieces.append(piece)
        size += len(piece)


def translate(error: BaseException, watch: Watch) -> NoReturn:
    """Raises ours for a foreign exception of the upstream side. A cancelled handler stays cancelled."""
    stalled = watch.explain(error)
    if stalled is not None:
        raise stalled from error
    if isinstance(error, asyncio.CancelledError):
        raise error
    raise UpstreamFailed(f"{watch.name}: {type(error).__name__}") from error
