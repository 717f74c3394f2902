"""Forwards one request to its upstream, and the response to the client, byte for byte.

Knows HTTP, not conversations. A response is never an error, whatever its status; only a missing response is.
Where it matters, the beginning of a response is held back until it is known whether it calls the request too
large: an error is read whole, a successful response up to its first content, and only for a short time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from aiohttp import hdrs
from msgspec.structs import replace

from gateway.bounds.memory import MemoryBudget, Share
from gateway.core.errors import UpstreamFailed
from gateway.core.refusal import Overflow, parse_overflow
from gateway.headers import CONTENT_ENCODING, CONTENT_LENGTH, ResponseHead, make_response_head
from gateway.http.client import Client, IdleWatch, UpstreamCall, UpstreamResponse
from gateway.http.reply import Reply
from gateway.settings import Settings
from gateway.wire.content_encoding import DecodeError, Decoder, decode_body, make_decoder
from gateway.wire.reader import PENDING, Reading, Refused, ResponseReader, StreamStart, Verdict
from gateway.wire.reading import OnEvent
from gateway.wire.refusal import parse_refusal
from gateway.wire.sse import UsageChunkFilter

if TYPE_CHECKING:
    # Its libraries are an extra.
    from gateway.traces import Tracer

log = logging.getLogger("gateway.proxy")

# Headers that continue a trace; None for one that must not be sent.
Carried = Mapping[str, str | None]
# none: no response is held back. errors: responses with an error status. start: successful responses too, up
# to their first content; and an error status without any text may then mean that the request was too large.
ProbeMode = Literal["none", "errors", "start"]

_NOTHING_CARRIED: Final[Carried] = MappingProxyType({})
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
# An error may quote the whole prompt.
_MAX_ERROR_BYTES: Final = 1 << 20
_MAX_PLAIN_BYTES: Final = 1 << 20
# Of an error that is looked at, or made an event of a stream.
_SHOWN_ERROR_BYTES: Final = 1 << 16
# The rest of a refusal in a stream is awaited this long: some servers leave the stream open.
_REST_SECONDS: Final = 0.5
_OK: Final = 200
# How errors name what asks for usage.
_USAGE_NAMES: Final = (b"stream_options", b"include_usage")


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A call and what to do with its response."""

    call: UpstreamCall
    # The call asks for usage that its client did not ask for; makes the same call without, for the few
    # upstreams that refuse it. The chunk that it adds to a stream is taken out of the response.
    make_without_usage: Callable[[], Awaitable[UpstreamCall]] | None = None
    # Called if the upstream has refused that, and answered without.
    on_usage_refused: Callable[[], None] | None = None
    # Added to the response.
    headers: Mapping[str, str] = NO_HEADERS
    # Which responses are held back until it is known whether they call the request too large.
    probe: ProbeMode = "none"
    # Called once, with status and facts of the response as far as it came, when it has ended. Also if the
    # client hangs up early (clients close at `[DONE]`).
    on_end: Callable[[int, Reading], None] | None = None
    # Called with each event of the response, if `on_end` is set.
    on_event: OnEvent | None = None


class HeldResponse(msgspec.Struct, frozen=True):
    """A response that calls the request too large. Nothing of it was sent downstream."""

    head: ResponseHead
    # The content encoding of the body.
    encoding: str
    body: bytes
    overflow: Overflow


class Relay:
    def __init__(
        self, settings: Settings, memory: MemoryBudget, client: Client, tracer: "Tracer | None" = None
    ) -> None:
        """tracer: None where traces are off."""
        # Where a copy of a response finds no room in it, it is not read any further.
        self.memory = memory
        # Held for a step of decoding, so that twenty bombs at once are not one long step.
        self.decoding = asyncio.Lock()
        self._client = client
        self._tracer = tracer
        # A client must see a sign of life after this time, so no response is held back for longer.
        self._probe_seconds = settings.keepalive.after_seconds

    def forward(self, exchange: Exchange, client: Reply) -> Coroutine[None, None, HeldResponse | None]:
        """One call and its response; returned unsent if it calls the request too large and is to be held.

        Raises UpstreamFailed if there is no response, RequestRefused if another gateway responded. Once
        something has been sent downstream, a failure breaks the response off instead.
        """
        if self._tracer is None:
            return self._forward(exchange, client, _NOTHING_CARRIED)
        return self._forward_traced(exchange, client, self._tracer)

    async def send_held(self, held: HeldResponse, headers: Mapping[str, str], client: Reply) -> None:
        """Sends a response that was held back, as it came."""
        if client.is_committed:
            await client.fail(_decode_error(held.body, held.encoding), held.head.status)
            return
        held.head.own |= headers
        client.begin(held.head)
        await client.finish(held.body)

    async def _forward_traced(
        self, exchange: Exchange, client: Reply, tracer: "Tracer"
    ) -> HeldResponse | None:
        """The call has a span, and the upstream continues the trace."""
        if exchange.on_end is not None:
            exchange = replace(exchange, on_event=tracer.watch(client.answered, exchange.on_event))
        with tracer.relay(exchange.call) as span:
            held = await self._forward(exchange, client, tracer.carry(span))
            status = held.head.status if held is not None else client.status
            tracer.describe(span, status=status or None)
        return held

    async def _forward(self, exchange: Exchange, client: Reply, carried: Carried) -> HeldResponse | None:
        """carried: headers that continue the trace."""
        watch = IdleWatch(exchange.call.upstream)
        response: UpstreamResponse | None = None
        head_seconds: float | None = None
        try:
            response = await self._client.request(_with_headers(exchange.call, carried), watch)
            head_seconds, beginning = watch.last_seconds, b""
            make_without = exchange.make_without_usage
            if make_without is not None and response.status == 400:
                beginning = await response.read_bounded(_SHOWN_ERROR_BYTES)
            if make_without is not None and any(name in beginning for name in _USAGE_NAMES):
                response.close()
                call = _with_headers(await make_without(), carried)
                response, beginning = await self._client.request(call, watch), b""
                exchange = replace(exchange, make_without_usage=None)
                # If it is refused without it, too, it was not the (only) reason: nothing to remember.
                if exchange.on_usage_refused is not None and response.status < 400:
                    exchange.on_usage_refused()
            return await self._pass_on(exchange, response, beginning, client)
        finally:
            watch.close()
            if response is not None:
                response.close()
            client.answered.add_exchange(
                watch.upstream.name, watch.begun_seconds, head_seconds, watch.last_seconds
            )

    async def _pass_on(
        self, exchange: Exchange, response: UpstreamResponse, beginning: bytes, client: Reply
    ) -> HeldResponse | None:
        """beginning: what was read of the body already. Returns the response if it is held back."""
        status, mode = response.status, exchange.probe
        if mode != "none" and (status >= 400 or (mode == "start" and status == _OK)):
            beginning, overflow = await _probe(response, beginning, mode, self._probe_seconds)
            if overflow is not None:
                head = make_response_head(status, response.reason, response.raw_headers)
                if not response.is_read:
                    # A client would wait forever for the rest of the announced length.
                    head.drop(CONTENT_LENGTH)
                return HeldResponse(head, response.encoding, beginning, overflow)
        if client.is_committed and status != _OK:
            body = beginning or await response.read_bounded(_SHOWN_ERROR_BYTES)
            await client.fail(_decode_error(body, response.encoding), status)
        else:
            await _ResponseStream(self, exchange, response, client).pass_on(beginning)
        return None


def _with_headers(call: UpstreamCall, carried: Carried) -> UpstreamCall:
    return UpstreamCall(call.upstream, call.head.with_headers(carried), call.body) if carried else call


def _decode_error(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding, or unchanged if it cannot be decoded."""
    try:
        return decode_body(body, encoding, _MAX_PLAIN_BYTES)
    except DecodeError:
        return body


async def _probe(
    response: UpstreamResponse, beginning: bytes, mode: ProbeMode, max_seconds: float
) -> tuple[bytes, Overflow | None]:
    """What was read of the body so far, and how it calls the request too large, if it does.

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
    return b"".join(pieces), overflow


async def _probe_error(response: UpstreamResponse, pieces: list[bytes], mode: ProbeMode) -> Overflow | None:
    await response.read_into(pieces, _MAX_ERROR_BYTES)
    if not response.is_read:
        # Longer than any error; it is passed on as it comes.
        return None
    body, encoding = b"".join(pieces), response.encoding
    plain = decode_body(body, encoding, _MAX_PLAIN_BYTES) if encoding else body
    refusal = parse_refusal(response.status, plain)
    if refusal is None or (refusal.is_empty and mode != "start"):
        return None
    return parse_overflow(refusal)


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


class _ResponseStream:
    """Passes one response on to the client, piece by piece as it comes, and reads a copy of it.

    The bytes change in two cases only: if the usage chunk that the gateway asked for is taken out, and if a
    keep-alive has been sent already, so that the headers no longer can name a content encoding.
    """

    def __init__(self, relay: Relay, exchange: Exchange, response: UpstreamResponse, client: Reply) -> None:
        """Raises UpstreamFailed if the response must be decoded and its encoding is unknown."""
        self._relay = relay
        # None before a first batch was read.
        self._share: Share | None = None
        self._response = response
        self._client = client
        self._on_end = exchange.on_end
        self._reader: ResponseReader | None = None
        if exchange.on_end is not None:
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
            if self._on_end is not None and self._reader is not None:
                self._on_end(self._response.status, self._reader.finish())

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
                await client.drain()
            piece = b""
        await self._finish(piece)

    async def _finish(self, piece: bytes) -> None:
        """piece: the last one. Raises DecodeError if the response ends too early; then everything decoded has
        been sent.
        """
        try:
            if self._decoder is not None:
                self._decoder.finish()
        except DecodeError:
            self._client.send(piece)
            raise
        await self._client.finish(piece + self._filter.finish() if self._filter is not None else piece)
        if self._reader is not None and self._reader.flush():
            await self._catch_up(self._reader)

    def _make_head(self) -> ResponseHead:
        response = self._response
        head = make_response_head(response.status, response.reason, response.raw_headers)
        if self._decoder is not None:
            head.drop(CONTENT_ENCODING)
        if self._is_edited:
            head.drop(CONTENT_LENGTH)
        head.own |= self._headers
        return head

    def _count(self, reader: ResponseReader) -> None:
        """A response that is one JSON value, or one endless event, is held until its end."""
        share = self._share = self._share or self._relay.memory.open()
        grown_bytes = reader.held_bytes - share.size_bytes
        if grown_bytes < 0:
            share.shrink(-grown_bytes)
        elif not share.try_grow(grown_bytes):
            reader.give_up()

    async def _catch_up(self, reader: ResponseReader) -> None:
        """Lets other requests in between where a few bytes decode to many."""
        while reader.is_behind:
            async with self._relay.decoding:
                reader.catch_up()
                await asyncio.sleep(0)

    async def _edit(self, piece: bytes) -> bytes:
        """The piece as it is sent. A compressed one may be large: all but the last of it is sent here."""
        if self._decoder is None:
            return self._filter_usage(piece)
        edited = b""
        steps = self._decoder.feed(piece)
        while True:
            async with self._relay.decoding:
                plain = next(steps, None)
                await asyncio.sleep(0)
            if plain is None:
                return edited
            if edited and plain and self._client.send(edited):
                await self._client.drain()
            if plain:
                edited = self._filter_usage(plain)

    def _filter_usage(self, piece: bytes) -> bytes:
        """piece: decoded."""
        return self._filter.feed(piece) if self._filter is not None else piece

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
