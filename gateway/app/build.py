"""What depends on settings that can be reloaded, over a process that stays.

Requests under way finish with what they began with. Opens nothing and starts nothing.
"""

from gateway.activity.prices import PriceList
from gateway.app.process import Process
from gateway.compaction.calls import QuotedCalls, RidingCalls
from gateway.compaction.client import SummaryClient
from gateway.compaction.edit import SummaryEditor
from gateway.compaction.flow import Compactions
from gateway.compaction.manual import ManualCompaction
from gateway.compaction.summarizer import PivotMaker, Summarizer
from gateway.compaction.turn_recorder import TurnRecorder
from gateway.hooks import Hooks, Webhook
from gateway.http.target import Upstreams
from gateway.limits.book import LimitsBook, ModelLists
from gateway.limits.discovery import Discovery
from gateway.mcp.endpoint import McpEndpoint
from gateway.mcp.tools import HistoryTools
from gateway.pipeline.admission import Admission
from gateway.pipeline.log import RequestLog
from gateway.pipeline.plan import PlanningStep
from gateway.pipeline.proxy import Proxy
from gateway.pipeline.question import QuestionRecall
from gateway.pipeline.relay import Relay
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.planning.learning import Learner
from gateway.planning.planner import Planner
from gateway.planning.rewrite import ArrayView, CallMaker
from gateway.settings import BUILT_IN_UPSTREAMS, Settings, UpstreamSettings
from gateway.tenants import Policies, Tenancy


class Serving:
    """What depends on settings that can be reloaded. Nothing in it is opened or closed: it is gone with the
    last request that began with it.

    before: the one that this one follows. relay, calls: in place of what reaches the upstreams of the
    settings, for a replay.
    """

    def __init__(
        self,
        settings: Settings,
        process: Process,
        before: "Serving | None" = None,
        relay: Relay | None = None,
        calls: SummaryClient | None = None,
    ) -> None:
        state, sizer, lanes, reporter = process.state, process.sizer, process.lanes, process.reporter
        self.settings = settings
        # What upstreams have said about their models.
        self.lists = _keep_lists(settings, before)
        self.prices = PriceList(settings, process.price_table)
        # Upstreams that an earlier one did not have.
        self.unchecked = _find_unchecked(settings, before)
        self.hooks = _make_hooks(settings, process)
        self._relay = relay or Relay(settings, process.budget, process.client, process.tracer)
        # Makes the bodies of requests, and of the summaries that ride on them.
        self._maker = CallMaker(process.rewriter, lanes)
        self._limits = LimitsBook(settings, self.lists, process.table, state.calibrations)
        self._planner = Planner(state, sizer, lanes)
        self._learner = Learner(state.calibrations, sizer, self._limits, reporter)
        self._summary_calls = calls or SummaryClient(
            process.client, process.summaries, process.metrics, process.tracer
        )
        self.compactions = Compactions(
            state, self._planner, self._make_summarizer(process), reporter, process.running
        )
        self.manual = ManualCompaction(state, self._planner, self.compactions, reporter)
        self.editor = SummaryEditor(state, self._planner, sizer, reporter)
        self.proxy = self._make_proxy(process)
        tracer = process.tracer
        self.respond = tracer.around(self.proxy.respond) if tracer is not None else self.proxy.respond
        self.arrays = ArrayView(self._planner, self._maker, process.budget)
        # None where the settings leave `/mcp` to the upstream.
        self.mcp = _make_mcp(settings, process) if settings.mcp else None

    def _make_summarizer(self, process: Process) -> Summarizer:
        lanes, sizer = process.lanes, process.sizer
        quoted = QuotedCalls(Upstreams(self.settings), self._limits, sizer, lanes)
        riding = RidingCalls(process.state, self._maker, sizer, lanes)
        pivots = PivotMaker(sizer, lanes)
        return Summarizer(self._summary_calls, quoted, riding, sizer, pivots, self.hooks)

    def _make_sender(self, process: Process, planning: PlanningStep) -> Sender:
        return Sender(
            shows_headers=self.settings.response_headers,
            activity=process.activity,
            planning=planning,
            calls=self._maker,
            relay=self._relay,
            responses=TurnRecorder(
                process.state, self._planner, self._learner, self.compactions, process.reporter
            ),
            branches=process.branches,
            time=process.branches.time,
            learner=self._learner,
            reporter=process.reporter,
        )

    def _make_proxy(self, process: Process) -> Proxy:
        settings, planner, relay = self.settings, self._planner, self._relay
        state, lanes, metrics = process.state, process.lanes, process.metrics
        discovery = Discovery(self._limits, process.client, process.asking)
        recall = QuestionRecall(process.search, state.pivots, lanes, process.sizer, metrics)
        planning = PlanningStep(planner, self.compactions, self.manual, recall)
        return Proxy(
            settings=settings,
            memory=process.budget,
            lanes=lanes,
            admission=Admission(settings, Tenancy(settings), Upstreams(settings)),
            gate=process.gate,
            names=process.names,
            sessions=process.sessions,
            turns=TurnBuilder(
                Policies(settings), process.responses, self._limits, discovery, state, self.prices
            ),
            manual=self.manual,
            planner=planner,
            calls=self._maker,
            planning=planning,
            sender=self._make_sender(process, planning),
            relay=relay,
            log=RequestLog(self._limits, metrics),
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


def _make_hooks(settings: Settings, process: Process) -> Hooks:
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


def _make_mcp(settings: Settings, process: Process) -> McpEndpoint:
    return McpEndpoint(
        settings=settings,
        tenancy=Tenancy(settings),
        gate=process.gate,
        memory=process.budget,
        lanes=process.lanes,
        metrics=process.metrics,
        tools=HistoryTools(process.search, process.metrics),
        library=process.mcp,
    )
