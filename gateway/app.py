"""Puts the parts together. The only place that constructs things.

The data port answers `/healthz` and `/readyz` by itself; everything else is the proxy's.
"""

import asyncio
import json
import logging

import httpx2 as httpx

from gateway import __version__
from gateway.admin.event_stream import EventStream
from gateway.admin.pages import AdminPages, HistoryPages
from gateway.admin.server import AdminServer
from gateway.compaction.compactor import Compactor
from gateway.compaction.job import CompactionJob
from gateway.compaction.pivots import Digester, PivotMaker
from gateway.compaction.summarizer import HookedSummarizer, Summarizer
from gateway.compaction.summary_client import SummaryClient, SummaryModels
from gateway.compaction.summary_prompt import SummaryCallBuilder
from gateway.conversations.recognizer import Recognizer
from gateway.conversations.registry import Registry
from gateway.conversations.stored_responses import StoredResponses
from gateway.core.errors import RequestRefused
from gateway.core.policy import Estimator
from gateway.downstream.local_response import send_own
from gateway.downstream.request import Request
from gateway.downstream.response import Response
from gateway.downstream.server import Server
from gateway.hooks import Hooks
from gateway.hooks.plugin import load_plugins
from gateway.hooks.webhook import Webhook
from gateway.limits.book import LimitsBook
from gateway.limits.discovery import Discovery
from gateway.limits.model_lists import ModelLists
from gateway.limits.model_table import ModelTable
from gateway.pipeline.admission import Admission
from gateway.pipeline.commands import Commands
from gateway.pipeline.count_tokens import CountTokens
from gateway.pipeline.overflow_retry import OverflowRetry
from gateway.pipeline.planning_step import PlanningStep
from gateway.pipeline.proxy import Proxy, Ways
from gateway.pipeline.relay import Relay
from gateway.pipeline.rewriter import Rewriter
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.planning.learning import Calibrator, LimitLearner
from gateway.planning.message_sizes import Sizer, TextCounter
from gateway.planning.planner import Planner
from gateway.planning.tokenizer import Tokenizer, count_by_length, count_by_length_up
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.originals import OriginalsArchive
from gateway.reporting.reporter import Reporter
from gateway.settings import Settings
from gateway.state.state import State
from gateway.store import Store, open_bounded_store, open_store
from gateway.tenants import Policies, Tenancy
from gateway.upstream.internal_client import open_client
from gateway.upstream.loop_guard import is_itself
from gateway.upstream.target import Upstreams
from gateway.wire.formats.registry import render_error

log = logging.getLogger("gateway.app")

SERVICE = "context-window-gateway"
# Counts of forty thousand messages: all that hundreds of conversations near their lines hold.
_SIZES_BYTES = 16 << 20
# Beside the state, in the same directory.
_SHELF_NAME = "originals"


class Gateway:
    """A running gateway. port: the one it listens on, also where 0 was asked for. bus: what happens in it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tokenizer = Tokenizer()
        self._store: Store = open_store(settings.store)
        retention = settings.retention
        self._shelf: Store = open_bounded_store(settings.store, _SHELF_NAME, retention.originals_bytes)
        self._archive = OriginalsArchive(self._shelf, retention.seconds)
        self._chronicle = CompactionLogWriter(self._store, retention.seconds)
        cache = settings.cache
        self._state = State(self._store, retention.seconds, cache.records_bytes)
        self._sizer = Sizer(_make_counts(self._tokenizer), _SIZES_BYTES)
        self._relay = Relay(settings)
        self._client = open_client()
        limits = LimitsBook(settings, ModelLists(), ModelTable.load(), self._state)
        self._discovery = Discovery(limits, self._client)
        upstreams = Upstreams(settings)
        planner = Planner(self._state, self._sizer)
        pivots = PivotMaker(self._sizer)
        self._hooks = _make_hooks(settings, self._client)
        summarizer = self._make_summariser(upstreams, limits, pivots)
        digester = Digester(self._sizer, pivots)
        metrics = Metrics()
        self.bus = Bus()
        reporter = Reporter(metrics, self.bus, self._chronicle, self._archive)
        calibrator = Calibrator(self._state, self._sizer, limits, reporter)
        folding = CompactionJob(self._state, planner, summarizer, digester, reporter)
        self._compactor = Compactor(self._state, planner, calibrator, folding, reporter)
        recognizer = Recognizer(cache.bodies_bytes, cache.facts_bytes, cache.bodies)
        remembered = StoredResponses(recognizer, cache.named_bytes)
        reception = TurnBuilder(Policies(settings), remembered, limits, self._discovery, self._state)
        registry = Registry(cache.bodies_bytes, cache.bodies)
        rewriter = Rewriter(cache.facts_bytes)
        sender = Sender(settings, rewriter, self._relay)
        preparation = PlanningStep(settings, planner, self._compactor, folding, registry)
        recovery = OverflowRetry(preparation, sender, LimitLearner(limits, calibrator), reporter)
        entrance = Admission(Tenancy(settings), upstreams)
        counting = CountTokens(reception, planner, rewriter)
        ways = Ways(Commands(settings, self._compactor), counting, recovery, sender)
        self._proxy = Proxy(settings, entrance, reception, ways)
        pages = AdminPages(metrics, EventStream(self.bus), registry, self._state, self._compactor)
        history = HistoryPages(registry, self._chronicle, self._archive)
        self._admin = AdminServer(settings.admin, [pages, history], _discreet_log())
        self._listener = Server(self._answer)
        self._telling: asyncio.Task[None] | None = None

    def _make_summariser(
        self, upstreams: Upstreams, limits: LimitsBook, pivots: PivotMaker
    ) -> HookedSummarizer:
        models = SummaryModels()
        fitter = SummaryCallBuilder(upstreams, limits, self._sizer, models)
        client = SummaryClient(self._client)
        return HookedSummarizer(Summarizer(client, fitter, models, self._sizer, pivots), self._hooks)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def admin_port(self) -> int:
        """0 where it is not served."""
        return self._admin.port

    async def start(self) -> None:
        await self._store.open()
        await self._shelf.open()
        await asyncio.to_thread(self._tokenizer.load)
        await self._relay.open()
        listen = self._settings.listen
        await self._listener.open(listen.host, listen.port)
        await asyncio.to_thread(self._refuse_itself)
        self._telling = asyncio.create_task(self._hooks.listen(self.bus))
        await self._admin.open()
        log.info("listening on http://%s:%d", listen.host, self.port)

    def _refuse_itself(self) -> None:
        for upstream in self._settings.upstreams.values():
            if is_itself(upstream, self._settings.listen, self.port):
                raise OSError(
                    f"upstream '{upstream.name}' ({upstream.base_url}) points at the gateway itself"
                )

    async def stop(self) -> None:
        """Drains: no new work, time for what is open, then everything that was queued is written."""
        await self._listener.drain(self._settings.drain_seconds)
        await self._listener.close()
        await self._admin.close()
        await self._compactor.close()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        await self._discovery.close()
        await self._client.aclose()
        await self._relay.close()
        self._state.flush_heads()
        await self._chronicle.finish()
        await self._store.close()
        await self._archive.finish()
        await self._shelf.close()
        self._sizer.close()

    async def _answer(self, request: Request) -> Response | None:
        path = request.head.target
        if path == "/healthz":
            return _tell(request, 200, status="ok", service=SERVICE, version=__version__)
        if path == "/readyz":
            if self._listener.is_draining:
                return _tell(request, 503, status="draining")
            return _tell(request, 200, status="ready")
        if request.is_late:
            error = RequestRefused(503, "The gateway is shutting down; try again.", kind="server_error")
            return send_own(request, error.status, render_error(path, error), {"Retry-After": "1"})
        return await self._proxy.answer(request)


async def start_gateway(settings: Settings) -> Gateway:
    """Raises StoreError for a store this build does not know, OSError for a port that is taken."""
    gateway = Gateway(settings)
    try:
        await gateway.start()
    except BaseException:
        await gateway.stop()
        raise
    return gateway


def _make_counts(tokenizer: Tokenizer) -> dict[Estimator, TextCounter]:
    return {"tiktoken": tokenizer.count, "chars": count_by_length, "chars-up": count_by_length_up}


def _make_hooks(settings: Settings, client: httpx.AsyncClient) -> Hooks:
    """Webhooks in the order of the file, then what is installed."""
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


def _discreet_log() -> logging.Logger:
    """For the HTTP library, whose errors quote the header line that they could not read: keys are in
    those.
    """
    discreet = logging.getLogger("gateway.http")
    if not discreet.filters:
        discreet.addFilter(_without_quotes)
    return discreet


def _without_quotes(record: logging.LogRecord) -> bool:
    """Leaves the kind of the error, and nothing of what it says."""
    kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else "error"
    record.msg, record.args = "%s on a connection", (kind,)
    record.exc_info = record.exc_text = None
    return True


def _tell(request: Request, code: int, **facts: str) -> Response:
    return send_own(request, code, json.dumps(facts).encode())
