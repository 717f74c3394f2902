"""The admin port of a gateway with several workers, served by their supervisor.

The same port, checks and pages as with one process; what they show is merged.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from aiohttp import web
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.activity.rows import ActivityEvent, Row
from gateway.admin.answers import GatewayPage
from gateway.admin.event_stream import EventStream
from gateway.admin.merged.conversations import MergedConversations, merge_rows
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.worker_client import CHANGED_PATH, WorkerPage, ask_all
from gateway.admin.openapi import show_document
from gateway.admin.routing import Handlers, make_routes
from gateway.admin.server import AdminServer
from gateway.admin.sources import show_gateway
from gateway.bounds.background import BackgroundTasks
from gateway.reporting.activity_feed import ActivityFeed
from gateway.reporting.metrics import CONTENT_TYPE
from gateway.reporting.metrics.definitions import RELOADS
from gateway.settings import Admin, Settings

_PERIOD_SECONDS: Final = 1.0


class MetricsCollector(Collector):
    """Of all workers. They are asked each second, and when somebody looks."""

    def __init__(self, workers: LiveWorkers) -> None:
        self._live = workers

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._live.refresh()
            await asyncio.sleep(_PERIOD_SECONDS)

    async def render(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format."""
        await self._live.refresh()
        return generate_latest(self)

    def collect(self) -> Iterable[Metric]:
        sums = self._live.sum_metrics()
        sums.add_metric(self._describe_reloads())
        yield from sums.list()
        yield GaugeMetricFamily("gateway_workers", "Workers that run.", len(self._live.sockets))
        yield CounterMetricFamily(
            "gateway_workers_replaced", "Workers that were started for others that died.", self._live.replaced
        )

    def _describe_reloads(self) -> Metric:
        """The supervisor loads the settings for all workers, so only it knows of failures."""
        family = CounterMetricFamily(RELOADS.name, RELOADS.text, labels=RELOADS.labels)
        for result, count in self._live.reloads.items():
            family.add_metric((result,), count)
        return family


class AdminFront:
    def __init__(self, find_settings: Callable[[], Settings], workers: LiveWorkers) -> None:
        # Of the data port, once it listens.
        self.data_port = 0
        self._find_settings = find_settings
        self._workers = workers
        self._collector = MetricsCollector(workers)
        self._feed = ActivityFeed(workers.bus, partial(take_all_rows, workers))
        self._events = EventStream(workers.bus)
        self._conversations = MergedConversations(workers)
        self._server = AdminServer(find_settings().admin, self)
        self._tasks = BackgroundTasks("the admin port")

    def routes(self) -> list[web.RouteDef]:
        own: Handlers = {
            "showGateway": self._show_gateway,
            "streamEvents": self._events.send,
            "showDocument": show_document,
        }
        handlers = {**self._conversations.list_handlers(), **own}
        return [web.get("/metrics", self._show_metrics), *make_routes(handlers)]

    @property
    def port(self) -> int:
        """0 while it does not listen."""
        return self._server.port

    def use(self, settings: Admin) -> None:
        """From now on with this token. The address stays that of the start."""
        self._server.use(settings)

    async def open(self) -> None:
        """Logs a port that is taken and goes on without one, as a gateway of one process does."""
        self._tasks.spawn(self._collector.run())
        self._tasks.spawn(self._feed.run())
        await self._server.open()

    async def close(self) -> None:
        await self._server.close()
        await self._tasks.close()
        await self._workers.close()

    async def _show_gateway(self, request: web.Request) -> GatewayPage:
        return show_gateway(self._find_settings(), self.data_port, request)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._collector.render(), headers={"Content-Type": CONTENT_TYPE})


async def take_all_rows(workers: LiveWorkers) -> list[Row]:
    """A worker that does not answer within a second is left out: its rows come with their next change."""
    answers = await ask_all(workers.sockets, CHANGED_PATH)
    pages = [answer for answer in answers if isinstance(answer, WorkerPage) and answer.status == 200]
    events = [event for page in pages if (event := page.parse(ActivityEvent)) is not None]
    return merge_rows(row for event in events for row in event.conversations)
