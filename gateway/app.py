"""A running gateway: opens its parts in order, answers the data port, and closes everything in reverse.

The data port answers `/healthz` and `/readyz` here; every other request goes to the proxy.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.bounds.process import count_descriptors, find_fence, find_most_connections, sample_loop_delay
from gateway.core.errors import Overloaded
from gateway.hooks import listen
from gateway.http.failures import describe_loop
from gateway.http.guard import PortBounds
from gateway.http.ports import describe_bind_error
from gateway.http.reply import Reply
from gateway.http.request import Request
from gateway.http.server import Server
from gateway.reload.changes import check_change, find_change, log_change
from gateway.reload.generations import Generations
from gateway.reporting.events import Bus
from gateway.settings import Bounds, Settings
from gateway.wiring import Parts, build

log = logging.getLogger("gateway.app")

SERVICE = "context-window-gateway"


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """What the supervisor has opened for one of its workers."""

    # They listen at the port of the gateway.
    sockets: Sequence[socket.socket]
    # Where it shows its admin pages to the supervisor.
    admin_socket: Path
    # True for one worker of a gateway.
    checks_upstreams: bool


class Gateway:
    def __init__(self, settings: Settings, parts: Parts, place: WorkerPlace | None = None) -> None:
        """place: None for a gateway of one process."""
        self._settings = settings
        self._parts = parts
        self._place = place
        self.generations = Generations(parts.foundation, parts.current)
        self._server = Server(self._respond, _make_bounds(settings.bounds))
        self._exits = AsyncExitStack()
        self._reloading = asyncio.Lock()
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        parts.foundation.stores.state.subscribe(self)

    @property
    def port(self) -> int:
        """The port it listens on, also if the settings ask for port 0."""
        return self._server.port

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self._parts.admin.port

    @property
    def windows(self) -> int:
        """How many models have a window in the bundled table."""
        return self._parts.foundation.table.size

    @property
    def workers(self) -> int:
        """How many processes serve the port."""
        return 1

    @property
    def bus(self) -> Bus:
        """The events of this process."""
        return self._parts.foundation.bus

    @property
    def is_idle(self) -> bool:
        """True if no learning or compaction runs in the background."""
        return self.generations.is_idle

    def on_news(self, tag: str, text: str) -> None:
        """Of the store: not for this."""

    def on_purged(self, tag: str, group: str | None) -> None:
        """A tenant or a conversation. What depends on the settings, and remembers tenants, is built anew."""
        foundation = self._parts.foundation
        if group is not None:
            foundation.forget_conversation(tag, group)
        else:
            foundation.forget(tag)
            self._spawn(self._build_anew())

    def on_gap(self) -> None:
        """News of the store were lost: not for this."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _build_anew(self) -> None:
        async with self._reloading:
            if not self._is_stopping:
                await self.generations.replace(self.generations.settings)

    def note_reload(self, *, has_failed: bool) -> None:
        """For the metrics."""
        self._parts.foundation.metrics.count_reload(has_failed=has_failed)

    async def start(self) -> None:
        """Raises OSError for a port that is taken, or an upstream that is this gateway."""
        async with AsyncExitStack() as exits:
            await self._open_storage(exits)
            await self._open_network(exits)
            await self._listen(exits)
            self._exits = exits.pop_all()

    async def wait_failure(self) -> Exception:
        """Never returns: a gateway that has started goes on."""
        never: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self) -> None:
        """Drains open requests, then writes what is queued, and closes everything."""
        self._is_stopping = True
        await self._exits.aclose()

    def stop_draining(self) -> None:
        """`stop` no longer waits for open requests."""
        self._server.stop_draining()

    def stop_listening(self) -> None:
        """New connections are left to other workers."""
        self._server.stop_listening()

    def retire(self) -> None:
        """Everything new is left to other workers. Each open connection closes behind its next response."""
        self._server.retire()

    def close_unused(self) -> None:
        """Closes the connections on which nothing of a request has come."""
        self._server.close_unused()

    async def reload(self, settings: Settings) -> None:
        """Serves new requests by these settings, except for what cannot change while it runs.

        Raises SettingsError or StoreError if they cannot be used. Nothing has changed then. In a worker the
        supervisor has looked at them first, and says in the log what has changed.
        """
        async with self._reloading:
            if self._is_stopping:
                log.info("settings not reloaded: the gateway is stopping")
                return
            change = find_change(self.generations.settings, settings)
            if self._place is None:
                await check_change(change, settings, self.port)
            if change.sections:
                await self.generations.replace(change.settings)
                if self._checks_upstreams:
                    self.generations.check_upstreams()
                self._parts.admin.use(change.settings.admin)
            if self._place is None:
                log_change(change)

    @property
    def _checks_upstreams(self) -> bool:
        return self._place is None or self._place.checks_upstreams

    async def _open_storage(self, exits: AsyncExitStack) -> None:
        foundation = self._parts.foundation
        exits.callback(foundation.lanes.close)
        exits.push_async_callback(foundation.stores.originals.close)
        exits.push_async_callback(foundation.stores.named.close)
        exits.push_async_callback(foundation.search.close)
        exits.push_async_callback(foundation.stores.state.close)
        exits.push_async_callback(foundation.archive.finish)
        exits.push_async_callback(foundation.named.finish)
        exits.push_async_callback(foundation.log_writer.finish)
        exits.push_async_callback(foundation.keeper.close)
        exits.push_async_callback(foundation.sessions.finish)
        await foundation.stores.open()
        foundation.keeper.start()
        foundation.search.start()
        exits.push_async_callback(foundation.quotas.ledger.close)
        await foundation.quotas.ledger.open()
        await asyncio.to_thread(foundation.reading.tokenizer.load)

    async def _open_network(self, exits: AsyncExitStack) -> None:
        foundation, current = self._parts.foundation, self._parts.current
        exits.push_async_callback(foundation.client.close)
        if foundation.tracer is not None:
            foundation.tracer.open()
            exits.push_async_callback(foundation.tracer.close)
        listening = asyncio.create_task(listen(foundation.bus, lambda: current.generation.hooks))
        exits.push_async_callback(_cancel, listening)
        sampling = asyncio.create_task(sample_loop_delay(foundation.metrics.note_loop_delay))
        exits.push_async_callback(_cancel, sampling)
        if self._place is None:
            exits.push_async_callback(_cancel, asyncio.create_task(foundation.feed.run()))
        exits.push_async_callback(self.generations.close)

    async def _listen(self, exits: AsyncExitStack) -> None:
        exits.push_async_callback(self._parts.admin.close)
        exits.push_async_callback(self._server.close)
        exits.push_async_callback(self._drain)
        if self._place is None:
            await self._open_port()
        await self._parts.admin.open()
        if self._place is not None:
            await self._server.open_sockets(self._place.sockets)
        if self._checks_upstreams:
            self.generations.check_upstreams()

    async def _open_port(self) -> None:
        settings, listen = self._settings, self._settings.listen
        try:
            await self._server.open(listen.host, listen.port)
        except OSError as error:
            raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error
        self._parts.facts.port = self.port
        loop = await asyncio.to_thread(describe_loop, settings.upstreams.values(), listen, self.port)
        if loop is not None:
            raise OSError(loop)
        log.info("listening on http://%s:%d", listen.host, self.port)

    async def _drain(self) -> None:
        await self._server.drain(self.generations.settings.drain_seconds)

    async def _respond(self, request: Request, reply: Reply) -> None:
        path = request.head.target
        if path == "/healthz":
            await _send_status(reply, 200, status="ok", service=SERVICE, version=__version__)
        elif path == "/readyz":
            is_draining = self._server.is_draining
            await _send_status(
                reply, 503 if is_draining else 200, status="draining" if is_draining else "ready"
            )
        elif request.is_late:
            await reply.refuse(Overloaded("The gateway is shutting down; try again."))
        else:
            await self.generations.respond(request, reply)


async def start_gateway(settings: Settings, place: WorkerPlace | None = None) -> Gateway:
    """place: for one of several workers.

    Raises StoreError for a store this build does not know, OSError for a port that is taken.
    """
    parts = build(settings) if place is None else build(settings, admin_socket=place.admin_socket)
    gateway = Gateway(settings, parts, place)
    await gateway.start()
    return gateway


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
