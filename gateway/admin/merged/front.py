"""The admin port of a gateway with several workers, served by their supervisor.

The same port, checks and pages as with one process; what they show is merged.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from gateway.activity.rows import ActivityEvent, Row
from gateway.admin.answers import GatewayPage
from gateway.admin.event_stream import EventStream
from gateway.admin.gateway_page import GatewayFacts
from gateway.admin.merged.collector import MetricsCollector
from gateway.admin.merged.conversations import MergedConversations, merge_rows
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.worker_client import CHANGED_PATH, FAREWELL, WorkerPage, ask_all, open_session
from gateway.admin.openapi import show_document
from gateway.admin.routing import Handlers, make_routes
from gateway.admin.server import AdminServer
from gateway.reporting.activity_feed import ActivityFeed
from gateway.reporting.events import Bus, Relayed
from gateway.reporting.metrics import CONTENT_TYPE
from gateway.settings import Admin, Settings

# A worker has just been started, or its process has ended and is still in the list.
_RETRY_SECONDS: Final = 0.05
_NAME: Final = b"event: "
_DATA: Final = b"\ndata: "
_END: Final = b"\n\n"


class EventRelay:
    """Publishes the events of all workers on one bus, and hands the last metrics of each to the collector.

    Each worker has one listener here, for as long as its process runs.
    """

    def __init__(self, workers: LiveWorkers, bus: Bus, collector: MetricsCollector) -> None:
        self._workers = workers
        self._bus = bus
        self._collector = collector

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as listeners:
            known: tuple[Path, ...] = ()
            async for sockets in self._workers.follow():
                for socket in [each for each in sockets if each not in known]:
                    listeners.create_task(self._follow(socket), name=f"events of {socket.name}")
                known = sockets

    async def _follow(self, socket: Path) -> None:
        """Until the process has ended. Events that it had sent before are read to the last one."""
        while socket in self._workers.sockets:
            await self._listen(socket)
            await asyncio.sleep(_RETRY_SECONDS)
        self._collector.forget(socket)

    async def _listen(self, socket: Path) -> None:
        """Until the stream ends, or at once if nothing listens at the socket."""
        try:
            async with open_session(socket) as session, session.get("http://worker/api/events") as stream:
                while block := await stream.content.readuntil(_END):
                    self._take(socket, block)
        except (aiohttp.ClientError, msgspec.MsgspecError, OSError, ValueError):
            return

    def _take(self, socket: Path, block: bytes) -> None:
        """Incomplete at the end of a stream that broke; then it is left out."""
        head, found, data = block.removesuffix(_END).partition(_DATA)
        if not (found and block.endswith(_END) and head.startswith(_NAME)):
            return
        name = head.removeprefix(_NAME).decode()
        if name == FAREWELL:
            self._collector.take_farewell(socket, msgspec.json.decode(data, type=str))
        else:
            self._bus.publish(Relayed(name=name, data=data))


class AdminFront:
    def __init__(self, find_settings: Callable[[], Settings], workers: LiveWorkers) -> None:
        bus = Bus()
        self.facts = GatewayFacts(find_settings)
        self._collector = MetricsCollector(workers)
        self._relay = EventRelay(workers, bus, self._collector)
        self._feed = ActivityFeed(bus, partial(take_all_rows, workers))
        self._events = EventStream(bus)
        self._conversations = MergedConversations(workers)
        self._server = AdminServer(find_settings().admin, self)
        self._tasks: list[asyncio.Task[None]] = []

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

    async def _show_gateway(self, request: web.Request) -> GatewayPage:
        return self.facts.show(request)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._collector.render(), headers={"Content-Type": CONTENT_TYPE})


async def take_all_rows(workers: LiveWorkers) -> list[Row]:
    """A worker that does not answer within a second is left out: its rows come with their next change."""
    answers = await ask_all(workers.sockets, CHANGED_PATH)
    pages = [answer for answer in answers if isinstance(answer, WorkerPage) and answer.status == 200]
    return merge_rows(row for page in pages for row in _parse_rows(page.body))


def _parse_rows(body: bytes) -> list[Row]:
    try:
        return list(msgspec.json.decode(body, type=ActivityEvent).conversations)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
