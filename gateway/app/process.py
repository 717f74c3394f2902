"""What lives as long as the process: bounds, stores, state, caches, reporting and compactions in progress.

A reload keeps all of it, so what sizes it is applied at the next start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.activity.book import ActivityBook
from gateway.activity.keeper import ActivityKeeper
from gateway.activity.prices import load_price_table
from gateway.bounds.background import BackgroundTasks, Slots
from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget
from gateway.compaction.running import RunningCompactions
from gateway.conversations.body_reader import BodyReader
from gateway.conversations.recognizer import Recognizer
from gateway.conversations.registry import Registry
from gateway.conversations.stored_responses import StoredResponses
from gateway.conversations.thread_sizes import ThreadSizes
from gateway.core.money import Price
from gateway.core.policy import Estimator
from gateway.hooks import Plugin, load_plugins
from gateway.http.client import Client
from gateway.limits.model_table import ModelTable
from gateway.mcp.library import McpLibrary
from gateway.originals.archive import OriginalsArchive, Removals
from gateway.originals.index import OriginalsIndex, make_index
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.outgoing.rewriter import Rewriter
from gateway.pipeline.name_guard import NameGuard
from gateway.planning.message_sizes import Sizer, TextCounter
from gateway.planning.tokenizer import Tokenizer, count_by_length, count_by_length_up
from gateway.purge import Purge
from gateway.reporting.activity_feed import PERIOD_SECONDS, ActivityFeed, take_rows
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.reporter import Reporter
from gateway.sessions.diffs import DiffStore
from gateway.sessions.keeper import SessionKeeper
from gateway.settings import Settings, Traces
from gateway.state import State, make_state, make_storage
from gateway.state.named_turns import NamedTurns
from gateway.state.single import LeaseTimes
from gateway.store import interface
from gateway.store.keys import make_tag
from gateway.store.stores import StoreBounds, Stores, make_stores
from gateway.store.timed import time_stores
from gateway.tenants.budget import SummaryBudget
from gateway.tenants.ledger import Ledger
from gateway.tenants.quota import QuotaGate
from gateway.wire.body import BodyBounds

if TYPE_CHECKING:
    from gateway.traces import Tracer

# Counts of forty thousand messages: all that hundreds of conversations near their thresholds hold.
_SIZES_BYTES: Final = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Periods:
    """Of background work, in seconds. They are no settings: an operator has no reason to change one. Whoever
    starts many gateways, one after the other, can have them wait for less.

    lease: of compactions. activity_round: how often what conversations did is looked through.
    activity_pause: between two writes of one conversation. feed: between two events for those who watch.
    """

    lease: LeaseTimes = field(default_factory=LeaseTimes)
    activity_round: float = 1.0
    activity_pause: float = 5.0
    feed: float = PERIOD_SECONDS


USUAL_PERIODS: Final = Periods()


@dataclass(frozen=True, kw_only=True)
class ReadingParts:
    """How bodies are read, counted and rewritten: with caches of what was seen before."""

    tokenizer: Tokenizer
    sizer: Sizer
    reader: BodyReader
    names: NameGuard
    rewriter: FairRewriter
    thread_sizes: ThreadSizes

    def clear(self) -> None:
        """All bodies of all tenants: they are read again when they come."""
        self.reader.clear()
        self.rewriter.clear()
        self.thread_sizes.clear()


@dataclass(frozen=True, kw_only=True)
class QuotaParts:
    """What limits tenants, and the counts behind it."""

    ledger: Ledger
    gate: QuotaGate
    summaries: SummaryBudget


@dataclass(frozen=True, kw_only=True)
class Process:
    """Bounds, stores, state and reporting, which all other packages use."""

    lanes: Lanes
    budget: MemoryBudget
    stores: Stores
    state: State
    log_writer: CompactionLogWriter
    archive: OriginalsArchive
    # Over the originals: see `originals.search`.
    search: OriginalsIndex
    sessions: SessionKeeper
    metrics: Metrics
    bus: Bus
    activity: ActivityBook
    price_table: Mapping[str, Price]
    keeper: ActivityKeeper
    feed: ActivityFeed
    reporter: Reporter
    registry: Registry
    table: ModelTable
    reading: ReadingParts
    running: RunningCompactions
    # Questions to upstreams about themselves, which no request waits for.
    asking: BackgroundTasks
    plugins: Sequence[Plugin]
    # All that reaches an upstream or a webhook.
    client: Client
    quotas: QuotaParts
    purge: Purge
    named: NamedTurns
    mcp: McpLibrary = field(default_factory=McpLibrary)
    # None where traces are off.
    tracer: "Tracer | None"

    def begin(self) -> None:
        """Once, when everything is constructed."""
        self.reporter.use_sessions(self.sessions)
        if self.tracer is not None:
            self.reporter.use_tracer(self.tracer)

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory, and nothing more is made for it."""
        self.running.cancel(tag)
        self.search.forget(tag)
        self.archive.forget(tag)
        self.registry.forget(tag)
        self.activity.forget(tag)
        self.sessions.forget(tag)
        self.reading.clear()

    def forget_conversation(self, tag: str, conversation_id: str) -> None:
        """It leaves memory, and nothing more is made for it."""
        self.running.cancel_conversation(conversation_id)
        known = self.activity.find(conversation_id)
        if known is not None and make_tag(known.owner) == tag:
            self.activity.forget_conversation(known.owner, conversation_id)
        self.registry.forget_conversation(conversation_id)
        self.archive.forget(tag, conversation_id)
        self.search.forget_conversation(tag, conversation_id)
        self.sessions.forget_conversation(tag, conversation_id)
        self.reading.clear()


def build_process(
    settings: Settings,
    stores: Stores | None = None,
    lanes: Lanes | None = None,
    periods: Periods = USUAL_PERIODS,
    *,
    is_alone: bool = True,
) -> Process:
    """stores: None for those that the settings name. lanes: where nothing else waits for the event loop, work
    need not go through threads. is_alone: no other process serves the same clients. Raises StoreError.
    """
    stores = stores or build_stores(settings)
    metrics, bus, lanes, keep_seconds = Metrics(), Bus(), lanes or Lanes(), settings.retention.seconds
    timed = time_stores(stores, metrics.note_store)
    state = build_state(settings, timed, periods, is_alone=is_alone)
    log_writer, removals = CompactionLogWriter(timed.state, keep_seconds), Removals(timed.state, keep_seconds)
    search = make_index(settings, removals, timed.originals, client := Client())
    archive = OriginalsArchive(removals, timed.originals, keep_seconds, search.note_kept)
    activity, sessions = ActivityBook(settings.cache.activity_bytes), build_sessions(settings, timed, lanes)
    named = NamedTurns(timed.state, timed.named, keep_seconds)
    process = Process(
        lanes=lanes,
        budget=MemoryBudget(settings.bounds.bodies_bytes),
        stores=stores,
        state=state,
        log_writer=log_writer,
        archive=archive,
        search=search,
        sessions=sessions,
        metrics=metrics,
        bus=bus,
        activity=activity,
        price_table=load_price_table(),
        keeper=build_keeper(activity, timed.state, keep_seconds, periods),
        feed=ActivityFeed(bus, partial(take_rows, activity), periods.feed),
        reporter=Reporter(metrics, bus, log_writer, archive, activity),
        registry=Registry(settings.cache.bodies_bytes, settings.cache.bodies),
        table=ModelTable.load(),
        reading=build_reading(settings, state, named, lanes),
        running=build_running(settings),
        asking=BackgroundTasks("question to an upstream"),
        plugins=load_plugins(),
        client=client,
        quotas=build_quotas(timed.state, metrics),
        purge=Purge(timed, search, sessions.drop_titles),
        named=named,
        tracer=build_tracer(settings.traces),
    )
    process.begin()
    return process


def build_stores(settings: Settings) -> Stores:
    """Not opened yet. Raises StoreError for a store that this build does not know."""
    retention = settings.retention
    bounds = StoreBounds(
        originals_bytes=retention.originals_bytes,
        named_bytes=retention.named_bytes,
        keep_seconds=retention.seconds,
    )
    return make_stores(settings.store, bounds)


def build_state(settings: Settings, stores: Stores, periods: Periods, *, is_alone: bool) -> State:
    storage = make_storage(stores.state, settings.retention.seconds, settings.cache.records_bytes)
    return make_state(storage, periods.lease, is_alone=is_alone)


def build_keeper(
    activity: ActivityBook, store: interface.Store, keep_seconds: float, periods: Periods
) -> ActivityKeeper:
    round_seconds, pause_seconds = periods.activity_round, periods.activity_pause
    return ActivityKeeper(
        activity, store, keep_seconds, round_seconds=round_seconds, pause_seconds=pause_seconds
    )


def build_sessions(settings: Settings, stores: Stores, lanes: Lanes) -> SessionKeeper:
    diffs, max_bytes = DiffStore(stores.originals), settings.cache.sessions_bytes
    return SessionKeeper(stores.state, diffs, lanes, settings.retention.seconds, max_bytes)


def build_tracer(settings: Traces) -> "Tracer | None":
    if settings.endpoint is None:
        return None
    from gateway.traces import Tracer  # its libraries are an extra

    return Tracer(settings)


def build_running(settings: Settings) -> RunningCompactions:
    return RunningCompactions(Slots(settings.bounds.summaries, settings.bounds.summaries_per_tenant))


def build_quotas(store: interface.Store, metrics: Metrics) -> QuotaParts:
    ledger = Ledger(store)
    return QuotaParts(
        ledger=ledger,
        gate=QuotaGate(ledger, metrics.count_limited_request),
        summaries=SummaryBudget(ledger, metrics.count_unaffordable_summary),
    )


def build_reading(settings: Settings, state: State, named: NamedTurns, lanes: Lanes) -> ReadingParts:
    cache, body_bounds = settings.cache, _make_body_bounds(settings)
    tokenizer = Tokenizer()
    counters: dict[Estimator, TextCounter] = {
        "tiktoken": tokenizer.count,
        "chars": count_by_length,
        "chars-up": count_by_length_up,
    }
    recognizer = Recognizer(cache.bodies_bytes, cache.facts_bytes, cache.bodies, body_bounds)
    stored = StoredResponses(recognizer, named, cache.named_bytes, settings.listen.max_body_bytes)
    return ReadingParts(
        tokenizer=tokenizer,
        sizer=Sizer(counters, _SIZES_BYTES, lanes),
        reader=BodyReader(recognizer, stored, lanes),
        names=NameGuard(state.owned_names, lanes, body_bounds),
        rewriter=FairRewriter(Rewriter(cache.facts_bytes), lanes),
        thread_sizes=ThreadSizes(),
    )


def _make_body_bounds(settings: Settings) -> BodyBounds:
    bounds = settings.bounds
    return BodyBounds(
        messages=bounds.messages, fields=bounds.fields, values=bounds.values, depth=bounds.depth
    )
