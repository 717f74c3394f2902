"""Everything that makes compactions, in memory, with a toy model that writes the summaries."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from aiohttp import ClientResponse

from gateway.activity.book import ActivityBook
from gateway.bounds.background import Slots
from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget
from gateway.compaction.calls import QuotedCalls, RidingCalls
from gateway.compaction.client import SummaryClient
from gateway.compaction.edit import SummaryEditor
from gateway.compaction.flow import Compactions, Running
from gateway.compaction.manual import ManualCompaction
from gateway.compaction.summarizer import PivotMaker, Summarizer
from gateway.compaction.turn_recorder import TurnRecorder
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.situation import Situation
from gateway.core.history.pivot import Pivot
from gateway.core.history.view import View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Prompts
from gateway.core.sizing.estimate import Calibration, Known
from gateway.hooks import Hook, Hooks
from gateway.http.client import Client, OwnCall
from gateway.http.target import Upstreams
from gateway.limits.book import LimitsBook, ModelLists, ModelTable
from gateway.originals.archive import OriginalsArchive, Removals
from gateway.planning.learning import Learner
from gateway.planning.message_sizes import Sizer, count_by_length
from gateway.planning.planner import Planner
from gateway.planning.rewrite import CallMaker, Rewriter
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.reporter import Reporter
from gateway.settings import TenantSettings, UpstreamSettings, load_settings
from gateway.state import State
from gateway.state.single import LeaseTimes
from gateway.store.blobs import make_blobs
from gateway.store.interface import Store
from gateway.tenants.budget import SummaryBudget
from gateway.tenants.ledger import Ledger
from tests.builders.chat import make_turn, measure_sizes, read
from tests.builders.state import make_state, make_store
from tests.decisions.builders import JSON, render, talk
from tests.store.clock import Clock

PROMPTS = Prompts(question="What did we do?", instruction="Summarize.", resume="Go on.", dropped="(dropped)")
SUMMARIZING = Policy(prompts=PROMPTS)
LIMITS = Limits(context=16_000)


class ModelReply(NamedTuple):
    status: int
    body: JSON | bytes


def say(text: str, finish_reason: str = "stop", **usage: int) -> ModelReply:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return ModelReply(200, {"choices": [choice], "usage": usage} if usage else {"choices": [choice]})


def refuse(status: int, message: str) -> ModelReply:
    return ModelReply(
        status, {"error": {"message": message, "code": "model_not_found" if status == 404 else None}}
    )


@dataclass(frozen=True)
class ToyResponse:
    """As much of a response as is read of one. It is its own content."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> "ToyResponse":
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self.body


class ToyModel(Client):
    """Replies to calls in order, and to all further ones like to the last. Thinks while `gate` is clear."""

    def __init__(self, *replies: ModelReply | Exception) -> None:
        super().__init__()
        self._replies = replies or (say("We looked at it and fixed it."),)
        self.requests: list[OwnCall] = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def calls(self) -> list[JSON]:
        return [json.loads(request.body or b"") for request in self.requests]

    @asynccontextmanager
    async def stream(self, call: OwnCall, seconds: float) -> AsyncIterator[ClientResponse]:
        reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
        self.requests.append(call)
        async with asyncio.timeout(seconds):
            await self.gate.wait()
            if isinstance(reply, Exception):
                raise reply
            is_raw = isinstance(reply.body, bytes)
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            headers = {} if is_raw else {"content-type": "application/json"}
            yield cast(ClientResponse, ToyResponse(reply.status, headers, body))


@dataclass(frozen=True, kw_only=True)
class CompactionParts:
    store: Store
    state: State
    memory: MemoryBudget
    clock: Clock
    bus: Bus
    limits: LimitsBook
    sizer: Sizer
    planner: Planner
    learner: Learner
    client: SummaryClient
    ledger: Ledger
    budget: SummaryBudget
    metrics: Metrics
    activity: ActivityBook
    quoted: QuotedCalls
    rides: RidingCalls
    pivots: PivotMaker
    summarizer: Summarizer
    compactions: Compactions
    responses: TurnRecorder
    slots: Slots
    manual: ManualCompaction
    editor: SummaryEditor
    model: ToyModel = field(default_factory=ToyModel)

    async def gather(self, turn: Turn, **flags: bool) -> Situation:
        return await self.planner.gather(turn, may_compact=flags.get("may_compact", True))


@asynccontextmanager
async def compaction_parts(
    *replies: ModelReply | Exception,
    hooks: tuple[Hook, ...] = (),
    upstreams: Mapping[str, UpstreamSettings] | None = None,
    tenants: tuple[TenantSettings, ...] = (),
    store: Store | None = None,
    most_summaries: tuple[int, int] = (16, 8),
    lease_times: LeaseTimes | None = None,
) -> AsyncIterator[CompactionParts]:
    """replies: of the model. most_summaries: at once, in all and for one tenant."""
    model, clock, bus, metrics = ToyModel(*replies), Clock(), Bus(), Metrics()
    store = store if store is not None else await make_store()
    ledger, activity = Ledger(store), ActivityBook(1 << 20)
    budget = SummaryBudget(ledger, clock)
    state = make_state(store, lease_times)
    blobs = make_blobs(store, None, "original", max_bytes=1 << 20, keep_seconds=60)
    archive = OriginalsArchive(Removals(store, 60), blobs, 60)
    reporter = Reporter(metrics, bus, CompactionLogWriter(store, 60), archive, activity)
    lanes, memory, slots = Lanes(), MemoryBudget(1 << 30), Slots(*most_summaries)
    sizer = Sizer(dict.fromkeys(("tiktoken", "chars", "chars-up"), count_by_length), 1 << 20, lanes)
    settings = replace(load_settings(None, {}), upstreams=dict(upstreams or {}), tenants=tenants)
    limits = LimitsBook(settings, ModelLists(), ModelTable({}), state.calibrations, clock)
    planner = Planner(state, sizer, lanes)
    learner = Learner(state.calibrations, sizer, limits, reporter)
    quoted = QuotedCalls(Upstreams(settings), limits, sizer, lanes, clock)
    maker = CallMaker(Rewriter(1 << 20), lanes)
    rides = RidingCalls(state, maker, sizer, lanes, clock)
    pivots = PivotMaker(sizer, lanes, clock)
    client = SummaryClient(model, budget, metrics)
    summarizer = Summarizer(client, quoted, rides, sizer, pivots, Hooks(hooks, ()))
    compactions = Compactions(state, planner, summarizer, reporter, Running(slots, memory), clock)
    yield CompactionParts(
        store=store,
        state=state,
        memory=memory,
        clock=clock,
        bus=bus,
        limits=limits,
        sizer=sizer,
        planner=planner,
        learner=learner,
        client=client,
        ledger=ledger,
        budget=budget,
        metrics=metrics,
        activity=activity,
        quoted=quoted,
        rides=rides,
        pivots=pivots,
        summarizer=summarizer,
        compactions=compactions,
        responses=TurnRecorder(state, planner, learner, compactions, reporter),
        slots=slots,
        manual=ManualCompaction(state, planner, compactions, reporter),
        editor=SummaryEditor(state, planner, sizer, reporter, clock),
        model=model,
    )
    await compactions.running.tasks.close()
    lanes.close()


def receive(turns: int, chars: int = 4_000) -> Received:
    return read(render(talk(turns, chars)))


def turn_of(received: Received, policy: Policy = SUMMARIZING, limits: Limits = LIMITS, **fields: Any) -> Turn:
    """With the thresholds of its limits."""
    return make_turn(received, policy=policy, **fields).with_limits(limits)


def make_situation(received: Received, policy: Policy = SUMMARIZING, **fields: Any) -> Situation:
    defaults: JSON = {
        "owner": "t",
        "conversation": received.conversation,
        "sizes": measure_sizes(received),
        "policy": policy,
        "limits": LIMITS,
        "requested": None,
        "growth": 0.0,
        "known": Known(head=None, head_view=View(None, {}), calibration=Calibration()),
        "sticky": None,
        "pivots": (),
        "batches": (),
        "may_compact": True,
    }
    return Situation(**(defaults | fields))


def make_cut(covers: int, base: Pivot | None = None, **fields: Any) -> Cut:
    """Behind the task and the base."""
    start = base.covers if base is not None else 1
    defaults: JSON = {"start": start, "replaced_tokens": 4_000, "cap_tokens": 1_000}
    return Cut(base=base, covers=covers, **(defaults | fields))
