"""Workers as the admin port over all of them sees them: sockets that answer, fall silent, or are gone."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from pydantic import SecretStr

from gateway.admin.merged.front import AdminFront
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.problems import respond_problem
from gateway.admin.texts import PEER_HEADER
from gateway.admin.worker_stream import WorkerStream
from gateway.app import Gateway
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.settings import Admin, load_settings
from gateway.store.stores import Stores
from gateway.wiring import build
from tests.toy.gateway import RunningGateway


@contextmanager
def socket_paths() -> Iterator[Iterator[Path]]:
    """Paths that are short enough for sockets, in a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        yield (Path(folder) / f"{number}.sock" for number in count())


class ToyWorker:
    """pages: JSON, or Structs of it, by path. A path that is not among them is 404.

    asked: the requests, in their order. shown: how often its metrics were read.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.metrics = Metrics()
        self.bus = Bus()
        self.pages: dict[str, Any] = {}
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        # The peers that the requests name.
        self.peers: list[str] = []
        self.shown = 0
        # Requests of this path are never answered.
        self.hanging: str | None = None
        # Cleared: requests wait for it.
        self.is_answering = asyncio.Event()
        self.is_answering.set()
        self._stream = WorkerStream(self.bus, self.metrics)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._show_metrics),
                web.get("/api/events", self._stream.send),
                web.route("*", "/{path:.*}", self._show),
            ]
        )
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()

    async def end(self) -> None:
        """In order."""
        await self._stream.close()
        await self.crash()

    async def crash(self) -> None:
        """Connections break, and nobody says why."""
        if self._runner is not None:
            await self._runner.cleanup()
        self.socket.unlink(missing_ok=True)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        self.shown += 1
        await self.is_answering.wait()
        return web.Response(body=self.metrics.render())

    async def _show(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.bodies.append(await request.read())
        self.peers.append(request.headers.get(PEER_HEADER, ""))
        await self.is_answering.wait()
        if request.path_qs == self.hanging:
            await asyncio.Event().wait()
        if request.path_qs not in self.pages:
            return respond_problem(404, "no such thing")
        page = msgspec.json.encode(self.pages[request.path_qs])
        return web.Response(body=page, content_type="application/json")


@asynccontextmanager
async def running_toys(how_many: int) -> AsyncIterator[tuple[LiveWorkers, list[ToyWorker]]]:
    live = LiveWorkers()
    with socket_paths() as paths:
        toys = [ToyWorker(next(paths)) for _ in range(how_many)]
        for toy in toys:
            await toy.start()
            live.add(toy.socket)
        try:
            yield live, toys
        finally:
            for toy in toys:
                await toy.crash()


@asynccontextmanager
async def running_worker(
    settings_yaml: str, socket: Path, stores: Stores | None = None
) -> AsyncIterator[RunningGateway]:
    """A whole gateway whose admin pages are at the socket.

    stores: in place of those that the settings name.
    """
    path = socket.with_suffix(".yaml")
    await asyncio.to_thread(path.write_text, settings_yaml, "utf-8")
    settings = load_settings(path, {}, host="127.0.0.1", port=0)
    parts = build(settings, stores, admin_socket=socket)
    app = Gateway(settings, parts)
    await app.start()
    try:
        yield RunningGateway(app, parts)
    finally:
        await app.stop()


@asynccontextmanager
async def running_front(live: LiveWorkers, token: str | None = None) -> AsyncIterator[AdminFront]:
    admin = Admin(host="127.0.0.1", port=0, token=SecretStr(token) if token else None)
    front = AdminFront(lambda: replace(load_settings(None, {}), admin=admin), live)
    await front.open()
    try:
        yield front
    finally:
        await front.close()
