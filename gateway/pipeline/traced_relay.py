"""A relay whose calls have spans, and whose upstreams continue the trace."""

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gateway.bounds.memory import MemoryBudget
from gateway.http.client import Client, UpstreamCall
from gateway.http.reply import Reply
from gateway.outgoing.call_maker import Additions
from gateway.pipeline.exchange import Exchange, Forwarded
from gateway.pipeline.name_guard import chain
from gateway.pipeline.relay import Relay
from gateway.settings import Settings
from gateway.traces import names
from gateway.traces.carrier import Carried
from gateway.wire.sse import SseEvent

if TYPE_CHECKING:
    from gateway.traces.spans import OpenSpan
    from gateway.traces.tracer import Tracer

# The first events of a stream name the model.
_MOST_EVENTS: Final = 4
_MINIMUM_ERROR: Final = 400


class _Named(msgspec.Struct):
    """What a response says of itself; in an event of a stream it may be one level below."""

    model: str | None = None
    id: str | None = None


class _NamedEvent(_Named):
    response: _Named | None = None
    message: _Named | None = None


_decode: Final = msgspec.json.Decoder(_NamedEvent).decode


class TracedRelay(Relay):
    def __init__(self, settings: Settings, memory: MemoryBudget, client: Client, tracer: "Tracer") -> None:
        super().__init__(settings, memory, client)
        self._tracer = tracer

    async def forward(self, exchange: Exchange, client: Reply) -> Forwarded:
        call = exchange.call
        url = call.head.url
        attributes: dict[str, str | int] = {
            names.METHOD: call.head.method,
            names.UPSTREAM: call.upstream.name,
            names.SERVER: url.host or "",
            names.SERVER_PORT: url.port or 0,
        }
        with self._tracer.call(call.head.method, attributes) as span:
            traced = _with_trace(exchange, self._tracer.carry(span), client.note.span)
            forwarded = await super().forward(traced, client)
            _describe_end(span, forwarded, client)
        return forwarded


def _with_trace(exchange: Exchange, carried: Carried, span: "OpenSpan | None") -> Exchange:
    """span: of the request; it is told which model has answered."""
    traced = replace(exchange, call=_with_headers(exchange.call, carried))
    make = exchange.make_with
    if make is not None:

        async def make_traced(additions: Additions) -> UpstreamCall:
            return _with_headers(await make(additions), carried)

        traced = replace(traced, make_with=make_traced)
    if span is not None and exchange.on_outcome is not None:
        watch = _ResponseNames(span).note
        traced = replace(
            traced, on_event=watch if exchange.on_event is None else chain(exchange.on_event, watch)
        )
    return traced


def _with_headers(call: UpstreamCall, carried: Carried) -> UpstreamCall:
    return UpstreamCall(call.upstream, call.head.with_headers(carried), call.body)


class _ResponseNames:
    def __init__(self, span: "OpenSpan") -> None:
        self._span = span
        self._events_left = _MOST_EVENTS

    def note(self, event: SseEvent) -> None:
        if not self._events_left:
            return
        self._events_left -= 1
        try:
            read = _decode(event.data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        for named in (read, read.response, read.message):
            if named is not None and named.model:
                self._events_left = 0
                identity = names.shorten(named.id) if named.id else None
                self._span.describe(
                    {names.RESPONSE_MODEL: names.shorten(named.model), names.RESPONSE_ID: identity}
                )


def _describe_end(span: "OpenSpan", forwarded: Forwarded, client: Reply) -> None:
    held, failed = forwarded.held, forwarded.failed
    status = held.head.status if held is not None else client.status
    status = failed.status if failed is not None else status
    span.describe({names.STATUS: status or None})
    if status >= _MINIMUM_ERROR:
        span.fail(str(status))
