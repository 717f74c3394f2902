"""A running gateway: opens its parts in order, answers the data port, and closes everything in reverse.

The data port answers `/healthz` and `/readyz` here; every other request goes to the proxy.
"""

import asyncio
import json
import logging
from contextlib import AsyncExitStack

from gateway import __version__
from gateway.bounds.descriptors import count_descriptors, find_fence, find_most_connections
from gateway.core.errors import Overloaded
from gateway.downstream.bind_errors import describe_bind_error
from gateway.downstream.gate import PortBounds
from gateway.downstream.request import Request
from gateway.downstream.response import Response, send_local_response, send_refusal
from gateway.downstream.server import Server
from gateway.reporting.events import Bus
from gateway.settings import Bounds, Settings
from gateway.upstream.loop_guard import leads_to_itself
from gateway.wiring import Parts, build

log = logging.getLogger("gateway.app")

SERVICE = "context-window-gateway"


class Gateway:
    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._server = Server(self._respond, _make_bounds(settings.bounds))
        self._exits = AsyncExitStack()

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
        return self._parts.table.size

    @property
    def bus(self) -> Bus:
        """The events of this process."""
        return self._parts.foundation.bus

    @property
    def is_idle(self) -> bool:
        """True if no learning or compaction runs in the background."""
        return self._parts.compactor.is_idle

    async def start(self) -> None:
        """Raises OSError for a port that is taken, or an upstream that is this gateway."""
        async with AsyncExitStack() as exits:
            await self._open_storage(exits)
            await self._open_network(exits)
            await self._listen(exits)
            self._exits = exits.pop_all()

    async def stop(self) -> None:
        """Drains open requests, then writes what is queued, and closes everything."""
        await self._exits.aclose()

    def stop_draining(self) -> None:
        """`stop` no longer waits for open requests."""
        self._server.stop_draining()

    async def _open_storage(self, exits: AsyncExitStack) -> None:
        parts, foundation = self._parts, self._parts.foundation
        exits.callback(foundation.lanes.close)
        exits.push_async_callback(foundation.originals_store.close)
        exits.push_async_callback(foundation.named_store.close)
        exits.push_async_callback(foundation.archive.finish)
        exits.push_async_callback(foundation.store.close)
        exits.push_async_callback(foundation.log_writer.finish)
        exits.callback(foundation.state.heads.flush)
        await foundation.store.open()
        await foundation.originals_store.open()
        await foundation.named_store.open()
        await asyncio.to_thread(parts.planning.tokenizer.load)

    async def _open_network(self, exits: AsyncExitStack) -> None:
        parts = self._parts
        exits.push_async_callback(parts.pipeline.relay.close)
        exits.push_async_callback(parts.client.aclose)
        exits.push_async_callback(parts.discovery.close)
        await parts.pipeline.relay.open()
        listening = asyncio.create_task(parts.hooks.listen(parts.foundation.bus))
        exits.push_async_callback(_cancel, listening)
        exits.push_async_callback(parts.compactor.close)

    async def _listen(self, exits: AsyncExitStack) -> None:
        listen = self._settings.listen
        exits.push_async_callback(self._parts.admin.close)
        exits.push_async_callback(self._server.close)
        exits.push_async_callback(self._server.drain, self._settings.drain_seconds)
        try:
            await self._server.open(listen.host, listen.port)
        except OSError as error:
            raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error
        await asyncio.to_thread(self._refuse_itself)
        await self._parts.admin.open()
        log.info("listening on http://%s:%d", listen.host, self.port)
        exits.push_async_callback(_cancel, asyncio.create_task(self._parts.start_check.run()))

    def _refuse_itself(self) -> None:
        for upstream in self._settings.upstreams.values():
            if leads_to_itself(upstream, self._settings.listen, self.port):
                raise OSError(
                    f"upstream '{upstream.name}' ({upstream.base_url}) points at the gateway itself"
                )

    async def _respond(self, request: Request) -> Response | None:
        path = request.head.target
        if path == "/healthz":
            return _send_status(request, 200, status="ok", service=SERVICE, version=__version__)
        if path == "/readyz":
            if self._server.is_draining:
                return _send_status(request, 503, status="draining")
            return _send_status(request, 200, status="ready")
        if request.is_late:
            return send_refusal(request, Overloaded("The gateway is shutting down; try again."))
        return await self._parts.pipeline.proxy.respond(request)


async def start_gateway(settings: Settings) -> Gateway:
    """Raises StoreError for a store this build does not know, OSError for a port that is taken."""
    gateway = Gateway(settings, build(settings))
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


def _send_status(request: Request, code: int, **facts: str) -> Response:
    return send_local_response(request, code, json.dumps(facts).encode())
