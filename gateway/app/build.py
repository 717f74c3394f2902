"""What depends on settings that can be reloaded, over a process that stays.

Requests under way finish with what they began with. Opens nothing and starts nothing.
"""

from dataclasses import dataclass

from gateway.activity.prices import PriceList, make_price_list
from gateway.app.process import Process
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
from gateway.hooks import Hooks, Webhook
from gateway.http.target import Upstreams
from gateway.limits.book import LimitsBook
from gateway.limits.discovery import Discovery, StartCheck
from gateway.limits.model_lists import ModelLists
from gateway.mcp.endpoint import McpEndpoint
from gateway.mcp.tools import HistoryTools
from gateway.outgoing.call_maker import CallMaker
from gateway.pipeline.admission import Admission
from gateway.pipeline.array_view import ArrayView
from gateway.pipeline.commands import Commands
from gateway.pipeline.count_tokens import CountTokens
from gateway.pipeline.first_seen import FirstSeen
from gateway.pipeline.overflow_retry import OverflowRetry
from gateway.pipeline.planning_step import PlanningStep
from gateway.pipeline.proxy import Proxy
from gateway.pipeline.question_recall import QuestionRecall
from gateway.pipeline.relay import Relay
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.pipeline.unknown_threads import UnknownThreads
from gateway.planning.learning import Learner
from gateway.planning.planner import Planner
from gateway.settings import BUILT_IN_UPSTREAMS, Settings, UpstreamSettings
from gateway.tenants import Policies, Tenancy


@dataclass(frozen=True, kw_only=True)
class Outside:
    """All that sends something to an upstream. A replay puts stand-ins here, and decides nothing itself."""

    relay: Relay
    calls: SummaryCalls


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What depends on settings that can be reloaded. Nothing in it is opened or closed: it is gone with the
    last request that began with it.
    """

    settings: Settings
    # What upstreams have said about their models.
    lists: ModelLists
    prices: PriceList
    # Of upstreams that an earlier one did not have.
    start_check: StartCheck
    hooks: Hooks
    job: CompactionJob
    manual: ManualCompaction
    editor: SummaryEditor
    proxy: Proxy
    arrays: ArrayView
    # None where the settings leave `/mcp` to the upstream.
    mcp: McpEndpoint | None


@dataclass(frozen=True, kw_only=True)
class _Planning:
    limits: LimitsBook
    planner: Planner
    learner: Learner


@dataclass(frozen=True, kw_only=True)
class _Compaction:
    compactor: Compactor
    job: CompactionJob
    manual: ManualCompaction
    # Makes the bodies of requests, and of the summaries that ride on them.
    calls: CallMaker


def build(
    settings: Settings, process: Process, before: Serving | None = None, outside: Outside | None = None
) -> Serving:
    """before: the one that this one follows.

    outside: in place of what reaches the upstreams of the settings.
    """
    outside = outside or build_outside(settings, process)
    lists = _keep_lists(settings, before)
    planning = build_planning(settings, process, lists)
    hooks, calls = build_hooks(settings, process), CallMaker(process.reading.rewriter)
    summarizer = build_summarizer(settings, process, planning.limits, hooks, calls, outside.calls)
    compaction = build_compaction(process, planning, summarizer, calls)
    prices = make_price_list(settings, process.price_table)
    sizer = process.reading.sizer
    return Serving(
        settings=settings,
        lists=lists,
        prices=prices,
        start_check=StartCheck(_find_unchecked(settings, before), process.client),
        hooks=hooks,
        job=compaction.job,
        manual=compaction.manual,
        editor=SummaryEditor(process.state, planning.planner, sizer, process.reporter),
        proxy=build_proxy(settings, outside.relay, process, planning, compaction, prices),
        arrays=ArrayView(planning.planner, process.reading.rewriter, process.budget),
        mcp=build_mcp(settings, process) if settings.mcp else None,
    )


def _find_changed(settings: Settings, before: Serving | None) -> list[UpstreamSettings]:
    earlier = before.settings.upstreams if before is not None else {}
    return [each for name, each in settings.upstreams.items() if each != earlier.get(name)]


def _find_unchecked(settings: Settings, before: Serving | None) -> list[UpstreamSettings]:
    """The built-in addresses are right, and a start needs no network for them."""
    known = {section["base_url"] for section in BUILT_IN_UPSTREAMS.values()}
    changed = _find_changed(settings, before)
    return [each for each in changed if each.discover and each.base_url not in known]


def _keep_lists(settings: Settings, before: Serving | None) -> ModelLists:
    """Those of upstreams that have not changed."""
    if before is None:
        return ModelLists()
    changed = {each.name for each in _find_changed(settings, before)}
    return before.lists.of_upstreams(settings.upstreams.keys() - changed)


def build_outside(settings: Settings, process: Process) -> Outside:
    calls = PaidCalls(
        SummaryClient(process.client), process.quotas.summaries, process.metrics, process.tracer
    )
    return Outside(relay=Relay(settings, process.budget, process.client, process.tracer), calls=calls)


def build_planning(settings: Settings, process: Process, lists: ModelLists) -> _Planning:
    state, sizer = process.state, process.reading.sizer
    limits = LimitsBook(settings, lists, process.table, state.calibrations)
    return _Planning(
        limits=limits,
        planner=Planner(state, sizer, process.lanes),
        learner=Learner(state.calibrations, sizer, limits, process.reporter),
    )


def build_hooks(settings: Settings, process: Process) -> Hooks:
    """Webhooks in the order of the settings file, then the installed plugins."""
    targets, plugins, client = settings.hooks, process.plugins, process.client
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


def build_summarizer(
    settings: Settings,
    process: Process,
    limits: LimitsBook,
    hooks: Hooks,
    maker: CallMaker,
    calls: SummaryCalls,
) -> Summarizer:
    """maker: of the bodies of requests, and of the summaries that ride on them."""
    models, lanes, sizer = SummaryModels(), process.lanes, process.reading.sizer
    builder = SummaryCallBuilder(Upstreams(settings), limits, sizer, models, lanes)
    rides = RideBuilder(process.state, maker, sizer, lanes)
    return Summarizer(calls, CallBuilders(builder, rides), models, sizer, PivotMaker(sizer, lanes), hooks)


def build_compaction(
    process: Process, planning: _Planning, summarizer: Summarizer, calls: CallMaker
) -> _Compaction:
    state, reporter, planner = process.state, process.reporter, planning.planner
    pivots = PivotMaker(process.reading.sizer, process.lanes)
    job = CompactionJob(state, summarizer, pivots, reporter, process.running)
    compactor = Compactor(state, planner, planning.learner, job, reporter, process.budget)
    manual = ManualCompaction(state, planner, compactor, reporter)
    return _Compaction(compactor=compactor, job=job, manual=manual, calls=calls)


def build_sender(
    settings: Settings, relay: Relay, process: Process, learner: Learner, compaction: _Compaction
) -> Sender:
    return Sender(
        shows_headers=settings.response_headers,
        activity=process.activity,
        calls=compaction.calls,
        relay=relay,
        compactor=compaction.compactor,
        registry=process.registry,
        time=process.registry.time,
        learner=learner,
        reporter=process.reporter,
    )


def build_proxy(
    settings: Settings,
    relay: Relay,
    process: Process,
    planning: _Planning,
    compaction: _Compaction,
    prices: PriceList,
) -> Proxy:
    planner, learner, compactor = planning.planner, planning.learner, compaction.compactor
    reading, state = process.reading, process.state
    discovery = Discovery(planning.limits, process.client, process.asking)
    turns = TurnBuilder(Policies(settings), reading.reader, planning.limits, discovery, state, prices)
    sender = build_sender(settings, relay, process, learner, compaction)
    recall = QuestionRecall(process.search, state.recalls, process.lanes, reading.sizer, process.metrics)
    planning_step = PlanningStep(settings, planner, compactor, compaction.job, compaction.manual, recall)
    return Proxy(
        settings=settings,
        memory=process.budget,
        lanes=process.lanes,
        admission=Admission(settings, Tenancy(settings), Upstreams(settings)),
        gate=process.quotas.gate,
        names=reading.names,
        sessions=process.sessions,
        turns=turns,
        commands=Commands(settings, compaction.manual),
        count_tokens=CountTokens(turns, planner, reading.rewriter, relay),
        planning=planning_step,
        sender=sender,
        overflow_retry=OverflowRetry(planning_step, sender, learner, process.reporter),
        unknown_threads=UnknownThreads(reading.reader, turns, reading.thread_sizes, reading.names, relay),
        relay=relay,
        metrics=process.metrics,
        first_seen=FirstSeen(planning.limits),
        tracer=process.tracer,
    )


def build_mcp(settings: Settings, process: Process) -> McpEndpoint:
    archive = process.archive

    async def has_originals(tag: str, conversation_id: str) -> bool:
        return bool((await archive.load_lists(tag, conversation_id, 1)).lists)

    return McpEndpoint(
        settings=settings,
        tenancy=Tenancy(settings),
        gate=process.quotas.gate,
        memory=process.budget,
        lanes=process.lanes,
        metrics=process.metrics,
        tools=HistoryTools(process.search, has_originals, process.metrics),
        library=process.mcp,
    )
