"""A gateway of several processes: opens the store and the port once, and keeps the workers running.

It serves the store to the workers, unless each of them can connect to it, and answers on the admin port.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from gateway.admin.merged.front import AdminFront
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.command_line.options import SettingsSource
from gateway.downstream.bind_errors import describe_bind_error
from gateway.downstream.shared_port import bind_port
from gateway.downstream.tally import Tally
from gateway.quotas.served import SERVICE, QuotaServer
from gateway.reload.changes import check_change, find_change, log_change
from gateway.settings import Settings
from gateway.store.redis.address import is_redis
from gateway.store.served.store_server import StoreServer
from gateway.store.stores import make_stores
from gateway.upgrade import upgrade_stores
from gateway.upstream.loop_guard import describe_loop
from gateway.workers.crew import Crew
from gateway.workers.messages import ReloadOrder, SettingsText, StartOrder, pack_settings
from gateway.workers.runtime_directory import make_runtime_directory
from gateway.workers.worker_process import Launch, WorkerFailed, WorkerProcess, find_program, launch

log = logging.getLogger("gateway.workers")

# Behind the drain a worker writes what is queued and closes its connections.
_CLOSE_SECONDS: Final = 10.0


class Supervisor:
    """source: of these settings. arguments: those of the workers, behind `gateway`."""

    def __init__(
        self, settings: Settings, source: SettingsSource, arguments: Sequence[str], workers: int
    ) -> None:
        self._settings = settings
        self._source = source
        self._text = pack_settings(source.file)
        self._reloaded: SettingsText | None = None
        self._arguments = arguments
        self.workers = workers
        self._sockets: list[socket.socket] = []
        self._tally = Tally.create(workers)
        self._exits = AsyncExitStack()
        self._folder = Path()
        self._live = LiveWorkers()
        self._front = AdminFront(lambda: self._settings, self._live)
        self._crew = Crew(workers, self._launch, self._note_end, self._live.count_replaced)
        # The admin socket of the newest process of each slot.
        self._admin_sockets: dict[int, Path] = {}
        # How many processes were started, for names that are never used twice.
        self._started = 0
        # None if each worker connects to the store itself.
        self._store_server: StoreServer | None = None
        self.port = 0
        self.windows = 0

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self._front.port

    async def start(self) -> None:
        """Returns once all workers serve. Raises OSError, StoreError or WorkerFailed."""
        async with AsyncExitStack() as exits:
            exits.callback(self._tally.close)
            folder = make_runtime_directory()
            exits.callback(folder.cleanup)
            self._folder = Path(folder.name)
            await self._open_store(exits)
            await self._open_port(exits)
            # The workers report their last metrics to it.
            exits.push_async_callback(self._front.close)
            exits.push_async_callback(self._close_crew)
            self.windows = (await self._crew.open()).windows
            self._front.facts.port = self.port
            await self._front.open()
            log.info(
                "listening on http://%s:%d with %d workers",
                self._settings.listen.host,
                self.port,
                self.workers,
            )
            self._exits = exits.pop_all()

    async def reload(self, settings: Settings) -> None:
        """Has all workers use these settings.

        Raises SettingsError or StoreError if they cannot. Nothing has changed then.
        """
        change = find_change(self._settings, settings)
        await check_change(change, settings, self.port)
        reloaded = pack_settings(self._source.file)
        if reloaded is not None:
            self._reloaded = reloaded
            self._crew.send(ReloadOrder(settings=reloaded))
        self._settings = change.settings
        self._front.use(change.settings.admin)
        log_change(change)

    def note_reload(self, *, has_failed: bool) -> None:
        """For the metrics."""
        self._live.count_reload(has_failed=has_failed)

    async def wait_failure(self) -> WorkerFailed:
        """Returns when no worker can be kept alive any more."""
        return await self._crew.failure

    async def stop(self) -> None:
        """Lets the workers finish open requests and end, then closes everything."""
        self._crew.drain()
        self._close_port()
        await self._exits.aclose()

    async def _close_crew(self) -> None:
        await self._crew.close(self._settings.drain_seconds + _CLOSE_SECONDS)

    def stop_draining(self) -> None:
        """The workers no longer wait for open requests."""
        self._crew.hurry()

    async def _open_store(self, exits: AsyncExitStack) -> None:
        url, retention = self._settings.store, self._settings.retention
        if is_redis(url):
            # Each worker connects itself.
            return
        await asyncio.to_thread(upgrade_stores, url)
        stores = make_stores(
            url, originals_bytes=retention.originals_bytes, named_bytes=retention.named_bytes
        )
        exits.push_async_callback(stores.close)
        await stores.open()
        self._store_server = StoreServer(stores, {SERVICE: QuotaServer().answer})
        exits.push_async_callback(self._store_server.close)

    async def _open_port(self, exits: AsyncExitStack) -> None:
        listen = self._settings.listen
        try:
            self._sockets = await bind_port(listen.host, listen.port)
        except OSError as error:
            raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error
        exits.callback(self._close_port)
        self.port = self._sockets[0].getsockname()[1]
        upstreams = self._settings.upstreams.values()
        loop = await asyncio.to_thread(describe_loop, upstreams, listen, self.port)
        if loop is not None:
            raise OSError(loop)

    def _close_port(self) -> None:
        """In this process. The workers still have it."""
        for listening in self._sockets:
            listening.close()

    async def _launch(self, slot: int) -> WorkerProcess:
        self._started += 1
        admin_socket = self._folder / f"{slot + 1}-{self._started}.admin"
        worker = await self._launch_connected(slot, admin_socket)
        self._admin_sockets[slot] = admin_socket
        self._live.add(admin_socket)
        return worker

    async def _launch_connected(self, slot: int, admin_socket: Path) -> WorkerProcess:
        """With a connection to the store, unless the worker makes its own."""
        if self._store_server is None:
            return await self._launch_with(slot, admin_socket, None)
        ours, theirs = socket.socketpair()
        with theirs:
            await self._store_server.connect(ours)
            return await self._launch_with(slot, admin_socket, theirs.fileno())

    async def _launch_with(self, slot: int, admin_socket: Path, store: int | None) -> WorkerProcess:
        listening = tuple(each.fileno() for each in self._sockets)
        order = StartOrder(
            settings=self._text,
            reloaded=self._reloaded,
            listening=listening,
            tally=self._tally.descriptor,
            store=store,
            admin_path=str(admin_socket),
            checks_upstreams=slot == 0,
        )
        descriptors = (*listening, self._tally.descriptor, *(() if store is None else (store,)))
        launching = Launch(
            number=slot + 1, command=(*find_program(), *self._arguments), descriptors=descriptors
        )
        worker = await launch(launching, order)
        if self._reloaded is not None and self._reloaded != order.reloaded:
            worker.send(ReloadOrder(settings=self._reloaded))
        return worker

    def _note_end(self, slot: int) -> None:
        self._tally.leave(slot)
        admin_socket = self._admin_sockets.pop(slot)
        self._live.remove(admin_socket)
        # A worker that was killed has left it.
        admin_socket.unlink(missing_ok=True)


async def start_supervisor(
    settings: Settings, source: SettingsSource, arguments: Sequence[str], workers: int
) -> Supervisor:
    """Raises OSError, StoreError or WorkerFailed."""
    supervisor = Supervisor(settings, source, arguments, workers)
    await supervisor.start()
    return supervisor
