"""What plans, learns and rewrites, in memory: for the decisions that need a request, a clock or a store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.activity.book import ActivityBook
from gateway.bounds.lanes import Lanes
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.situation import Situation
from gateway.core.history.head import Head
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Prompts
from gateway.limits.book import LimitsBook, ModelLists, ModelTable
from gateway.originals.archive import OriginalsArchive, Removals
from gateway.planning.learning import Learner
from gateway.planning.message_sizes import Sizer, count_by_length
from gateway.planning.planner import Planner
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.reporter import Reporter
from gateway.settings import load_settings
from gateway.state import State
from gateway.store.blobs import make_blobs
from gateway.store.interface import Store
from gateway.wire.format import Format
from gateway.wire.registry import CHAT
from tests.builders.bodies import read_alone
from tests.builders.chat import make_turn
from tests.builders.state import make_state, make_store
from tests.decisions.builders import WINDOW_16K, make_head, render, talk

SUMMARIZING = Policy(
    prompts=Prompts(question="What did we do?", instruction="Summarize.", resume="Go on.", dropped="(gone)")
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    store: Store
    state: State
    sizer: Sizer
    planner: Planner
    learner: Learner
    limits: LimitsBook
    bus: Bus

    async def gather(self, turn: Turn) -> Situation:
        return await self.planner.gather(turn, may_compact=True, may_digest=True)


@asynccontextmanager
async def planning_parts(store: Store | None = None) -> AsyncIterator[Parts]:
    store = store if store is not None else await make_store()
    lanes, bus = Lanes(), Bus()
    state = make_state(store)
    sizer = Sizer(dict.fromkeys(("tiktoken", "chars", "chars-up"), count_by_length), 1 << 20, lanes)
    limits = LimitsBook(
        load_settings(None, {}), ModelLists(), ModelTable({}), state.calibrations, lambda: 1_800_000_000.0
    )
    blobs = make_blobs(store, None, "original", max_bytes=1 << 20, keep_seconds=60)
    log, archive = CompactionLogWriter(store, 60), OriginalsArchive(Removals(store, 60), blobs, 60)
    reporter = Reporter(Metrics(), bus, log, archive, ActivityBook(1 << 20))
    yield Parts(
        store=store,
        state=state,
        sizer=sizer,
        planner=Planner(state, sizer, lanes),
        learner=Learner(state.calibrations, sizer, limits, reporter),
        limits=limits,
        bus=bus,
    )
    lanes.close()


def receive_body(data: bytes, wire_format: Format = CHAT) -> Received:
    return read_alone("t", wire_format, data)


def receive(turns: int, chars: int = 4_000) -> Received:
    return receive_body(render(talk(turns, chars)))


def turn_of(
    received: Received, policy: Policy = SUMMARIZING, limits: Limits = WINDOW_16K, **fields: Any
) -> Turn:
    """With the thresholds of its limits."""
    return make_turn(received, policy=policy, **fields).with_limits(limits)


def head_of(received: Received, **fields: Any) -> Head:
    """Of a turn by `turn_of`, once it is answered."""
    return make_head(received.conversation, "scope", **fields)
