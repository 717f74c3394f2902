"""What depends on settings that can be reloaded, over a foundation that stays.

Requests under way finish on the generation that they began with.
"""

import asyncio
from dataclasses import dataclass

from gateway.activity.prices import make_price_list
from gateway.compaction.compactor import Compactor
from gateway.compaction.job import CompactionJob
from gateway.compaction.manual import ManualCompaction
from gateway.compaction.paid_calls import PaidCalls
from gateway.compaction.pivots import PivotMaker
from gateway.compaction.riding import RideBuilder
from gateway.compaction.summarizer import CallBuilders, Summarizer, SummaryCalls
from gateway.compaction.summary_client import SummaryClient, SummaryModels
from gateway.compaction.summary_editor import SummaryEditor
from gateway.compaction.summary_prompt import SummaryCallBuilder
from gateway.hooks import Hooks
from gateway.hooks.webhook import Webhook
from gateway.http.target import Upstreams
from gateway.limits.book import LimitsBook
from gateway.limits.discovery import Discovery
from gateway.limits.model_lists import ModelLists
from gateway.limits.start_check import StartCheck
from gateway.mcp.endpoint import McpEndpoint
from gateway.mcp.tools import HistoryTools
from gateway.outgoing.call_maker import CallMaker
from gateway.pipeline.admission import Admission
from gateway.pipeline.array_view import ArrayView
from gateway.pipeline.commands import Commands
from gateway.pipeline.count_tokens import CountTokens
from gateway.pipeline.outcomes import OutcomeRecorder
from gateway.pipeline.overflow_retry import OverflowRetry
from gateway.pipeline.plan_headers import PlanHeaders
from gateway.pipeline.planning_step import PlanningStep
from gateway.pipeline.proxy import Proxy
from gateway.pipeline.question_recall import QuestionRecall
from gateway.pipeline.recall_loop import RecallLoop
from gateway.pipeline.recall_search import RecallSearch
from gateway.pipeline.relay import Relay
from gateway.pipeline.request_log import RequestLog
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.pipeline.unknown_threads import UnknownThreads
from gateway.planning.learning import Learner
from gateway.planning.planner import Planner
from gateway.settings import BUILT_IN_UPSTREAMS, Settings
from gateway.tenants import Policies, Tenancy
from gateway.wiring.foundation import Foundation


@dataclass(frozen=True, kw_only=True)
class Outside:
    """All that sends something to an upstream. A replay puts stand-ins here, and decides nothing itself."""

    relay: Relay
    calls: SummaryCalls


@dataclass(frozen=True, kw_only=True)
class LimitParts:
    lists: ModelLists
    book: LimitsBook
    discovery: Discovery
    start_check: StartCheck


@dataclass(frozen=True, kw_only=True)
class Planning:
    planner: Planner
    learner: Learner


@dataclass(frozen=True, kw_only=True)
class Compaction:
    job: CompactionJob
    compactor: Compactor
    manual: ManualCompaction
    # Makes the bodies of requests, and of the summaries that ride on them.
    calls: CallMaker
    editor: SummaryEditor


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    relay: Relay
    proxy: Proxy
    arrays: ArrayView


class OpenRequests:
    """Counts the requests under way."""

    def __init__(self) -> None:
        self._count = 0
        # Made when the end is waited for: until then every request would set and clear it.
        self._is_over: asyncio.Event | None = None

    def begin(self) -> None:
        self._count += 1

    def end(self) -> None:
        self._count -= 1
        if not self._count and self._is_over is not None:
            self._is_over.set()

    async def finish(self) -> None:
        """Returns once there is none. Waited for once, when no more begin."""
        if self._count:
            self._is_over = asyncio.Event()
            await self._is_over.wait()


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Everything that is built anew when the settings are reloaded. requests: those that it serves."""

    settings: Settings
    requests: OpenRequests
    limits: LimitParts
    hooks: Hooks
    compaction: Compaction
    pipeline: Pipeline
    # None where the settings leave `/mcp` to the upstream.
    mcp: McpEndpoint | None


@dataclass
class Current:
    """The generation that new requests begin with. A reload replaces it by one assignment."""

    generation: Generation


def build_generation(
    settings: Settings,
    foundation: Foundation,
    before: Generation | None = None,
    outside: Outside | None = None,
) -> Generation:
    """before: the one that this one follows.

    outside: in place of what reaches the upstreams of the settings.
    """
    outside = outside or build_outside(settings, foundation)
    limits = build_limits(settings, foundation, before)
    planning = build_planning(foundation, limits)
    hooks = build_hooks(settings, foundation)
    calls = CallMaker(foundation.reading.rewriter)
    rides = build_rides(foundation, calls)
    summarizer = build_summarizer(settings, foundation, limits, hooks, outside.calls, rides)
    compaction = build_compaction(foundation, planning, summarizer, calls)
    return Generation(
        settings=settings,
        requests=OpenRequests(),
        limits=limits,
        hooks=hooks,
        compaction=compaction,
        pipeline=build_pipeline(settings, outside.relay, foundation, limits, planning, compaction),
        mcp=build_mcp(settings, foundation) if settings.mcp else None,
    )


def build_outside(settings: Settings, foundation: Foundation) -> Outside:
    calls = PaidCalls(
        SummaryClient(foundation.client), foundation.quotas.summaries, foundation.metrics, foundation.tracer
    )
    return Outside(relay=build_relay(settings, foundation), calls=calls)


def build_relay(settings: Settings, foundation: Foundation) -> Relay:
    if foundation.tracer is None:
        return Relay(settings, foundation.budget, foundation.client)
    from gateway.pipeline.traced_relay import TracedRelay

    return TracedRelay(settings, foundation.budget, foundation.client, foundation.tracer)


def build_limits(settings: Settings, foundation: Foundation, before: Generation | None = None) -> LimitParts:
    """Upstreams that have not changed are not checked again, and their model lists stay."""
    earlier = before.settings.upstreams if before is not None else {}
    changed = [each for name, each in settings.upstreams.items() if each != earlier.get(name)]
    unchanged = settings.upstreams.keys() - {each.name for each in changed}
    lists = before.limits.lists.of_upstreams(unchanged) if before is not None else ModelLists()
    book = LimitsBook(settings, lists, foundation.table, foundation.state.calibrations)
    # The built-in addresses are right, and a start needs no network for them.
    known = {section["base_url"] for section in BUILT_IN_UPSTREAMS.values()}
    asked = [each for each in changed if each.discover and each.base_url not in known]
    return LimitParts(
        lists=lists,
        book=book,
        discovery=Discovery(book, foundation.client),
        start_check=StartCheck(asked, foundation.client),
    )


def build_planning(foundation: Foundation, limits: LimitParts) -> Planning:
    state, sizer = foundation.state, foundation.reading.sizer
    return Planning(
        planner=Planner(state, sizer, foundation.lanes, foundation.reading.places),
        learner=Learner(state.calibrations, sizer, limits.book, foundation.reporter),
    )


def build_hooks(settings: Settings, foundation: Foundation) -> Hooks:
    """Webhooks in the order of the settings file, then the installed plugins."""
    targets, plugins, client = settings.hooks, foundation.plugins, foundation.client
    return Hooks(
        [
            *(Webhook(client, target) for target in targets.pre_compact),
            *(plugin for plugin in plugins if plugin.has("pre_compact")),
        ],
        [
            *(Webhook(client, target) for target in targets.session_start),
            *(plugin for plugin in plugins if plugin.has("session_start")),
        ],
    )


def build_rides(foundation: Foundation, calls: CallMaker) -> RideBuilder:
    return RideBuilder(foundation.state, calls, foundation.reading.sizer, foundation.lanes)


def build_summarizer(
    settings: Settings,
    foundation: Foundation,
    limits: LimitParts,
    hooks: Hooks,
    calls: SummaryCalls,
    rides: RideBuilder,
) -> Summarizer:
    models, lanes, sizer = SummaryModels(), foundation.lanes, foundation.reading.sizer
    builder = SummaryCallBuilder(Upstreams(settings), limits.book, sizer, models, lanes)
    pivots = PivotMaker(sizer, lanes)
    return Summarizer(calls, CallBuilders(builder, rides), models, sizer, pivots, hooks)


def build_compaction(
    foundation: Foundation, planning: Planning, summarizer: Summarizer, calls: CallMaker
) -> Compaction:
    state, reporter, planner = foundation.state, foundation.reporter, planning.planner
    pivots = PivotMaker(foundation.reading.sizer, foundation.lanes)
    job = CompactionJob(state, summarizer, pivots, reporter, foundation.running)
    compactor = Compactor(state, planner, planning.learner, job, reporter, foundation.budget)
    return Compaction(
        job=job,
        compactor=compactor,
        manual=ManualCompaction(state, planner, compactor, reporter),
        calls=calls,
        editor=SummaryEditor(state, planner, foundation.reading.sizer, reporter),
    )


def build_pipeline(
    settings: Settings,
    relay: Relay,
    foundation: Foundation,
    limits: LimitParts,
    planning: Planning,
    compaction: Compaction,
) -> Pipeline:
    planner, learner, compactor = planning.planner, planning.learner, compaction.compactor
    reading, state, calls = foundation.reading, foundation.state, compaction.calls
    prices = make_price_list(settings, foundation.price_table)
    turns = TurnBuilder(Policies(settings), reading.reader, limits.book, limits.discovery, state, prices)
    outcomes = OutcomeRecorder(compactor, foundation.registry, learner, foundation.reporter)
    search = RecallSearch(foundation.search, foundation.metrics)
    recalls = RecallLoop(relay, calls, search, compactor, outcomes, reading.sizer)
    headers = PlanHeaders(settings, foundation.activity)
    sender = Sender(headers, calls, relay, compactor, outcomes, recalls)
    recall = QuestionRecall(
        foundation.search, state.recalls, foundation.lanes, reading.sizer, foundation.metrics
    )
    planning_step = PlanningStep(settings, planner, compactor, compaction.job, compaction.manual, recall)
    proxy = Proxy(
        settings=settings,
        memory=foundation.budget,
        lanes=foundation.lanes,
        admission=Admission(settings, Tenancy(settings), Upstreams(settings)),
        gate=foundation.quotas.gate,
        names=reading.names,
        sessions=foundation.sessions,
        turns=turns,
        commands=Commands(settings, compaction.manual),
        count_tokens=CountTokens(turns, planner, reading.rewriter, relay),
        planning=planning_step,
        sender=sender,
        overflow_retry=OverflowRetry(planning_step, sender, learner, foundation.reporter),
        unknown_threads=UnknownThreads(reading.reader, turns, reading.thread_sizes, reading.names, relay),
        relay=relay,
        metrics=foundation.metrics,
        log=RequestLog(limits.book),
        tracer=foundation.tracer,
    )
    arrays = ArrayView(planner, reading.rewriter, foundation.budget)
    return Pipeline(relay=relay, proxy=proxy, arrays=arrays)


def build_mcp(settings: Settings, foundation: Foundation) -> McpEndpoint:
    archive = foundation.archive

    async def has_originals(tag: str, conversation_id: str) -> bool:
        return bool((await archive.load_lists(tag, conversation_id, 1)).lists)

    return McpEndpoint(
        settings=settings,
        tenancy=Tenancy(settings),
        gate=foundation.quotas.gate,
        memory=foundation.budget,
        lanes=foundation.lanes,
        metrics=foundation.metrics,
        tools=HistoryTools(foundation.search, has_originals, foundation.metrics),
        library=foundation.mcp,
    )
