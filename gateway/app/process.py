"""What lives as long as the process: bounds, stores, state, caches, reporting and compactions in progress.

A reload keeps all of it, so what sizes it is applied at the next start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.activity.book import ActivityBook
from gateway.activity.keeper import ActivityKeeper
from gateway.activity.prices import load_price_table
from gateway.bounds.background import BackgroundTasks, Slots
from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget
from gateway.compaction.flow import Running
from gateway.conversations.branches import Branches
from gateway.conversations.stored_responses import StoredResponses
from gateway.hooks import Plugin, load_plugins
from gateway.http.client import Client
from gateway.limits.book import ModelTable
from gateway.mcp.endpoint import McpLibrary
from gateway.originals.archive import OriginalsArchive, Removals
from gateway.originals.search import make_search
from gateway.pipeline.name_guard import NameGuard
from gateway.planning.message_sizes import Sizer, Tokenizer, make_counters
from gateway.planning.rewrite import Rewriter
from gateway.purge import Purge
from gateway.reporting.activity_feed import PERIOD_SECONDS, ActivityFeed, take_rows
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.reporter import Reporter
from gateway.sessions.keeper import SessionKeeper
from gateway.settings import Settings, Traces
from gateway.state import State
from gateway.state.cached import Storage
from gateway.state.named_turns import NamedTurns
from gateway.state.single import LeaseTimes
from gateway.store.interface import Store
from gateway.store.stores import make_stores, time_stores
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


class Process:
    """Bounds, stores, state, caches and reporting, which all other packages use.

    lanes: where nothing else waits for the event loop, work need not go through threads. is_alone: no other
    process serves the same clients. Raises StoreError.
    """

    def __init__(
        self,
        settings: Settings,
        lanes: Lanes | None = None,
        periods: Periods = USUAL_PERIODS,
        *,
        is_alone: bool = True,
    ) -> None:
        keep_seconds, cache, bounds = settings.retention.seconds, settings.cache, settings.bounds
        self.metrics, self.bus, self.lanes = Metrics(), Bus(), lanes or Lanes()
        self.budget = MemoryBudget(bounds.bodies_bytes)
        # All that reaches an upstream or a webhook.
        self.client = Client()
        self.stores = make_stores(
            settings.store,
            originals_bytes=settings.retention.originals_bytes,
            named_bytes=settings.retention.named_bytes,
            keep_seconds=keep_seconds,
        )
        timed = time_stores(self.stores, self.metrics.note_store)
        storage = Storage(timed.state, keep_seconds, cache.records_bytes)
        self.state = State(storage, periods.lease, is_alone=is_alone)
        self.log_writer = CompactionLogWriter(timed.state, keep_seconds)
        removals = Removals(timed.state, keep_seconds)
        # Over the originals: see `originals.search`.
        self.search = make_search(settings, removals, timed.originals)
        self.archive = OriginalsArchive(removals, timed.originals, keep_seconds, self.search.note_kept)
        self.sessions = SessionKeeper(
            timed.state, self.state.memory, self.lanes, keep_seconds, cache.sessions_bytes
        )
        self._make_activity(settings, timed.state, periods)
        self.reporter = Reporter(self.metrics, self.bus, self.log_writer, self.archive, self.activity)
        self.reporter.sessions = self.sessions
        self.table, self.price_table = ModelTable.load(), load_price_table()
        self.running = Running(Slots(bounds.summaries, bounds.summaries_per_tenant), self.budget)
        # Questions to upstreams about themselves, which no request waits for.
        self.asking = BackgroundTasks("question to an upstream")
        self.plugins: Sequence[Plugin] = load_plugins()
        self.ledger = Ledger(timed.state)
        self.gate = QuotaGate(self.ledger, self.metrics.count_limited_request)
        self.summaries = SummaryBudget(self.ledger)
        self.purge = Purge(timed, self.search, self.sessions.drop_titles)
        self.named = NamedTurns(timed.state, self.state.memory, timed.named, keep_seconds)
        self.mcp = McpLibrary()
        # None where traces are off.
        self.tracer = self.reporter.tracer = _make_tracer(settings.traces)
        self._make_readers(settings)

    def _make_activity(self, settings: Settings, store: Store, periods: Periods) -> None:
        self.activity = ActivityBook(settings.cache.activity_bytes)
        self.keeper = ActivityKeeper(
            self.activity,
            store,
            settings.retention.seconds,
            round_seconds=periods.activity_round,
            pause_seconds=periods.activity_pause,
        )
        self.feed = ActivityFeed(self.bus, partial(take_rows, self.activity), periods.feed)

    def _make_readers(self, settings: Settings) -> None:
        """How bodies are read, counted and rewritten: with caches of what was seen before."""
        cache, bounds = settings.cache, BodyBounds(messages=settings.bounds.messages)
        self.branches = Branches(self.state.memory, cache.bodies_bytes, cache.bodies, bounds)
        self.tokenizer = Tokenizer()
        self.sizer = Sizer(make_counters(self.tokenizer), _SIZES_BYTES, self.lanes, self.tokenizer)
        self.responses = StoredResponses(
            self.branches, self.named, self.lanes, cache.named_bytes, settings.listen.max_body_bytes
        )
        self.names = NameGuard(self.state.owned_names, self.lanes, bounds)
        self.rewriter = Rewriter(cache.facts_bytes)

    def forget(self, tag: str, conversation_id: str | None = None) -> None:
        """All of a tenant, or of one conversation, leaves memory, and nothing more is made for it."""
        self.running.cancel(tag, conversation_id)
        for part in (self.search, self.archive, self.activity, self.sessions):
            part.forget(tag, conversation_id)
        # Bodies of all tenants are read again when they come.
        self.responses.clear()
        self.rewriter.clear()


def _make_tracer(settings: Traces) -> "Tracer | None":
    if settings.endpoint is None:
        return None
    from gateway.traces import Tracer  # its libraries are an extra

    return Tracer(settings)
