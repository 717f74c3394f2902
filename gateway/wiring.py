"""Constructs everything a gateway consists of, one builder per package. Opens nothing and starts nothing."""

from dataclasses import dataclass

import httpx2 as httpx

from gateway.admin.event_stream import EventStream
from gateway.admin.pages import AdminPages, PageSources
from gateway.admin.server import AdminServer
from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.bounds.slots import Slots
from gateway.compaction.compactor import Compactor
from gateway.compaction.job import CompactionJob
from gateway.compaction.manual import ManualCompaction
from gateway.compaction.pivots import PivotMaker
from gateway.compaction.summarizer import Summarizer
from gateway.compaction.summary_client import SummaryClient, SummaryModels
from gateway.compaction.summary_prompt import SummaryCallBuilder
from gateway.conversations.body_reader import BodyReader
from gateway.conversations.recognizer import Recognizer
from gateway.conversations.registry import Registry
from gateway.conversations.stored_responses import StoredResponses
from gateway.conversations.thread_sizes import ThreadSizes
from gateway.core.policy import Estimator
from gateway.hooks import Hooks
from gateway.hooks.plugin import load_plugins
from gateway.hooks.webhook import Webhook
from gateway.limits.book import LimitsBook
from gateway.limits.discovery import Discovery
from gateway.limits.model_lists import ModelLists
from gateway.limits.model_table import ModelTable
from gateway.limits.start_check import StartCheck
from gateway.pipeline.admission import Admission
from gateway.pipeline.commands import Commands
from gateway.pipeline.count_tokens import CountTokens
from gateway.pipeline.fair_rewriter import FairRewriter
from gateway.pipeline.name_guard import NameGuard
from gateway.pipeline.overflow_retry import OverflowRetry
from gateway.pipeline.planning_step import PlanningStep
from gateway.pipeline.proxy import Proxy
from gateway.pipeline.relay import Relay
from gateway.pipeline.request_log import RequestLog
from gateway.pipeline.rewriter import Rewriter
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.pipeline.unknown_threads import UnknownThreads
from gateway.planning.learning import Learner
from gateway.planning.message_sizes import Sizer, TextCounter
from gateway.planning.planner import Planner
from gateway.planning.tokenizer import Tokenizer, count_by_length, count_by_length_up
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.originals import OriginalsArchive
from gateway.reporting.reporter import Reporter
from gateway.settings import BUILT_IN_UPSTREAMS, Settings
from gateway.state import State, make_state
from gateway.state.record_cache import Storage
from gateway.store import Store, find_directory, open_bounded_store, open_store
from gateway.tenants import Policies, Tenancy
from gateway.upstream.internal_client import open_client
from gateway.upstream.target import Upstreams
from gateway.wire.structure import BodyBounds

# Counts of forty thousand messages: all that hundreds of conversations near their thresholds hold.
_SIZES_BYTES = 16 << 20
# The directory of the originals, beside the state.
_ORIGINALS_NAME = "originals"
# That of the threads and responses that requests only name.
_NAMED_NAME = "named"


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """Bounds, stores, state and reporting, which all other packages use."""

    lanes: Lanes
    slots: Slots
    budget: MemoryBudget
    store: Store
    originals_store: Store
    named_store: Store
    state: State
    log_writer: CompactionLogWriter
    archive: OriginalsArchive
    metrics: Metrics
    bus: Bus
    reporter: Reporter
    registry: Registry


@dataclass(frozen=True, kw_only=True)
class LimitParts:
    table: ModelTable
    book: LimitsBook
    discovery: Discovery
    start_check: StartCheck


@dataclass(frozen=True, kw_only=True)
class Planning:
    tokenizer: Tokenizer
    sizer: Sizer
    planner: Planner
    learner: Learner


@dataclass(frozen=True, kw_only=True)
class Compaction:
    job: CompactionJob
    compactor: Compactor
    manual: ManualCompaction


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    relay: Relay
    proxy: Proxy


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that `app` opens, uses and closes."""

    foundation: Foundation
    planning: Planning
    hooks: Hooks
    client: httpx.AsyncClient
    table: ModelTable
    discovery: Discovery
    start_check: StartCheck
    compactor: Compactor
    pipeline: Pipeline
    admin: AdminServer


def build(settings: Settings) -> Parts:
    """Raises StoreError for a store that this build does not know."""
    client = open_client()
    foundation = build_foundation(settings)
    limits = build_limits(settings, foundation, client)
    planning = build_planning(foundation, limits)
    hooks = build_hooks(settings, client)
    summarizer = build_summarizer(settings, foundation, limits, planning, hooks, client)
    compaction = build_compaction(foundation, planning, summarizer)
    relay = Relay(settings, foundation.budget)
    return Parts(
        foundation=foundation,
        planning=planning,
        hooks=hooks,
        client=client,
        table=limits.table,
        discovery=limits.discovery,
        start_check=limits.start_check,
        compactor=compaction.compactor,
        pipeline=build_pipeline(settings, relay, foundation, limits, planning, compaction),
        admin=build_admin(settings, foundation, compaction),
    )


def build_foundation(settings: Settings) -> Foundation:
    retention = settings.retention
    store = open_store(settings.store)
    originals_store = open_bounded_store(settings.store, _ORIGINALS_NAME, retention.originals_bytes)
    # Without a disk they are kept in memory once, by the caches.
    named_bytes = retention.named_bytes if find_directory(settings.store) is not None else 0
    named_store = open_bounded_store(settings.store, _NAMED_NAME, named_bytes)
    storage = Storage(store=store, keep_seconds=retention.seconds, max_bytes=settings.cache.records_bytes)
    log_writer = CompactionLogWriter(store, retention.seconds)
    archive = OriginalsArchive(originals_store, retention.seconds)
    metrics, bus = Metrics(), Bus()
    return Foundation(
        lanes=Lanes(),
        slots=Slots(settings.bounds.summaries, settings.bounds.summaries_per_tenant),
        budget=MemoryBudget(settings.bounds.bodies_bytes),
        store=store,
        originals_store=originals_store,
        named_store=named_store,
        state=make_state(storage, named_store),
        log_writer=log_writer,
        archive=archive,
        metrics=metrics,
        bus=bus,
        reporter=Reporter(metrics, bus, log_writer, archive),
        registry=Registry(settings.cache.bodies_bytes, settings.cache.bodies),
    )


def build_limits(settings: Settings, foundation: Foundation, client: httpx.AsyncClient) -> LimitParts:
    table = ModelTable.load()
    book = LimitsBook(settings, ModelLists(), table, foundation.state.calibrations)
    # The built-in addresses are right, and a start needs no network for them.
    known = {section["base_url"] for section in BUILT_IN_UPSTREAMS.values()}
    asked = [each for each in settings.upstreams.values() if each.discover and each.base_url not in known]
    return LimitParts(
        table=table, book=book, discovery=Discovery(book, client), start_check=StartCheck(asked, client)
    )


def build_planning(foundation: Foundation, limits: LimitParts) -> Planning:
    tokenizer = Tokenizer()
    counters: dict[Estimator, TextCounter] = {
        "tiktoken": tokenizer.count,
        "chars": count_by_length,
        "chars-up": count_by_length_up,
    }
    sizer = Sizer(counters, _SIZES_BYTES, foundation.lanes)
    return Planning(
        tokenizer=tokenizer,
        sizer=sizer,
        planner=Planner(foundation.state, sizer, foundation.lanes),
        learner=Learner(foundation.state.calibrations, sizer, limits.book, foundation.reporter),
    )


def build_hooks(settings: Settings, client: httpx.AsyncClient) -> Hooks:
    """Webhooks in the order of the settings file, then the installed plugins."""
    targets, plugins = settings.hooks, load_plugins()
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
    foundation: Foundation,
    limits: LimitParts,
    planning: Planning,
    hooks: Hooks,
    client: httpx.AsyncClient,
) -> Summarizer:
    models, lanes = SummaryModels(), foundation.lanes
    builder = SummaryCallBuilder(Upstreams(settings), limits.book, planning.sizer, models, lanes)
    pivots = PivotMaker(planning.sizer, lanes)
    return Summarizer(SummaryClient(client), builder, models, planning.sizer, pivots, hooks)


def build_compaction(foundation: Foundation, planning: Planning, summarizer: Summarizer) -> Compaction:
    state, reporter, planner = foundation.state, foundation.reporter, planning.planner
    job = CompactionJob(
        state, summarizer, PivotMaker(planning.sizer, foundation.lanes), reporter, foundation.slots
    )
    compactor = Compactor(state, planner, planning.learner, job, reporter, foundation.budget)
    manual = ManualCompaction(state, planner, compactor, reporter)
    return Compaction(job=job, compactor=compactor, manual=manual)


def build_pipeline(
    settings: Settings,
    relay: Relay,
    foundation: Foundation,
    limits: LimitParts,
    planning: Planning,
    compaction: Compaction,
) -> Pipeline:
    cache, planner, compactor = settings.cache, planning.planner, compaction.compactor
    body_bounds = _make_body_bounds(settings)
    recognizer = Recognizer(cache.bodies_bytes, cache.facts_bytes, cache.bodies, body_bounds)
    stored = StoredResponses(
        recognizer, foundation.state.named_turns, cache.named_bytes, settings.listen.max_body_bytes
    )
    reader = BodyReader(recognizer, stored, foundation.lanes)
    turns = TurnBuilder(Policies(settings), reader, limits.book, limits.discovery, foundation.state)
    rewriter = FairRewriter(Rewriter(cache.facts_bytes), foundation.lanes)
    learner = planning.learner
    sender = Sender(settings, rewriter, relay, compactor, foundation.registry, learner)
    planning_step = PlanningStep(
        settings, planner, compactor, compaction.job, compaction.manual, foundation.state.tasks
    )
    names = NameGuard(foundation.state.owned_names, foundation.lanes, body_bounds)
    proxy = Proxy(
        settings=settings,
        memory=foundation.budget,
        lanes=foundation.lanes,
        admission=Admission(settings, Tenancy(settings), Upstreams(settings)),
        names=names,
        turns=turns,
        commands=Commands(settings, compaction.manual),
        count_tokens=CountTokens(turns, planner, rewriter, relay),
        planning=planning_step,
        sender=sender,
        overflow_retry=OverflowRetry(planning_step, sender, learner, foundation.reporter),
        unknown_threads=UnknownThreads(reader, turns, ThreadSizes(), names, relay),
        relay=relay,
        log=RequestLog(limits.book),
    )
    return Pipeline(relay=relay, proxy=proxy)


def _make_body_bounds(settings: Settings) -> BodyBounds:
    bounds = settings.bounds
    return BodyBounds(
        messages=bounds.messages, fields=bounds.fields, values=bounds.values, depth=bounds.depth
    )


def build_admin(settings: Settings, foundation: Foundation, compaction: Compaction) -> AdminServer:
    sources = PageSources(
        metrics=foundation.metrics,
        events=EventStream(foundation.bus),
        registry=foundation.registry,
        pivots=foundation.state.pivots,
        manual=compaction.manual,
        compaction_log=foundation.log_writer,
        originals=foundation.archive,
    )
    return AdminServer(settings.admin, AdminPages(sources))
