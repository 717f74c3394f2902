"""Plays requests through what a running gateway consists of: admission, turns, planning, sending.

All of it is built by `gateway.app`, with stand-ins for the upstream, the summarizer and the client. Each
recording is a tenant of its own, so that none learns from another. A summary that is made in the background
is ready before the next request.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.activity.prices import PriceList
from gateway.app.build import Serving
from gateway.app.process import Process
from gateway.bounds.background import BackgroundTasks
from gateway.bounds.lanes import take_all_steps
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.errors import BeyondBounds, RequestRefused, Unreadable
from gateway.core.policy import Estimator
from gateway.http.request import ReceivedBody, RequestHead
from gateway.pipeline.plan import WaitBudget
from gateway.pipeline.proxy import Proxy
from gateway.planning.message_sizes import Sizer, measure_message
from gateway.planning.tokenizer import TextCounter, make_counters
from gateway.replay.measuring import CacheKind, Measured, Measurer, choose_cache
from gateway.replay.offline import CachedPrompt, InlineLanes, OfflineClient, OfflineRelay, OfflineSummaries
from gateway.replay.recordings import RecordedRequest
from gateway.replay.results import CompactionRun, Played, RequestRun, When
from gateway.reporting.events import CompactionFailed, Event, Pruned, SessionCompacted, Subscription
from gateway.settings import Settings
from gateway.wire.body import JSON_ERRORS
from gateway.wire.format import Format

# Headers that would make other tenants of requests of one recording.
_CREDENTIALS: Final = frozenset(
    {
        "authorization",
        "x-api-key",
        "api-key",
        "cookie",
        "chatgpt-account-id",
        "openai-organization",
        "openai-project",
    }
)


@dataclass(frozen=True, kw_only=True)
class ReplayGateway:
    """What a running gateway consists of, for one policy. name: of the policy, for people."""

    name: str
    serving: Serving
    # That follow from its responses.
    tasks: BackgroundTasks
    summaries: OfflineSummaries
    events: Subscription
    sizer: Sizer
    counters: Mapping[Estimator, TextCounter]
    prices: PriceList

    def choose_cache(self, model: str) -> CacheKind:
        return choose_cache(self.prices.find(model))


class ReplaySession:
    """One recording on one gateway. tenant: a credential that no other recording has."""

    def __init__(self, gateway: ReplayGateway, tenant: str) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._measurer = Measurer(gateway.sizer, gateway.choose_cache)
        self._runs: list[RequestRun] = []
        self._unread = 0
        self._failed = 0

    async def play(self, request: RecordedRequest) -> None:
        """Plans and sends one request, and lets everything end that follows from its response."""
        turn = await self._build_turn(request)
        if turn is None:
            self._unread += 1
            return
        client = OfflineClient()
        if turn.command is not None:
            await self._proxy.commands.run(turn, turn.command, client)
            await self._settle()
            return
        summaries = self._gateway.summaries
        summaries.cached = CachedPrompt(*self._measurer.find_sent(turn))
        plan = await self._proxy.planning.plan(turn, WaitBudget(turn.policy.summary), client)
        before, calls = self._gateway.events.take(), summaries.take_calls()
        measured = await self._measurer.measure(turn, plan, request.usage)
        summaries.cached = CachedPrompt(measured.sent, measured.use, is_whole=True)
        output = self._count_output(turn, request)
        client.usage = None if request.has_failed else measured.use.make_usage(measured.sent, output)
        with self._proxy.memory.open() as share:
            await self._proxy.sender.send(turn, plan, client, share)
        await self._settle()
        after = self._gateway.events.take()
        made = msgspec.structs.replace(
            _make_run(turn, plan, measured),
            output=output,
            is_usage_recorded=request.usage is not None,
            compactions=(*_list_compactions(before, "before"), *_list_compactions(after, "after")),
            pruned_messages=sum(event.marks for event in (*before, *after) if isinstance(event, Pruned)),
            calls=calls + summaries.take_calls(),
        )
        self._runs.append(made)
        self._failed += request.has_failed

    def finish(self, recording: str) -> Played:
        return Played(
            recording=recording,
            policy=self._gateway.name,
            requests=tuple(self._runs),
            unread=self._unread,
            failed=self._failed,
        )

    @property
    def _proxy(self) -> Proxy:
        return self._gateway.serving.proxy

    async def _settle(self) -> None:
        await self._gateway.tasks.finish()

    async def _build_turn(self, request: RecordedRequest) -> Turn | None:
        try:
            route = self._proxy.admission.admit(_make_head(request, self._tenant))
            if route.format is None or route.is_count:
                return None
            return await self._proxy.turns.build(route, ReceivedBody(request.body, request.body))
        except (BeyondBounds, RequestRefused):
            return None

    def _count_output(self, turn: Turn, request: RecordedRequest) -> int:
        if request.usage is not None and request.usage.output_tokens is not None:
            return request.usage.output_tokens
        counter = self._gateway.counters[turn.policy.estimator]
        return sum(_count_reply(turn.received.format, counter, raw) for raw in request.reply)


def _list_compactions(events: Sequence[Event], when: When) -> Iterator[CompactionRun]:
    for event in events:
        match event:
            case SessionCompacted():
                yield CompactionRun(
                    when=when,
                    kind=event.kind,
                    covers=event.covers,
                    pre_tokens=event.pre_tokens,
                    post_tokens=event.post_tokens,
                )
            case CompactionFailed():
                yield CompactionRun(
                    when=when, kind=event.kind, pre_tokens=event.pre_tokens, failure=event.reason
                )


def _make_head(request: RecordedRequest, tenant: str) -> RequestHead:
    """The recorded headers, with the tenant in place of every credential."""
    kept = [(name, value) for name, value in request.headers if name.lower() not in _CREDENTIALS]
    headers = [*kept, (hdrs.AUTHORIZATION, f"Bearer {tenant}")]
    raw = tuple(
        (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers
    )
    return RequestHead(hdrs.METH_POST, request.path, CIMultiDictProxy(CIMultiDict(headers)), raw)


def _make_run(turn: Turn, plan: Plan, measured: Measured) -> RequestRun:
    thresholds, conversation = turn.thresholds, turn.received.conversation
    return RequestRun(
        conversation=turn.conversation_id,
        purpose=turn.purpose,
        model=turn.model,
        messages=len(conversation.messages),
        size_bytes=len(turn.raw_body),
        plan=plan.name,
        estimated_received=plan.received,
        estimated_sent=plan.sent,
        received=measured.received,
        sent=measured.sent,
        received_cached=measured.received_cached,
        sent_cached=measured.sent_cached,
        cache_read=measured.use.read,
        cache_written=measured.use.written,
        environment=measured.environment,
        floor=measured.floor,
        covers=plan.pivot.covers if plan.pivot is not None else 0,
        change=measured.change,
        is_rewritten=measured.is_rewritten,
        window=thresholds.window if thresholds is not None else None,
        soft=thresholds.soft if thresholds is not None else None,
        hard=thresholds.hard if thresholds is not None else None,
        warning=plan.warning,
        pruned=tuple(mark.position for mark in plan.new_batch.marks) if plan.new_batch is not None else (),
    )


def _count_reply(wire_format: Format, counter: TextCounter, raw: bytes) -> int:
    """Tokens of a message or an item of a reply; 0 if it is not understood."""
    try:
        return take_all_steps(measure_message(wire_format.parse_entry, counter, raw)).tokens
    except (Unreadable, UnicodeError, *JSON_ERRORS):
        return 0


@asynccontextmanager
async def open_gateways(choices: Mapping[str, Settings]) -> AsyncIterator[Sequence[ReplayGateway]]:
    """choices: the settings of each policy, by its name. All share one process: what is counted once for
    a message is known to all of them, while everything else belongs to its settings or to a tenant.
    """
    process = Process(next(iter(choices.values())), lanes=InlineLanes())
    process.plugins = ()
    await process.stores.open()
    await process.tokenizer.load()
    with process.bus.subscribe() as events:
        gateways = [_make_gateway(name, settings, process, events) for name, settings in choices.items()]
        try:
            yield gateways
        finally:
            await process.running.tasks.close()
            await _close(process)


def _make_gateway(name: str, settings: Settings, process: Process, events: Subscription) -> ReplayGateway:
    summaries = OfflineSummaries()
    relay = OfflineRelay(settings, process.budget, process.client)
    serving = Serving(settings, process, relay=relay, calls=summaries)
    return ReplayGateway(
        name=name,
        serving=serving,
        tasks=process.running.tasks,
        summaries=summaries,
        events=events,
        sizer=process.sizer,
        counters=make_counters(process.tokenizer),
        prices=serving.prices,
    )


async def _close(process: Process) -> None:
    await process.log_writer.finish()
    await process.archive.finish()
    await process.search.close()
    await process.sessions.finish()
    await process.client.close()
    await process.stores.close()
    process.lanes.close()
