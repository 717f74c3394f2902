"""The admin port of a gateway with several workers, served by their supervisor.

The same port, checks and pages as with one process; what they show is merged.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from aiohttp import web

from gateway.admin.answers import GatewayPage
from gateway.admin.event_stream import EventStream
from gateway.admin.gateway_page import GatewayFacts
from gateway.admin.merged.activity import take_all_rows
from gateway.admin.merged.collector import MetricsCollector
from gateway.admin.merged.conversations import MergedConversations
from gateway.admin.merged.event_relay import EventRelay
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.openapi import show_document
from gateway.admin.routing import Handlers, make_routes
from gateway.admin.server import AdminServer
from gateway.reporting.activity_feed import ActivityFeed
from gateway.reporting.events import Bus
from gateway.reporting.metrics import CONTENT_TYPE
from gateway.settings import Admin, Settings


class MergedPages:
    def __init__(
        self,
        facts: GatewayFacts,
        collector: MetricsCollector,
        events: EventStream,
        conversations: MergedConversations,
    ) -> None:
        self._facts = facts
        self._collector = collector
        self._events = events
        self._conversations = conversations

    def routes(self) -> list[web.RouteDef]:
        own: Handlers = {
            "showGateway": self._show_gateway,
            "streamEvents": self._events.send,
            "showDocument": show_document,
        }
        handlers = {**self._conversations.list_handlers(), **own}
        return [web.get("/metrics", self._show_metrics), *make_routes(handlers)]

    async def _show_gateway(self, request: web.Request) -> GatewayPage:
        return self._facts.show(request)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._collector.render(), headers={"Content-Type": CONTENT_TYPE})


class AdminFront:
    def __init__(self, find_settings: Callable[[], Settings], workers: LiveWorkers) -> None:
        bus = Bus()
        self.facts = GatewayFacts(find_settings)
        self._collector = MetricsCollector(workers)
        self._relay = EventRelay(workers, bus, self._collector)
        self._feed = ActivityFeed(bus, partial(take_all_rows, workers))
        pages = MergedPages(self.facts, self._collector, EventStream(bus), MergedConversations(workers))
        self._server = AdminServer(find_settings().admin, pages)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """0 while it does not listen."""
        return self._server.port

    def use(self, settings: Admin) -> None:
        """From now on with this token. The address stays that of the start."""
        self._server.use(settings)

    async def open(self) -> None:
        """Logs a port that is taken and goes on without one, as a gateway of one process does."""
        loop = asyncio.get_running_loop()
        running = (self._collector.run(), self._relay.run(), self._feed.run())
        self._tasks = [loop.create_task(each) for each in running]
        await self._server.open()

    async def close(self) -> None:
        await self._server.close()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
