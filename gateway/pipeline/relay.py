"""Forwards one request to its upstream, and the response to the client, byte for byte.

Knows HTTP, not conversations. A response is never an error, whatever its status; only a missing response is.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.refusal.overflow import Overflow
from gateway.downstream.responder import Responder
from gateway.headers import CONTENT_LENGTH, make_response_head
from gateway.outgoing.call_maker import NOTHING_ADDED, Addition, Additions
from gateway.pipeline.exchange import Exchange, FailedFollowUp, Forwarded
from gateway.pipeline.response_stream import ReadingBounds, ResponseStream
from gateway.settings import Settings
from gateway.upstream.client import UpstreamClient
from gateway.upstream.idle_timeout import IdleSweeper, IdleTimeout
from gateway.upstream.refusal_probe import HeldResponse, must_probe, probe
from gateway.upstream.response import UpstreamResponse
from gateway.wire.content_encoding import DecodeError, decode_body
from gateway.wire.recall import RECALL_TOOL

_MAX_ERROR_BYTES: Final = 1 << 16
_MAX_PLAIN_BYTES: Final = 1 << 20
_OK: Final = 200
# How errors name what the gateway has added.
_NAMES: Final[Mapping[Addition, tuple[bytes, ...]]] = {
    "usage": (b"stream_options", b"include_usage"),
    "tool": (RECALL_TOOL.encode(),),
}


class Relay:
    def __init__(self, settings: Settings, memory: MemoryBudget) -> None:
        upstreams = settings.upstreams.values()
        self._bounds = ReadingBounds(asyncio.Lock(), memory)
        self._idle = IdleSweeper(min(upstream.idle_seconds for upstream in upstreams))
        self._upstream_client = UpstreamClient(upstreams)
        # A client must see a sign of life after this time, so no response is held back for longer.
        self._probe_seconds = settings.keepalive.after_seconds

    async def open(self) -> None:
        await self._upstream_client.open()
        self._idle.start()

    async def close(self) -> None:
        await self._idle.stop()
        await self._upstream_client.close()

    async def forward(self, exchange: Exchange, client: Responder) -> Forwarded:
        """One call and its response.

        Raises UpstreamFailed if there is no response, RequestRefused if another gateway responded. Once
        something has been sent downstream, a failure breaks the response off instead.
        """
        idle = self._idle.watch(exchange.call.upstream)
        try:
            response = await self._upstream_client.request(exchange.call, idle)
            beginning, left = b"", exchange.additions
            while left and exchange.make_with is not None and response.status == 400:
                beginning = await response.read_bounded(_MAX_ERROR_BYTES)
                named = _find_named(beginning, left)
                if not named:
                    break
                left -= named
                idle.close_response()
                # It may wait for others' work, which is no silence of the upstream.
                idle.pause()
                call = await exchange.make_with(left)
                idle.reset()
                response, beginning = await self._upstream_client.request(call, idle), b""
            # If it is refused without them, too, they were not the (only) reason: nothing to remember.
            refused = exchange.additions - left if response.status < 400 else NOTHING_ADDED
            exchange = replace(exchange, additions=left)
            forwarded = await self._pass_on(exchange, response, beginning, client, idle)
            return replace(forwarded, refused=refused) if refused else forwarded
        except BaseException:
            # It was waited for until now.
            idle.reset()
            raise
        finally:
            self._idle.end(idle)
            name = exchange.call.upstream.name
            client.note.add_exchange(name, idle.begun_seconds, idle.head_seconds, idle.last_seconds)

    async def send_held(self, held: HeldResponse, headers: dict[str, str], client: Responder) -> None:
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
        client: Responder,
        idle: IdleTimeout,
    ) -> Forwarded:
        """beginning: what was read of the body already."""
        if must_probe(response, exchange.probe):
            probed = await probe(response, beginning, exchange.probe, self._probe_seconds)
            if probed.overflow is not None:
                return Forwarded(held=_make_held(response, probed.read, probed.overflow))
            beginning = probed.read
        must_succeed = client.is_committed or exchange.is_follow_up
        if must_succeed and response.status != _OK:
            body = _decode_error(
                beginning or await response.read_bounded(_MAX_ERROR_BYTES), response.encoding
            )
            if exchange.is_follow_up:
                return Forwarded(failed=FailedFollowUp(response.status, body))
            await client.fail(body, response.status)
            return Forwarded()
        await ResponseStream(exchange, response, client, idle, self._bounds).pass_on(beginning)
        return Forwarded()


def _find_named(body: bytes, additions: Additions) -> Additions:
    """Which of the additions an error names."""
    return frozenset(each for each in additions if any(word in body for word in _NAMES[each]))


def _decode_error(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding, or unchanged if it cannot be decoded."""
    try:
        return decode_body(body, encoding, _MAX_PLAIN_BYTES)
    except DecodeError:
        return body


def _make_held(response: UpstreamResponse, body: bytes, overflow: Overflow) -> HeldResponse:
    head = make_response_head(response.status, response.reason or "", response.raw_headers)
    if not response.is_read:
        # A client would wait forever for the rest of the announced length.
        head.drop(CONTENT_LENGTH)
    return HeldResponse(head=head, encoding=response.encoding, body=body, overflow=overflow)
