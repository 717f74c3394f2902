"""Forwards one request to its upstream, and the response to the client, byte for byte.

Knows HTTP, not conversations. A response is never an error, whatever its status; only a missing response is.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.bounds.memory import MemoryBudget
from gateway.core.refusal.overflow import Overflow
from gateway.headers import CONTENT_LENGTH, make_response_head
from gateway.http.client import Client, IdleWatch, UpstreamCall, UpstreamResponse
from gateway.http.reply import Reply
from gateway.pipeline.exchange import Exchange, Forwarded
from gateway.pipeline.refusal_probe import HeldResponse, must_probe, probe
from gateway.pipeline.response_stream import ReadingBounds, ResponseStream
from gateway.settings import Settings
from gateway.wire.content_encoding import DecodeError, decode_body

if TYPE_CHECKING:
    # Its libraries are an extra.
    from gateway.traces import Tracer

# Headers that continue a trace; None for one that must not be sent.
Carried = Mapping[str, str | None]

_NOTHING_CARRIED: Final[Carried] = MappingProxyType({})
_MAX_ERROR_BYTES: Final = 1 << 16
_MAX_PLAIN_BYTES: Final = 1 << 20
_OK: Final = 200
# How errors name what asks for usage.
_USAGE_NAMES: Final = (b"stream_options", b"include_usage")


class Relay:
    def __init__(
        self, settings: Settings, memory: MemoryBudget, client: Client, tracer: "Tracer | None" = None
    ) -> None:
        """tracer: None where traces are off."""
        self._bounds = ReadingBounds(asyncio.Lock(), memory)
        self._client = client
        self._tracer = tracer
        # A client must see a sign of life after this time, so no response is held back for longer.
        self._probe_seconds = settings.keepalive.after_seconds

    def forward(self, exchange: Exchange, client: Reply) -> Coroutine[None, None, Forwarded]:
        """One call and its response.

        Raises UpstreamFailed if there is no response, RequestRefused if another gateway responded. Once
        something has been sent downstream, a failure breaks the response off instead.
        """
        if self._tracer is None:
            return self._forward(exchange, client, _NOTHING_CARRIED)
        return self._forward_traced(exchange, client, self._tracer)

    async def _forward_traced(self, exchange: Exchange, client: Reply, tracer: "Tracer") -> Forwarded:
        """The call has a span, and the upstream continues the trace."""
        call = exchange.call
        if exchange.on_outcome is not None:
            exchange = replace(exchange, on_event=tracer.watch(client.answered, exchange.on_event))
        facts: dict[str, str | int] = {
            "method": call.head.method,
            "upstream": call.upstream.name,
            "server": call.head.url.host or "",
            "port": call.head.url.port or 0,
        }
        with tracer.call(call.head.method, **facts) as span:
            forwarded = await self._forward(exchange, client, tracer.carry(span))
            held = forwarded.held
            status = held.head.status if held is not None else client.status
            tracer.describe(span, status=status or None)
        return forwarded

    async def _forward(self, exchange: Exchange, client: Reply, carried: Carried) -> Forwarded:
        """carried: headers that continue the trace."""
        watch = IdleWatch(exchange.call.upstream)
        response: UpstreamResponse | None = None
        head_seconds: float | None = None
        try:
            response = await self._client.request(_with_headers(exchange.call, carried), watch)
            head_seconds, beginning, is_refused = watch.last_seconds, b"", False
            if exchange.make_without_usage is not None and response.status == 400:
                beginning = await response.read_bounded(_MAX_ERROR_BYTES)
                is_refused = any(name in beginning for name in _USAGE_NAMES)
            if exchange.make_without_usage is not None and is_refused:
                response.close()
                call = _with_headers(await exchange.make_without_usage(), carried)
                response, beginning = await self._client.request(call, watch), b""
                exchange = replace(exchange, make_without_usage=None)
                # If it is refused without it, too, it was not the (only) reason: nothing to remember.
                is_refused = response.status < 400
            forwarded = await self._pass_on(exchange, response, beginning, client)
            return replace(forwarded, refused_usage=True) if is_refused else forwarded
        finally:
            watch.close()
            if response is not None:
                response.close()
            client.answered.add_exchange(
                watch.upstream.name, watch.begun_seconds, head_seconds, watch.last_seconds
            )

    async def send_held(self, held: HeldResponse, headers: dict[str, str], client: Reply) -> None:
        """Sends a response that was held back, as it came."""
        if client.is_committed:
            await client.fail(_decode_error(held.body, held.encoding), held.head.status)
            return
        held.head.add(headers)
        client.begin(held.head)
        await client.finish(held.body)

    async def _pass_on(
        self,
        exchange: Exchange,
        response: UpstreamResponse,
        beginning: bytes,
        client: Reply,
    ) -> Forwarded:
        """beginning: what was read of the body already."""
        if must_probe(response, exchange.probe):
            probed = await probe(response, beginning, exchange.probe, self._probe_seconds)
            if probed.overflow is not None:
                return Forwarded(held=_make_held(response, probed.read, probed.overflow))
            beginning = probed.read
        if client.is_committed and response.status != _OK:
            body = _decode_error(
                beginning or await response.read_bounded(_MAX_ERROR_BYTES), response.encoding
            )
            await client.fail(body, response.status)
            return Forwarded()
        await ResponseStream(exchange, response, client, self._bounds).pass_on(beginning)
        return Forwarded()


def _with_headers(call: UpstreamCall, carried: Carried) -> UpstreamCall:
    return UpstreamCall(call.upstream, call.head.with_headers(carried), call.body) if carried else call


def _decode_error(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding, or unchanged if it cannot be decoded."""
    try:
        return decode_body(body, encoding, _MAX_PLAIN_BYTES)
    except DecodeError:
        return body


def _make_held(response: UpstreamResponse, body: bytes, overflow: Overflow) -> HeldResponse:
    head = make_response_head(response.status, response.reason, response.raw_headers)
    if not response.is_read:
        # A client would wait forever for the rest of the announced length.
        head.drop(CONTENT_LENGTH)
    return HeldResponse(head=head, encoding=response.encoding, body=body, overflow=overflow)
