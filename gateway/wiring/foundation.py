"""What lives as long as the process: bounds, stores, state, caches, reporting and compactions in progress.

A reload keeps all of it, so what sizes it is applied at the next start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import httpx2 as httpx

from gateway.activity.book import ActivityBook
from gateway.activity.keeper import ActivityKeeper
from gateway.activity.prices import load_price_table, make_price_list
from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.bounds.slots import Slots
from gateway.compaction.running import RunningCompactions
from gateway.conversations.body_reader import BodyReader
from gateway.conversations.recall_places import RecallPlaces
from gateway.conversations.recognizer import Recognizer
from gateway.conversations.registry import Registry
from gateway.conversations.stored_responses import StoredResponses
from gateway.conversations.thread_sizes import ThreadSizes
from gateway.core.money import Price
from gateway.core.policy import Estimator
from gateway.hooks.plugin import Plugin, load_plugins
from gateway.limits.model_table import ModelTable
from gateway.mcp.library import McpLibrary
from gateway.originals.archive import OriginalsArchive
from gateway.originals.index import OriginalsIndex, make_index
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.outgoing.rewriter import Rewriter
from gateway.pipeline.name_guard import NameGuard
from gateway.planning.message_sizes import Sizer, TextCounter
from gateway.planning.tokenizer import Tokenizer, count_by_length, count_by_length_up
from gateway.purge.conversation import ConversationPurge
from gateway.purge.live import LivePurge
from gateway.purge.stored import PurgeCount
from gateway.quotas.gate import QuotaGate
from gateway.quotas.ledger import Backend, Ledger
from gateway.quotas.redis import ScriptRunner, make_redis_backend
from gateway.quotas.served import SERVICE, SupervisedStore, make_served_backend
from gateway.quotas.summary_budget import SummaryBudget
from gateway.reporting.activity_feed import ActivityFeed, take_rows
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.reporter import Reporter
from gateway.sessions.diffs import DiffStore
from gateway.sessions.keeper import SessionKeeper
from gateway.settings import Settings, Traces
from gateway.state import State, make_state
from gateway.state.conversation_traces import ConversationTraces
from gateway.state.record_cache import Storage
from gateway.store import Store
from gateway.store.keys import make_tag
from gateway.store.stores import Stores, make_stores
from gateway.store.timed import time_stores
from gateway.upstream.internal_client import open_client
from gateway.wire.structure import BodyBounds
from gateway.wiring.periods import USUAL_PERIODS, Periods

if TYPE_CHECKING:
    from gateway.traces.tracer import Tracer

# Counts of forty thousand messages: all that hundreds of conversations near their thresholds hold.
_SIZES_BYTES: Final = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ReadingParts:
    """How bodies are read, counted and rewritten: with caches of what was seen before."""

    tokenizer: Tokenizer
    sizer: Sizer
    reader: BodyReader
    names: NameGuard
    rewriter: FairRewriter
    places: RecallPlaces
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


@runtime_checkable
class HoldsWrites(Protocol):
    """A store whose writes may wait in this process for a long time."""

    def drop_unsent(self, tag: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Foundation:
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
    plugins: Sequence[Plugin]
    # For calls of our own: summaries, model lists, webhooks.
    client: httpx.AsyncClient
    quotas: QuotaParts
    purge: LivePurge
    mcp: McpLibrary = field(default_factory=McpLibrary)
    # None where traces are off.
    tracer: "Tracer | None"

    def begin(self, settings: Settings) -> None:
        """Once, when everything is constructed."""
        self.use_prices(settings)
        self.reporter.use_sessions(self.sessions)
        if self.tracer is not None:
            self.reporter.use_tracer(self.tracer)

    def use_prices(self, settings: Settings) -> None:
        """From now on; what was spent before stays as it was counted."""
        self.activity.use_prices(make_price_list(settings, self.price_table).find)

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory, and nothing more is made for it."""
        self.running.cancel(tag)
        for store in (self.stores.main, self.stores.originals, self.stores.named):
            if isinstance(store, HoldsWrites):
                store.drop_unsent(tag)
        self.search.forget(tag)
        self.state.forget(tag)
        self.registry.forget(tag)
        self.activity.forget(tag)
        self.sessions.forget(tag)
        self.reading.clear()

    def trace(self, tag: str, conversation_id: str) -> ConversationTraces:
        """What memory knows of a conversation of this tenant."""
        traces = self.state.trace(conversation_id)
        known = self.activity.find(conversation_id)
        if known is not None and make_tag(known.owner) == tag:
            noted = frozenset(note.key for note in known.summaries)
            traces = traces.join(ConversationTraces(pivots=noted))
        newest = self.registry.find_newest(conversation_id)
        if newest is not None and make_tag(newest.turn.owner) == tag:
            conversation = newest.turn.received.conversation
            links = frozenset(link.hex() for link in conversation.known_chain[1:])
            pivots = frozenset(pivot.key for pivot in self.state.pivots.list_on_chain(conversation))
            traces = traces.join(ConversationTraces(links=links, pivots=pivots))
        return traces

    async def delete_conversation(self, tag: str, conversation_id: str) -> PurgeCount:
        """Everything that a conversation has left, here, in the stores and in other processes.

        Raises StoreError.
        """
        traces = self.trace(tag, conversation_id)
        purge = ConversationPurge(tag=tag, conversation_id=conversation_id, traces=traces)
        return await self.purge.run_conversation(purge)

    def forget_conversation(self, tag: str, conversation_id: str) -> None:
        """It leaves memory, and nothing more is made for it."""
        traces = self.trace(tag, conversation_id)
        self.running.cancel_conversation(conversation_id)
        known = self.activity.find(conversation_id)
        if known is not None and make_tag(known.owner) == tag:
            self.activity.forget_conversation(known.owner, conversation_id)
        self.state.forget_conversation(tag, conversation_id, traces)
        self.registry.forget_conversation(conversation_id)
        self.archive.forget_conversation(conversation_id)
        self.search.forget_conversation(tag, conversation_id)
        self.sessions.forget_conversation(tag, conversation_id)
        self.reading.clear()

    def forget_pivot(self, tag: str, key: str) -> None:
        """One of a deleted conversation."""
        self.state.pivots.forget_some(tag, (key,), ())


def build_foundation(
    settings: Settings,
    stores: Stores | None = None,
    lanes: Lanes | None = None,
    periods: Periods = USUAL_PERIODS,
) -> Foundation:
    """stores: None for those that the settings name. lanes: where nothing else waits for the event loop, work
    need not go through threads.

    Raises StoreError for a store that this build does not know.
    """
    retention = settings.retention
    stores = stores or make_stores(
        settings.store, originals_bytes=retention.originals_bytes, named_bytes=retention.named_bytes
    )
    metrics, bus, lanes = Metrics(), Bus(), lanes or Lanes()
    timed, keep_seconds = time_stores(stores, metrics.note_store), retention.seconds
    state = build_state(settings, timed, periods)
    log_writer = CompactionLogWriter(timed.main, keep_seconds)
    search = make_index(settings, timed.originals, client := open_client())
    archive = OriginalsArchive(timed.originals, keep_seconds, search.note_kept)
    activity, sessions = ActivityBook(settings.cache.activity_bytes), build_sessions(settings, timed, lanes)
    foundation = Foundation(
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
        keeper=build_keeper(activity, stores.main, keep_seconds, periods),
        feed=ActivityFeed(bus, partial(take_rows, activity), periods.feed),
        reporter=Reporter(metrics, bus, log_writer, archive, activity),
        registry=Registry(settings.cache.bodies_bytes, settings.cache.bodies),
        table=ModelTable.load(),
        reading=build_reading(settings, state, lanes),
        running=build_running(settings),
        plugins=load_plugins(),
        client=client,
        quotas=build_quotas(stores.main, metrics),
        purge=LivePurge(stores, state.news, search, (log_writer, archive, sessions), periods.wait_purge),
        tracer=build_tracer(settings.traces),
    )
    foundation.begin(settings)
    return foundation


def build_state(settings: Settings, stores: Stores, periods: Periods) -> State:
    keep_seconds, max_bytes = settings.retention.seconds, settings.cache.records_bytes
    storage = Storage(store=stores.main, keep_seconds=keep_seconds, max_bytes=max_bytes)
    return make_state(storage, stores.named, periods.lease)


def build_keeper(book: ActivityBook, store: Store, keep_seconds: float, periods: Periods) -> ActivityKeeper:
    return ActivityKeeper(
        book,
        store,
        keep_seconds,
        round_seconds=periods.activity_round,
        pause_seconds=periods.activity_pause,
    )


def build_sessions(settings: Settings, stores: Stores, lanes: Lanes) -> SessionKeeper:
    diffs, max_bytes = DiffStore(stores.originals), settings.cache.sessions_bytes
    return SessionKeeper(stores.main, diffs, lanes, settings.retention.seconds, max_bytes)


def build_tracer(settings: Traces) -> "Tracer | None":
    if settings.endpoint is None:
        return None
    from gateway.traces.tracer import Tracer  # its libraries are an extra

    return Tracer(settings)


def build_running(settings: Settings) -> RunningCompactions:
    return RunningCompactions(Slots(settings.bounds.summaries, settings.bounds.summaries_per_tenant))


def build_quotas(store: Store, metrics: Metrics) -> QuotaParts:
    ledger = Ledger(_find_shared_counts(store))
    return QuotaParts(
        ledger=ledger, gate=QuotaGate(ledger, metrics), summaries=SummaryBudget(ledger, metrics)
    )


def _find_shared_counts(store: Store) -> Backend | None:
    """Where all processes count together; None if this is the only one."""
    if isinstance(store, SupervisedStore):
        return make_served_backend(partial(store.ask, SERVICE))
    return make_redis_backend(store) if isinstance(store, ScriptRunner) else None


def build_reading(settings: Settings, state: State, lanes: Lanes) -> ReadingParts:
    cache, body_bounds = settings.cache, _make_body_bounds(settings)
    tokenizer = Tokenizer()
    counters: dict[Estimator, TextCounter] = {
        "tiktoken": tokenizer.count,
        "chars": count_by_length,
        "chars-up": count_by_length_up,
    }
    places = RecallPlaces()
    recognizer = Recognizer(cache.bodies_bytes, cache.facts_bytes, cache.bodies, body_bounds)
    stored = StoredResponses(recognizer, state.named_turns, cache.named_bytes, settings.listen.max_body_bytes)
    return ReadingParts(
        tokenizer=tokenizer,
        sizer=Sizer(counters, _SIZES_BYTES, lanes),
        reader=BodyReader(recognizer, stored, lanes),
        names=NameGuard(state.owned_names, lanes, body_bounds),
        rewriter=FairRewriter(Rewriter(cache.facts_bytes, places), lanes),
        places=places,
        thread_sizes=ThreadSizes(),
    )


def _make_body_bounds(settings: Settings) -> BodyBounds:
    bounds = settings.bounds
    return BodyBounds(
        messages=bounds.messages, fields=bounds.fields, values=bounds.values, depth=bounds.depth
    )
