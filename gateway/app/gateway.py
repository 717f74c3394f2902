"""A running gateway: opens its parts in order, answers the data port, and closes everything in reverse.

The data port answers `/healthz` and `/readyz` here; every other request goes to the proxy.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from aiohttp import hdrs

from gateway import __version__
from gateway.admin.event_stream import EventStream
from gateway.admin.pages import AdminPages
from gateway.admin.server import AdminServer
from gateway.admin.sources import EventPage, PageSources
from gateway.admin.worker import WorkerAdmin, WorkerStream
from gateway.app.build import Serving
from gateway.app.process import USUAL_PERIODS, Periods, Process
from gateway.app.reload import check_change, find_change, log_change
from gateway.bounds.process import count_descriptors, find_fence, find_most_connections, sample_loop_delay
from gateway.core.errors import Overloaded
from gateway.hooks import listen
from gateway.http.failures import describe_loop
from gateway.http.guard import PortBounds
from gateway.http.ports import describe_bind_error
from gateway.http.reply import Reply
from gateway.http.request import Request, RequestHead
from gateway.http.server import Server
from gateway.limits.discovery import check_upstreams
from gateway.mcp.endpoint import is_mcp
from gateway.reporting.metrics import definitions
from gateway.settings import Bounds, Settings
from gateway.store.interface import Listener
from gateway.store.queue import QueuedStore
from gateway.store.redis_address import is_redis

log = logging.getLogger("gateway.app")

SERVICE = "context-window-gateway"

# A browser asks no more often.
_PREFLIGHT_SECONDS: Final = 600


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """What the supervisor has opened for one of its workers."""

    # They listen at the port of the gateway.
    sockets: Sequence[socket.socket]
    # Where it shows its admin pages to the supervisor.
    admin_socket: Path
    # True for one worker of a gateway.
    checks_upstreams: bool


class Gateway(Listener):
    """Serves inside `async with`. At its end open requests are drained, and what is queued is written.

    `serving` serves new requests; a reload replaces it by one assignment. Requests under way finish with what
    they began with.
    """

    def __init__(
        self, settings: Settings, place: WorkerPlace | None = None, periods: Periods = USUAL_PERIODS
    ) -> None:
        """place: None for a gateway of one process.

        Raises StoreError for a store that this build does not know.
        """
        self._settings = settings
        self._place = place
        is_alone = place is None and not is_redis(settings.store)
        self.process = Process(settings, periods=periods, is_alone=is_alone)
        self.serving = Serving(settings, self.process)
        self.process.activity.use_prices(self.serving.prices.find)
        _watch_parts(self.process, lambda: self.serving)
        admin_socket = place.admin_socket if place is not None else None
        self._admin = _build_admin(
            settings, admin_socket, lambda: self.port, self.process, lambda: self.serving
        )
        self.server = Server(self._respond, _make_bounds(settings.bounds))
        self.process.metrics.watch(definitions.OPEN_REQUESTS, lambda: {"": self.server.open_requests})
        self._exits = AsyncExitStack()
        self._is_stopping = False
        self.process.stores.state.subscribe(self)

    @property
    def port(self) -> int:
        """The port it listens on, also if the settings ask for port 0."""
        return self.server.port

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self._admin.port

    @property
    def windows(self) -> int:
        """How many models have a window in the bundled table."""
        return self.process.table.size

    @property
    def workers(self) -> int:
        """How many processes serve the port."""
        return 1

    @property
    def is_idle(self) -> bool:
        """True if no learning or compaction runs in the background."""
        return not self.process.running.tasks

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        """A tenant or a conversation. What depends on the settings, and remembers tenants, is built anew."""
        self.process.forget(tag, group)
        if group is None:
            self._use(self.serving.settings)

    def count_reload(self, has_failed: bool, /) -> None:
        """For the metrics."""
        self.process.metrics.count_reload(has_failed)

    async def __aenter__(self) -> Self:
        """Raises StoreError for a store that cannot be used, OSError for a port that is taken, or an upstream
        that is this gateway.
        """
        async with AsyncExitStack() as exits:
            await self._open_storage(exits)
            await self._open_network(exits)
            await self._listen(exits)
            self._exits = exits.pop_all()
        return self

    async def wait_failure(self) -> Exception:
        """Never returns: a gateway that has started goes on."""
        never: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        return await never

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._is_stopping = True
        await self._exits.aclose()

    def stop_draining(self) -> None:
        """The end no longer waits for open requests."""
        self.server.stop_draining()

    async def reload(self, settings: Settings) -> None:
        """Serves new requests by these settings, except for what cannot change while it runs.

        Raises SettingsError or StoreError if they cannot be used. Nothing has changed then. In a worker the
        supervisor has looked at them first, and says in the log what has changed.
        """
        change = find_change(self.serving.settings, settings)
        if self._place is None:
            await check_change(change, settings, self.port)
        if self._is_stopping:
            log.info("settings not reloaded: the gateway is stopping")
            return
        if change.sections:
            self._use(change.settings)
            self._check_upstreams()
            self._admin.use(change.settings.admin)
        if self._place is None:
            log_change(change)

    def _use(self, settings: Settings) -> None:
        """Requests that begin from now on are served by these settings."""
        # Turns hold upstreams, credentials and policies of the settings before.
        self.process.branches.forget_turns()
        self.serving = Serving(settings, self.process, self.serving)
        self.process.activity.use_prices(self.serving.prices.find)

    def _check_upstreams(self) -> None:
        """In the background. Those that were served before are left out."""
        if self._place is None or self._place.checks_upstreams:
            self.process.asking.spawn(check_upstreams(self.serving.unchecked, self.process.client))

    async def _open_storage(self, exits: AsyncExitStack) -> None:
        process = self.process
        exits.callback(process.lanes.close)
        for part in (process.stores.originals, process.stores.named, process.search, process.stores.state):
            exits.push_async_callback(part.close)
        for writer in (process.archive, process.named, process.log_writer):
            exits.push_async_callback(writer.finish)
        exits.push_async_callback(process.keeper.close)
        exits.push_async_callback(process.sessions.finish)
        await process.stores.open()
        process.keeper.start()
        process.search.start()
        exits.push_async_callback(process.ledger.close)
        await process.ledger.open()

    async def _open_network(self, exits: AsyncExitStack) -> None:
        process = self.process
        exits.push_async_callback(process.client.close)
        if process.tracer is not None:
            process.tracer.open()
            exits.push_async_callback(process.tracer.close)
        listening = asyncio.create_task(listen(process.bus, lambda: self.serving.hooks))
        exits.push_async_callback(_cancel, listening)
        note_delay = partial(process.metrics.observe, definitions.LOOP_DELAY_SECONDS)
        sampling = asyncio.create_task(sample_loop_delay(note_delay))
        exits.push_async_callback(_cancel, sampling)
        if self._place is None:
            exits.push_async_callback(_cancel, asyncio.create_task(process.feed.run()))
        # Markers of unfinished compactions stay: the next request of the conversation starts them again.
        exits.push_async_callback(process.asking.close)
        exits.push_async_callback(process.running.tasks.close)

    async def _listen(self, exits: AsyncExitStack) -> None:
        exits.push_async_callback(self._admin.close)
        exits.push_async_callback(self.server.close)
        exits.push_async_callback(self._drain)
        if self._place is None:
            await self._open_port()
        await self._admin.open()
        if self._place is not None:
            await self.server.open_sockets(self._place.sockets)
        self._check_upstreams()

    async def _open_port(self) -> None:
        settings, listen = self._settings, self._settings.listen
        try:
            await self.server.open(listen.host, listen.port)
        except OSError as error:
            raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error
        loop = await asyncio.to_thread(describe_loop, settings.upstreams.values(), listen, self.port)
        if loop is not None:
            raise OSError(loop)
        log.info("listening on http://%s:%d", listen.host, self.port)

    async def _drain(self) -> None:
        await self.server.drain(self.serving.settings.drain_seconds)

    async def _respond(self, request: Request, reply: Reply) -> None:
        path = request.head.target
        if path == "/healthz":
            await _send_status(reply, 200, status="ok", service=SERVICE, version=__version__)
        elif path == "/readyz":
            is_draining = self.server.is_draining
            await _send_status(
                reply, 503 if is_draining else 200, status="draining" if is_draining else "ready"
            )
        elif request.is_late:
            await reply.refuse(Overloaded("The gateway is shutting down; try again."))
        else:
            await self._serve(request, reply)

    async def _serve(self, request: Request, reply: Reply) -> None:
        serving, head = self.serving, request.head
        reply.origin = _find_page(head, serving.settings)
        is_asking = reply.origin is not None and head.method == hdrs.METH_OPTIONS
        if is_asking and hdrs.ACCESS_CONTROL_REQUEST_METHOD in head.headers:
            await reply.answer(204, b"", _make_permission(head))
        elif serving.mcp is not None and is_mcp(head.target):
            await serving.mcp.respond(request, reply)
        else:
            await serving.respond(request, reply)


def _make_bounds(bounds: Bounds) -> PortBounds:
    descriptors = count_descriptors()
    most = find_most_connections(descriptors)
    if most < bounds.connections:
        log.info("at most %d connections: ulimit -n is %d", most, descriptors)
    return PortBounds(
        connections=min(bounds.connections, most),
        connections_per_address=bounds.connections_per_address,
        descriptors=find_fence(descriptors),
        head_bytes=bounds.head_bytes,
        head_seconds=bounds.head_seconds,
        stall_seconds=bounds.stall_seconds,
    )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _send_status(reply: Reply, code: int, **facts: str) -> None:
    await reply.answer(code, json.dumps(facts).encode())


def _find_page(head: RequestHead, settings: Settings) -> str | None:
    """The origin of the page that asks, if it may, and if the gateway has to say so.

    Without tenants the upstream answers for itself. With them a browser asks without a key, so that nobody
    knows which upstream it means.
    """
    origin = head.headers.get(hdrs.ORIGIN) if settings.tenants else None
    return origin if origin in settings.listen.origins else None


def _make_permission(head: RequestHead) -> dict[str, str]:
    """Whatever the page wants to send: the key decides on the request itself
    (https://fetch.spec.whatwg.org/#http-cors-protocol).
    """
    permission = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: head.headers[hdrs.ACCESS_CONTROL_REQUEST_METHOD],
        hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_SECONDS),
    }
    wanted = head.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
    if wanted is not None:
        permission[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
    return {str(name): value for name, value in permission.items()}


# The admin port


def _build_admin(
    settings: Settings,
    socket: Path | None,
    find_port: Callable[[], int],
    process: Process,
    find_serving: Callable[[], Serving],
) -> AdminServer | WorkerAdmin:
    """socket: of a worker, whose supervisor serves the admin port."""

    def make_pages(events: EventPage) -> AdminPages:
        sources = PageSources(
            find_port=find_port,
            metrics=process.metrics,
            events=events,
            activity=process.activity,
            branches=process.branches,
            compaction_log=process.log_writer,
            originals=process.archive,
            search=process.search,
            sessions=process.sessions,
            state=process.state,
            purge=process.purge,
            find_serving=find_serving,
        )
        return AdminPages(sources)

    if socket is None:
        return AdminServer(settings.admin, make_pages(EventStream(process.bus)))
    stream = WorkerStream(process.bus, process.metrics)
    return WorkerAdmin(socket, make_pages(stream), stream, process.activity)


def _watch_parts(process: Process, find_serving: Callable[[], Serving]) -> None:
    """Once, when everything is constructed."""
    metrics, budget, slots = process.metrics, process.budget, process.running.slots
    store = process.stores.state
    metrics.watch(definitions.MEMORY_USED, lambda: {"": budget.used_bytes})
    metrics.watch(definitions.MEMORY_LIMIT, lambda: {"": budget.max_bytes})
    metrics.watch(definitions.MEMORY_WAITING, lambda: {"": budget.waiting})
    metrics.watch(definitions.SUMMARIES_RUNNING, lambda: {"": slots.taken})
    metrics.watch(definitions.SUMMARIES_WAITING, lambda: {"": slots.waiting})
    metrics.watch(definitions.WRITES_WAITING, lambda: _count_waiting(process))
    metrics.watch(
        definitions.SUMMARIZER_BREAKERS, lambda: {"": find_serving().compactions.count_open_breakers()}
    )
    metrics.watch(
        definitions.STORE_BREAKER, lambda: {"": float(isinstance(store, QueuedStore) and store.is_away)}
    )


def _count_waiting(process: Process) -> Mapping[str, float]:
    """By the queue."""
    store = process.stores.state
    return {
        **({"store": store.waiting_bytes} if isinstance(store, QueuedStore) else {}),
        "named": process.named.waiting_bytes,
        "originals": process.archive.waiting_bytes,
        "search": process.search.waiting_bytes,
        "sessions": process.sessions.waiting_bytes,
    }
