"""A whole pipeline in memory: a toy in the relay's place, and a client's connection without a socket."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2 as httpx
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.activity.book import ActivityBook
from gateway.bounds.memory_budget import MemoryBudget
from gateway.compaction.compactor import Compactor
from gateway.compaction.paid_calls import PaidCalls
from gateway.compaction.summary_client import SummaryClient
from gateway.conversations.registry import Registry
from gateway.conversations.turn import Turn
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.usage import Usage
from gateway.downstream.request import ReceivedBody, Request, RequestHead
from gateway.downstream.responder import Responder
from gateway.downstream.response import Response
from gateway.headers import ResponseHead, make_fields
from gateway.outgoing.call_maker import NOTHING_ADDED, Additions, CallMaker
from gateway.pipeline.admission import Route
from gateway.pipeline.exchange import Exchange, Forwarded, Outcome
from gateway.pipeline.proxy import Proxy
from gateway.pipeline.relay import Relay
from gateway.reporting.events import Bus
from gateway.settings import Keepalive, Settings, load_settings
from gateway.state import State
from gateway.store.stores import Stores
from gateway.upstream.refusal_probe import HeldResponse
from gateway.wire.response.reader import Reading
from gateway.wire.sse import SseEvent
from gateway.wiring import foundation as founding
from gateway.wiring import generation as generating
from tests.builders.downstream import Line, open_line

# A digest needs no upstream; characters are counted without a tokenizer.
SETTINGS = """
store: "memory:"
upstreams: {default: {base_url: "http://127.0.0.1:1/v1", discover: false}}
models: [{match: "toy", context: 4000}]
policies: {default: {estimator: chars, summary: {method: digest}}}
"""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the upstream is said to have responded."""

    status: int = 200
    body: bytes = b"{}"
    usage: Usage | None = None
    finish_reason: str | None = "stop"
    has_error: bool = False
    is_complete: bool = True
    refused: Additions = NOTHING_ADDED


class ToyRelay(Relay):
    """Plays a script in place of the upstreams, then replies. exchanges: what it was given to forward."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, MemoryBudget(1 << 30))
        self.script: list[Reply | HeldResponse | Exception] = []
        self.exchanges: list[Exchange] = []

    async def forward(self, exchange: Exchange, downstream: Responder) -> Forwarded:
        self.exchanges.append(exchange)
        step = self.script.pop(0) if self.script else Reply()
        if isinstance(step, Exception):
            raise step
        downstream.note.add_exchange(exchange.call.upstream.name, 0.0, 0.0, 0.0)
        if isinstance(step, HeldResponse):
            return Forwarded(held=step)
        head = ResponseHead(step.status, "", make_fields({"Content-Length": str(len(step.body))}))
        head.add(exchange.headers)
        downstream.begin(head)
        await downstream.finish(step.body)
        if exchange.on_event is not None:
            exchange.on_event(SseEvent("", step.body))
        if exchange.on_outcome is not None:
            reading = Reading(step.usage, step.finish_reason, step.has_error, step.is_complete)
            exchange.on_outcome(Outcome(step.status, reading))
        return Forwarded(refused=step.refused)


def make_refusal(overflow: Overflow | None = None, body: bytes = b'{"error":{}}') -> HeldResponse:
    head = ResponseHead(400, "Bad Request", make_fields({"Content-Length": str(len(body))}))
    return HeldResponse(head=head, encoding="", body=body, overflow=overflow or Overflow())


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    settings: Settings
    state: State
    registry: Registry
    activity: ActivityBook
    bus: Bus
    compactor: Compactor
    relay: ToyRelay
    proxy: Proxy

    @property
    def sent(self) -> list[bytes]:
        """The bodies that were forwarded."""
        bodies = [exchange.call.body for exchange in self.relay.exchanges]
        return [body for body in bodies if isinstance(body, bytes)]

    def admit(self, path: str = "/v1/chat/completions", more: Sequence[tuple[str, str]] = ()) -> Route:
        return self.proxy.admission.admit(make_request_head(path, more))

    async def build(
        self, body: bytes, path: str = "/v1/chat/completions", more: Sequence[tuple[str, str]] = ()
    ) -> Turn:
        """The turn of a body that can be understood. more: headers."""
        turn = await self.proxy.turns.build(self.admit(path, more), ReceivedBody(body, body))
        assert turn is not None
        return turn


@asynccontextmanager
async def running_pipeline(
    text: str = SETTINGS, stores: Stores | None = None, client: httpx.AsyncClient | None = None
) -> AsyncIterator[Pipeline]:
    """stores: in place of those that the settings name. client: for summaries and other calls of our own."""
    settings = load_text(text)
    foundation = founding.build_foundation(settings, stores)
    if client is not None:
        await foundation.client.aclose()
        foundation = replace(foundation, client=client)
    await foundation.stores.open()
    limits = generating.build_limits(settings, foundation)
    planning = generating.build_planning(foundation, limits)
    hooks = generating.build_hooks(settings, foundation)
    calls = PaidCalls(SummaryClient(foundation.client), foundation.quotas.summaries, foundation.metrics)
    maker = CallMaker(foundation.reading.rewriter)
    rides = generating.build_rides(foundation, maker)
    summarizer = generating.build_summarizer(settings, foundation, limits, hooks, calls, rides)
    compaction = generating.build_compaction(foundation, planning, summarizer, maker)
    relay = ToyRelay(settings)
    pipeline = generating.build_pipeline(settings, relay, foundation, limits, planning, compaction)
    try:
        yield Pipeline(
            settings=settings,
            state=foundation.state,
            registry=foundation.registry,
            activity=foundation.activity,
            bus=foundation.bus,
            compactor=compaction.compactor,
            relay=relay,
            proxy=pipeline.proxy,
        )
    finally:
        await compaction.compactor.close()
        await foundation.log_writer.finish()
        await foundation.archive.finish()
        await foundation.client.aclose()
        foundation.lanes.close()


def load_text(text: str) -> Settings:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(text, "utf-8")
        return load_settings(path, {}, host="127.0.0.1", port=0)


def make_request_head(
    path: str = "/v1/chat/completions",
    more: Sequence[tuple[str, str]] = (),
    *,
    method: str = "POST",
    key: str = "sk-toy",
) -> RequestHead:
    pairs = [("Authorization", f"Bearer {key}"), ("Content-Type", "application/json"), *more]
    raw = [(name.encode(), value.encode()) for name, value in pairs]
    return RequestHead(method, path, CIMultiDictProxy(CIMultiDict(pairs)), raw)


def render_post(body: bytes, path: str = "/v1/chat/completions", more: Sequence[str] = ()) -> bytes:
    """A request as a client writes it."""
    lines = [f"POST {path} HTTP/1.1", "Host: a", "Authorization: Bearer sk-toy", *more]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@asynccontextmanager
async def responding(keepalive: Keepalive | None = None) -> AsyncIterator[tuple[Responder, Line]]:
    """A client that waits for a response, and its line."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()

    async def wait(request: Request) -> Response | None:
        await arrived.put(request)
        await asyncio.Event().wait()
        return None

    async with open_line(wait) as line:
        await line.send(render_post(b"{}"))
        yield Responder(await arrived.get(), keepalive or Keepalive()), line
