"""The admin pages of one worker on a Unix socket, for its supervisor alone.

The supervisor serves the admin port for all workers, and checks there who may ask. Here the permissions of
the socket decide: it is for the user of the gateway. It also has the events of the worker, and which
conversations have changed in it.
"""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from gateway.activity.book import ActivityBook
from gateway.activity.rows import ActivityEvent
from gateway.admin.event_stream import STREAM_HEADERS, render_block
from gateway.admin.merged.worker_client import CHANGED_PATH, FAREWELL
from gateway.admin.server import Pages
from gateway.http.server import make_library_log
from gateway.reporting.activity_feed import take_rows
from gateway.reporting.events import Bus, Relayed
from gateway.reporting.metrics import Metrics
from gateway.settings import Admin

_CLOSE_SECONDS: Final = 0.1
# A supervisor that does not read any more must not hold up the end of a worker.
_FAREWELL_SECONDS: Final = 0.5


class WorkerStream:
    """Server-sent events, the last of which holds the metrics. Events wait while the supervisor is not
    connected, so none is missed between the start of a worker and the moment when the supervisor has found
    it. Only one listener at a time makes sense.
    """

    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._metrics = metrics
        self._exits = ExitStack()
        self._subscription = self._exits.enter_context(bus.subscribe())
        self._has_ended = asyncio.Event()
        self._is_heard = False

    async def send(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends events until the worker ends or the supervisor hangs up."""
        response = web.StreamResponse(headers=STREAM_HEADERS)
        self._is_heard = True
        try:
            await response.prepare(request)
            while not self._has_ended.is_set():
                event = await self._subscription.next()
                await response.write(render_block(event))
                if isinstance(event, Relayed):
                    self._has_ended.set()
        except ConnectionError:
            return response
        finally:
            self._is_heard = False
        return response

    async def close(self) -> None:
        """Sends what waits, and then the metrics, to the supervisor if it listens."""
        self._exits.close()
        if not self._is_heard:
            return
        self._subscription.put(
            Relayed(name=FAREWELL, data=msgspec.json.encode(self._metrics.render().decode()))
        )
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._has_ended.wait()
        except TimeoutError:
            return


class WorkerAdmin:
    """Takes the place of `AdminServer` in a worker. port: always 0."""

    port = 0

    def __init__(self, path: Path, pages: Pages, stream: WorkerStream, book: ActivityBook) -> None:
        """stream: of the pages. It is closed with the socket."""
        self._path = path
        self._pages = pages
        self._stream = stream
        self._book = book
        self._runner: web.AppRunner | None = None

    def use(self, settings: Admin) -> None:
        """The supervisor alone checks tokens."""

    async def open(self) -> None:
        """Raises OSError."""
        application = web.Application()
        application.add_routes([*self._pages.routes(), web.get(CHANGED_PATH, self._take_changed)])
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            shutdown_timeout=_CLOSE_SECONDS,
            handler_cancellation=True,
            access_log=None,
            logger=make_library_log(),
        )
        await self._runner.setup()
        mask = os.umask(0o177)
        try:
            await web.UnixSite(self._runner, str(self._path)).start()
        finally:
            os.umask(mask)

    async def close(self) -> None:
        await self._stream.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._path.unlink(missing_ok=True)

    async def _take_changed(self, _: web.Request) -> web.Response:
        """What has changed since the supervisor asked before, which it does while the page is open."""
        event = ActivityEvent(conversations=await take_rows(self._book))
        return web.Response(body=msgspec.json.encode(event), content_type="application/json")
