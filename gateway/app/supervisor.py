"""A gateway of several processes: opens the port, keeps the workers running, and answers on the admin port.

Each worker opens the store itself.
"""

import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from gateway.admin.merged.front import AdminFront
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.app.crew import Crew
from gateway.app.orders import HurryOrder, ReloadOrder, SettingsText, StartOrder, pack_settings
from gateway.app.reload import check_change, find_change, log_change
from gateway.app.worker_process import WorkerFailed, WorkerProcess, launch
from gateway.command_line.options import SettingsSource
from gateway.http.failures import describe_loop
from gateway.http.ports import bind_beside, bind_slots, close_all, describe_bind_error, is_listening
from gateway.settings import Settings

log = logging.getLogger("gateway.workers")

# Behind the drain a worker writes what is queued and closes its connections.
_CLOSE_SECONDS: Final = 10.0
# A Unix socket's path has at most 107 bytes on Linux and 103 on macOS; a file name comes behind the folder.
_MAX_PATH_BYTES: Final = 80
_PREFIX: Final = "gateway-"
_SHORT: Final = "/tmp"


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
        # Of each slot. They stay open here, so that new connections wait for the successor of a worker.
        self._sockets: list[list[socket.socket]] = []
        self._exits = AsyncExitStack()
        self._folder = Path()
        self._live = LiveWorkers()
        self._front = AdminFront(lambda: self._settings, self._live)
        self._crew = Crew(workers, self._launch, self._note_end, self._live.count_replaced, self._leave)
        # The admin socket of the newest process of each slot.
        self._admin_sockets: dict[int, Path] = {}
        # How many processes were started, for names that are never used twice.
        self._started = 0
        self.port = 0
        self.windows = 0

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self._front.port

    async def start(self) -> None:
        """Returns once all workers serve. Raises OSError, StoreError or WorkerFailed."""
        async with AsyncExitStack() as exits:
            folder = make_runtime_directory()
            exits.callback(folder.cleanup)
            self._folder = Path(folder.name)
            self._warn_of_memory()
            await self._open_port(exits)
            # The workers report their last metrics to it.
            exits.push_async_callback(self._front.close)
            exits.push_async_callback(lambda: self._crew.close(self._find_end_seconds()))
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

    def _find_end_seconds(self) -> float:
        """In which a worker drains and closes what it has."""
        return self._settings.drain_seconds + _CLOSE_SECONDS

    def stop_draining(self) -> None:
        """The workers no longer wait for open requests."""
        self._crew.send(HurryOrder())

    def _warn_of_memory(self) -> None:
        if self._settings.store == "memory:":
            log.warning(
                "store: memory: each of %d workers has a state of its own; use disk:PATH to share one",
                self.workers,
            )

    async def _open_port(self, exits: AsyncExitStack) -> None:
        listen = self._settings.listen
        try:
            self._sockets = await bind_slots(listen.host, listen.port, self.workers)
        except OSError as error:
            raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error
        exits.callback(self._close_port)
        self.port = self._sockets[0][0].getsockname()[1]
        upstreams = self._settings.upstreams.values()
        loop = await asyncio.to_thread(describe_loop, upstreams, listen, self.port)
        if loop is not None:
            raise OSError(loop)

    def _close_port(self) -> None:
        """In this process. The workers still have it."""
        for sockets in self._sockets:
            close_all(sockets)
            sockets.clear()

    def _let_leave(self, slot: int) -> float:
        """Returns the seconds that the worker has for its end."""
        self._leave(slot)
        return self._find_end_seconds()

    def _leave(self, slot: int) -> None:
        """New connections go to the other workers, unless none listens. Those that already wait here and
        that no process accepts are reset.
        """
        others = chain.from_iterable(self._sockets[:slot] + self._sockets[slot + 1 :])
        if any(map(is_listening, others)):
            close_all(self._sockets[slot])
            self._sockets[slot].clear()

    async def _launch(self, slot: int) -> WorkerProcess:
        if not self._sockets[slot]:
            self._sockets[slot] = bind_beside(next(filter(None, self._sockets)))
        self._started += 1
        admin_socket = self._folder / f"{slot + 1}-{self._started}.admin"
        order = StartOrder(
            settings=self._text,
            reloaded=self._reloaded,
            listening=tuple(each.fileno() for each in self._sockets[slot]),
            admin_path=str(admin_socket),
            checks_upstreams=slot == 0,
        )
        worker = await launch(slot + 1, self._arguments, order, partial(self._let_leave, slot))
        if self._reloaded is not None and self._reloaded != order.reloaded:
            worker.send(ReloadOrder(settings=self._reloaded))
        self._admin_sockets[slot] = admin_socket
        self._live.add(admin_socket)
        return worker

    def _note_end(self, slot: int) -> None:
        admin_socket = self._admin_sockets.pop(slot)
        self._live.remove(admin_socket)
        # A worker that was killed has left it.
        admin_socket.unlink(missing_ok=True)


@asynccontextmanager
async def supervising(
    settings: Settings, source: SettingsSource, arguments: Sequence[str], workers: int
) -> AsyncIterator[Supervisor]:
    """Serves while the block lasts, see `Supervisor`. Raises OSError, StoreError or WorkerFailed."""
    supervisor = Supervisor(settings, source, arguments, workers)
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


def make_runtime_directory() -> "tempfile.TemporaryDirectory[str]":
    """For the sockets of one running gateway, which only its user can enter. It is gone after its `cleanup`.

    Raises OSError if there is no place for temporary files.
    """
    usual = tempfile.gettempdir()
    is_long = len(os.fsencode(usual)) + len(_PREFIX) > _MAX_PATH_BYTES
    return tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=_SHORT if is_long else usual, ignore_cleanup_errors=True
    )
