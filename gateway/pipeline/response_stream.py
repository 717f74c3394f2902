"""Passes one response on to the client, piece by piece as it comes, and reads a copy of it.

The bytes change in two cases only: if the usage chunk that the gateway asked for is taken out, and if a
keep-alive has been sent already, so that the headers no longer can name a content encoding.
"""

import asyncio
import logging
from typing import NamedTuple

from aiohttp import hdrs

from gateway.bounds.memory import SMALL_BYTES, MemoryBudget, Share
from gateway.core.errors import UpstreamFailed
from gateway.headers import CONTENT_ENCODING, CONTENT_LENGTH, ResponseHead, make_response_head
from gateway.http.client import UpstreamResponse
from gateway.http.reply import Reply
from gateway.pipeline.exchange import Exchange, Outcome
from gateway.wire.content_encoding import DecodeError, Decoder, make_decoder
from gateway.wire.reader import ResponseReader
from gateway.wire.sse import UsageChunkFilter

log = logging.getLogger("gateway.proxy")


class ReadingBounds(NamedTuple):
    """What the copies of responses that are read may cost."""

    # Held for a step of decoding, so that twenty bombs at once are not one long step.
    decoding: asyncio.Lock
    # A copy that finds no room in it is not read any further.
    memory: MemoryBudget


class ResponseStream:
    def __init__(
        self,
        exchange: Exchange,
        response: UpstreamResponse,
        client: Reply,
        bounds: ReadingBounds,
    ) -> None:
        """Raises UpstreamFailed if the response must be decoded and its encoding is unknown."""
        self._decoding, self._memory = bounds
        # None while the copy is small.
        self._share: Share | None = None
        self._response = response
        self._client = client
        self._on_outcome = exchange.on_outcome
        self._reader: ResponseReader | None = None
        if exchange.on_outcome is not None:
            content_type = response.headers.get(hdrs.CONTENT_TYPE, "")
            self._reader = ResponseReader(content_type, response.encoding, exchange.on_event)
        has_usage_chunk = exchange.make_without_usage is not None and _may_be_stream(response)
        self._decoder = self._make_decoder(is_edited=has_usage_chunk)
        # A response in an unknown encoding cannot be edited and passes unchanged.
        is_readable = self._decoder is not None or not response.encoding
        self._filter = UsageChunkFilter() if has_usage_chunk and is_readable else None
        self._is_edited = self._filter is not None or self._decoder is not None
        self._headers = exchange.headers

    async def pass_on(self, beginning: bytes) -> None:
        """beginning: what was read of the body already.

        Breaks the response off if the upstream fails: a client must never take half of it for the whole.
        Raises UpstreamFailed if nothing of it has been sent yet.
        """
        try:
            self._client.begin(self._make_head())
            await self._pump(beginning)
        except UpstreamFailed as error:
            if self._client.take_back():
                raise
            log.warning("response broken off: %s", str(error))
            self._client.abort()
        except DecodeError:
            if self._client.take_back():
                raise self._response.make_failure("sent a body that cannot be decoded") from None
            log.warning("response broken off: its body cannot be decoded")
            self._client.abort()
        finally:
            if self._share is not None:
                self._share.shrink(self._share.size_bytes)
            if self._on_outcome is not None and self._reader is not None:
                self._on_outcome(Outcome(self._response.status, self._reader.finish()))

    async def _pump(self, piece: bytes) -> None:
        """The last piece and the end leave together, so that a small response is one write."""
        response, client = self._response, self._client
        piece = piece or response.read_available()
        if not piece:
            client.flush()
        while piece or (piece := await response.read_piece()):
            if self._reader is not None and self._reader.feed(piece):
                await self._catch_up(self._reader)
                self._count(self._reader)
            if self._is_edited:
                piece = await self._edit(piece)
            if response.is_read:
                break
            if not piece:
                client.flush()
            elif client.send(piece):
                # A response in chunks has made a copy.
                piece = b""
                await self._wait_for_client()
            piece = b""
        await self._finish(piece)

    async def _finish(self, piece: bytes) -> None:
        """piece: the last one."""
        if self._is_edited:
            piece = self._edit_last(piece)
        await self._client.finish(piece)
        if self._reader is not None and self._reader.flush():
            await self._catch_up(self._reader)

    def _make_head(self) -> ResponseHead:
        response = self._response
        head = make_response_head(response.status, response.reason, response.raw_headers)
        if self._decoder is not None:
            head.drop(CONTENT_ENCODING)
        if self._is_edited:
            head.drop(CONTENT_LENGTH)
        head.add(self._headers)
        return head

    async def _wait_for_client(self) -> None:
        """Waits until the client keeps up. The library stops reading when some 32 KB wait."""
        await self._client.drain()

    def _count(self, reader: ResponseReader) -> None:
        """A response that is one JSON value, or one endless event, is held until its end."""
        held_bytes = reader.held_bytes
        if self._share is None:
            if held_bytes <= SMALL_BYTES:
                return
            self._share = self._memory.open()
        grown_bytes = held_bytes - self._share.size_bytes
        if grown_bytes < 0:
            self._share.shrink(-grown_bytes)
        elif not self._share.try_grow(grown_bytes):
            reader.give_up()

    async def _catch_up(self, reader: ResponseReader) -> None:
        """Lets other requests in between where a few bytes decode to many."""
        while reader.is_behind:
            async with self._decoding:
                reader.catch_up()
                await asyncio.sleep(0)

    async def _edit(self, piece: bytes) -> bytes:
        """The piece as it is sent. A compressed one may be large: all but the last of it is sent here."""
        if self._decoder is None:
            return self._filter_usage(piece)
        edited = b""
        steps = self._decoder.feed(piece)
        while True:
            async with self._decoding:
                plain = next(steps, None)
                await asyncio.sleep(0)
            if plain is None:
                return edited
            if edited and plain and self._client.send(edited):
                await self._wait_for_client()
            if plain:
                edited = self._filter_usage(plain)

    def _filter_usage(self, piece: bytes) -> bytes:
        """piece: decoded."""
        return self._filter.feed(piece) if self._filter is not None else piece

    def _edit_last(self, piece: bytes) -> bytes:
        """Raises DecodeError if the response ends too early; then everything decoded has been sent."""
        try:
            if self._decoder is not None:
                self._decoder.finish()
        except DecodeError:
            self._client.send(piece)
            raise
        return piece + self._filter.finish() if self._filter is not None else piece

    def _make_decoder(self, *, is_edited: bool) -> Decoder | None:
        encoding, is_committed = self._response.encoding, self._client.is_committed
        if not encoding or not (is_edited or is_committed):
            return None
        decoder = make_decoder(encoding)
        if decoder is None and is_committed:
            raise UpstreamFailed("a response in an unknown content encoding after a keep-alive")
        return decoder


def _may_be_stream(response: UpstreamResponse) -> bool:
    """Some servers stream as application/json; a stream has no length."""
    if response.status >= 300:
        return False
    content_type = response.headers.get(hdrs.CONTENT_TYPE, "")
    return "event-stream" in content_type.lower() or hdrs.CONTENT_LENGTH not in response.headers
