"""Carries one request upstream and its answer back, byte for byte, and watches a copy go by.

Knows HTTP, not conversations. An answer is never an error, whatever its status; only its absence is.
"""

import math
import time
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import hdrs

from gateway.core.errors import UpstreamFailed
from gateway.core.refusal.overflow import Overflow
from gateway.downstream.responder import Responder
from gateway.headers import CONTENT_ENCODING, CONTENT_LENGTH, ResponseHead, make_response_head
from gateway.settings import Settings
from gateway.upstream.body import FOREIGN, read_at_hand, read_bounded, read_piece, translate
from gateway.upstream.client import UpstreamCall, UpstreamClient
from gateway.upstream.idle_timeout import IdleTimeout, Watch
from gateway.upstream.loop_guard import refuse_gateway
from gateway.upstream.refusal_probe import HeldResponse, ProbeMode, hold_back, may_be_refusal
from gateway.upstream.response import UpstreamResponse
from gateway.wire.content_encoding import DecodeError, Decoder, decode_body, make_decoder
from gateway.wire.response.reader import Reading, ResponseReader
from gateway.wire.response.usage_chunk import UsageChunkFilter
from gateway.wire.sse import SseEvent

_KEPT_ERROR_BYTES: Final = 1 << 16
_MOST_PLAIN_BYTES: Final = 1 << 20


class Outcome(msgspec.Struct, frozen=True):
    """status: the upstream's. reading: what was seen of usage."""

    status: int
    reading: Reading


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A call and what to do with its response."""

    call: UpstreamCall
    # The same call without the injected `include_usage`, if it was injected. The chunk that it adds is taken
    # out of the response.
    without_usage: UpstreamCall | None = None
    # Added to the response.
    headers: dict[str, str] = {}
    # Which responses are held back until it is known whether they call the request too large.
    probe: ProbeMode = "none"
    # Called once, with what the response said. Also if the client hangs up early (clients close at `[DONE]`).
    on_answered: Callable[[Outcome], None] | None = None
    # Called with each event of the response, if `on_answered` is set.
    on_event: Callable[[SseEvent], None] | None = None


class Forwarded(msgspec.Struct, frozen=True):
    """How an exchange ended."""

    # The upstream refused the injected option, and answered without it.
    refused_usage_option: bool
    # The response, if it called the request too large; then nothing of it was sent downstream.
    held: HeldResponse | None


class Relay:
    def __init__(self, settings: Settings) -> None:
        upstreams = settings.upstreams.values()
        self._watchdog = IdleTimeout(min(upstream.idle_seconds for upstream in upstreams))
        self._dialer = UpstreamClient(upstreams)
        self._hold_seconds = settings.keepalive.after_seconds

    async def open(self) -> None:
        await self._dialer.open()
        self._watchdog.start()

    async def close(self) -> None:
        await self._watchdog.stop()
        await self._dialer.close()

    async def forward(self, exchange: Exchange, downstream: Responder) -> Forwarded:
        """One call and its answer. Raises UpstreamFailed where nothing of an answer was sent downstream yet.

        Where something was, the answer is broken off instead: a client must never take half for the whole.
        """
        upstream = exchange.call.upstream
        watch = self._watchdog.begin(upstream.name, upstream.idle_seconds, downstream.task)
        try:
            if exchange.without_usage is not None:
                return await self._forward_asking(exchange, exchange.without_usage, downstream, watch)
            response = await self._ask(exchange.call, watch)
            return Forwarded(False, await self._pass_on(exchange, response, downstream, watch, b""))
        finally:
            # A finished answer has given its connection back by now; any other must stop costing money.
            self._watchdog.end(watch)

    async def _forward_asking(
        self, exchange: Exchange, without_usage: UpstreamCall, downstream: Responder, watch: Watch
    ) -> Forwarded:
        """With the injected option, and without it where upstream refuses that."""
        response = await self._ask(exchange.call, watch)
        refusal = await _read_refusal(response, watch)
        if not _names_usage_option(refusal):
            return Forwarded(False, await self._pass_on(exchange, response, downstream, watch, refusal))
        watch.end()
        plain = msgspec.structs.replace(exchange, call=without_usage, without_usage=None)
        response = await self._ask(plain.call, watch)
        held = await self._pass_on(plain, response, downstream, watch, b"")
        # Refused again: then it was not (only) the option, and nothing is to be remembered.
        return Forwarded(response.status < 400, held)

    async def send_held(self, held: HeldResponse, headers: dict[str, str], downstream: Responder) -> None:
        """An answer that was kept back, as it came."""
        if downstream.is_committed:
            await downstream.fail(_make_plain(held.body, held.encoding), held.head.status)
            return
        held.head.add(headers)
        downstream.begin(held.head)
        await downstream.finish(held.body)

    async def _ask(self, call: UpstreamCall, watch: Watch) -> UpstreamResponse:
        """The answer's beginning; `watch` ends it."""
        try:
            response = await self._dialer.ask(call, watch)
        except FOREIGN as error:
            translate(error, watch)
        watch.response = response
        watch.seen_seconds = time.monotonic()
        refuse_gateway(response, call.upstream)
        return response

    async def _pass_on(
        self,
        exchange: Exchange,
        response: UpstreamResponse,
        downstream: Responder,
        watch: Watch,
        beginning: bytes,
    ) -> HeldResponse | None:
        """The answer, as it comes. `beginning`: what was read of its body already."""
        if may_be_refusal(response, exchange.probe):
            held = await hold_back(response, watch, beginning, exchange.probe, self._hold_seconds)
            if held.overflow is not None:
                return _make_held(response, held.read, held.overflow)
            beginning = held.read
        if downstream.is_committed and response.status != 200:
            body = beginning or await read_bounded(response, watch, _KEPT_ERROR_BYTES)
            encoding = response.headers.get(hdrs.CONTENT_ENCODING, "")
            await downstream.fail(_make_plain(body, encoding), response.status)
            return None
        stream = _Stream(exchange, response, must_decode=downstream.is_committed)
        try:
            downstream.begin(stream.head)
            await self._pump(stream, beginning, response, downstream, watch)
        except (UpstreamFailed, DecodeError):
            downstream.abort()
        finally:
            stream.report(response.status)
        return None

    async def _pump(
        self,
        stream: "_Stream",
        chunk: bytes,
        response: UpstreamResponse,
        downstream: Responder,
        watch: Watch,
    ) -> None:
        """`chunk`: what is to be passed on first. The last piece and the end leave together."""
        edit, content = stream.edit, response.content
        chunk = chunk or read_at_hand(response)
        if not chunk:
            downstream.flush()
        while chunk or (chunk := await read_piece(response, watch)):
            stream.feed(chunk)
            if edit is not None:
                chunk = edit(chunk)
            if content.at_eof():
                break
            if not chunk:
                downstream.flush()
            elif downstream.send(chunk):
                # While downstream does not read, upstream is not the one who is silent.
                watch.seen_seconds = math.inf
                await downstream.drain()
                watch.seen_seconds = time.monotonic()
            chunk = b""
        if edit is not None:
            try:
                chunk += stream.finish_edit()
            except DecodeError:
                downstream.send(chunk)
                raise
        watch.seen_seconds = math.inf
        await downstream.finish(chunk)


class _Stream:
    """One answer on its way: its headers, the copy that is read, and the one edit that there is."""

    def __init__(self, exchange: Exchange, response: UpstreamResponse, must_decode: bool) -> None:
        head, headers = _make_head(response), response.headers
        encoding = headers.get(hdrs.CONTENT_ENCODING, "")
        kind = headers.get(hdrs.CONTENT_TYPE, "")
        self._observe = exchange.on_answered
        self._reader = (
            ResponseReader(kind, encoding, exchange.on_event) if exchange.on_answered is not None else None
        )
        # Some servers stream as application/json; what they stream has no length.
        takes_out = (
            exchange.without_usage is not None
            and response.status < 300
            and ("event-stream" in kind.lower() or hdrs.CONTENT_LENGTH not in headers)
        )
        self._decoder: Decoder | None = None
        if encoding and (takes_out or must_decode):
            self._decoder = make_decoder(encoding)
            # A coding that we do not know cannot be edited: it passes as it is.
            takes_out = takes_out and self._decoder is not None
            if must_decode and self._decoder is None:
                raise UpstreamFailed("an answer in an unknown coding after a keep-alive")
        if self._decoder is not None:
            head.drop(CONTENT_ENCODING)
        self._filter = UsageChunkFilter() if takes_out else None
        if takes_out or self._decoder is not None:
            head.drop(CONTENT_LENGTH)
        head.add(exchange.headers)
        self.head = head
        self.feed = self._reader.feed if self._reader is not None else _see_nothing
        self.edit = self._edit if self._filter is not None or self._decoder is not None else None

    def report(self, status: int) -> None:
        if self._observe is not None and self._reader is not None:
            self._observe(Outcome(status, self._reader.finish()))

    def finish_edit(self) -> bytes:
        rest = self._decoder.finish() if self._decoder is not None else b""
        if self._filter is None:
            return rest
        return self._filter.feed(rest) + self._filter.finish()

    def _edit(self, chunk: bytes) -> bytes:
        decoded = self._decoder.feed(chunk) if self._decoder is not None else chunk
        return self._filter.feed(decoded) if self._filter is not None else decoded


def _see_nothing(chunk: bytes) -> None:
    """Of an answer that nobody wants to know of."""


async def _read_refusal(response: UpstreamResponse, watch: Watch) -> bytes:
    """The body of a 400 that an injected option may have caused, read before anything of it is sent."""
    if response.status != 400:
        return b""
    return await read_bounded(response, watch, _KEPT_ERROR_BYTES)


def _names_usage_option(body: bytes) -> bool:
    """Does the error name what we injected?"""
    return b"stream_options" in body or b"include_usage" in body


def _make_plain(body: bytes, encoding: str) -> bytes:
    """With its content encoding taken off, where that can be undone."""
    try:
        return decode_body(body, encoding, _MOST_PLAIN_BYTES)
    except DecodeError:
        return body


def _make_held(response: UpstreamResponse, body: bytes, overflow: Overflow) -> HeldResponse:
    head = _make_head(response)
    if not response.content.at_eof():
        # A client would wait for ever for the rest of the length that was promised.
        head.drop(CONTENT_LENGTH)
    encoding = response.headers.get(hdrs.CONTENT_ENCODING, "")
    return HeldResponse(head=head, encoding=encoding, body=body, overflow=overflow)


def _make_head(response: UpstreamResponse) -> ResponseHead:
    return make_response_head(response.status, response.reason or "", response.raw_headers)
