"""A gateway of several processes: opens the port, keeps the workers running, and answers on the admin port.

Each worker opens the store itself.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from gateway.admin.merged.front import AdminFront
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.app.orders import Order, pack_settings
from gateway.app.reload import check_change, find_change, log_change
from gateway.app.slot import Crew, Slot, WorkerFailed
from gateway.command_line.options import SettingsSource
from gateway.http.failures import describe_loop
from gateway.http.ports import bind_slots, close_all, describe_bind_error
from gateway.settings import Settings

log = logging.getLogger("gateway.workers")

# Behind the drain a worker writes what is queued and closes its connections.
_CLOSE_SECONDS: Final = 10.0
# A Unix socket's path has at most 107 bytes on Linux and 103 on macOS; a file name comes behind the folder.
_MAX_PATH_BYTES: Final = 80
_PREFIX: Final = "gateway-"
_SHORT: Final = "/tmp"


class Supervisor:
    """Serves inside `async with`. At its end the workers finish open requests and end.

    source: of these settings. arguments: those of the workers, behind `gateway`.
    """

    def __init__(
        self, settings: Settings, source: SettingsSource, arguments: Sequence[str], workers: int
    ) -> None:
        self._settings = settings
        self._source = source
        self._live = LiveWorkers()
        self._front = AdminFront(lambda: self._settings, self._live)
        self._crew = Crew(arguments=arguments, live=self._live, settings=pack_settings(source.file))
        self._keepers: list[asyncio.Task[None]] = []
        self._exits = AsyncExitStack()
        self.workers = workers
        self.port = 0
        self.windows = 0
        self._use(settings)

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self._front.port

    async def __aenter__(self) -> Self:
        """Returns once all workers serve. Raises OSError, StoreError or WorkerFailed."""
        async with AsyncExitStack() as exits:
            folder = _make_runtime_directory()
            exits.callback(folder.cleanup)
            self._crew.folder = Path(folder.name)
            self._warn_of_memory()
            await self._open_port(exits)
            # The workers report their last metrics to it.
            exits.push_async_callback(self._front.close)
            exits.push_async_callback(self._close_workers)
            self.windows = await self._start_workers()
            self._front.data_port = self.port
            await self._front.open()
            log.info(
                "listening on http://%s:%d with %d workers",
                self._settings.listen.host,
                self.port,
                self.workers,
            )
            self._exits = exits.pop_all()
        return self

    async def reload(self, settings: Settings) -> None:
        """Has all workers use these settings.

        Raises SettingsError or StoreError if they cannot. Nothing has changed then.
        """
        change = find_change(self._settings, settings)
        await check_change(change, settings, self.port)
        reloaded = pack_settings(self._source.file)
        if reloaded is not None:
            self._crew.reloaded = reloaded
            self._crew.send(Order(kind="reload", settings=reloaded))
        self._use(change.settings)
        self._front.use(change.settings.admin)
        log_change(change)

    def count_reload(self, has_failed: bool, /) -> None:
        """For the metrics."""
        self._live.count_reload(has_failed)

    async def wait_failure(self) -> WorkerFailed:
        """Returns when no worker can be kept alive any more."""
        return await self._crew.failure

    async def __aexit__(self, *_: object) -> None:
        self._drain()
        self._close_port()
        await self._exits.aclose()

    def stop_draining(self) -> None:
        """The workers no longer wait for open requests."""
        self._crew.send(Order(kind="hurry"))

    def _use(self, settings: Settings) -> None:
        self._settings = settings
        self._crew.end_seconds = settings.drain_seconds + _CLOSE_SECONDS

    def _warn_of_memory(self) -> None:
        if self._settings.store == "memory:":
            log.warning(
                "store: memory: each of %d workers has a state of its own; use disk:PATH to share one",
                self.workers,
            )

    async def _open_port(self, exits: AsyncExitStack) -> None:
        listen, crew = self._settings.listen, self._crew
        try:
            places = await bind_slots(listen.host, listen.port, self.workers)
        except OSError as error:
            raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error
        crew.slots = [Slot(number, sockets, crew) for number, sockets in enumerate(places, 1)]
        exits.callback(self._close_port)
        self.port = places[0][0].getsockname()[1]
        upstreams = self._settings.upstreams.values()
        loop = await asyncio.to_thread(describe_loop, upstreams, listen, self.port)
        if loop is not None:
            raise OSError(loop)

    def _close_port(self) -> None:
        """In this process. The workers still have it."""
        for slot in self._crew.slots:
            close_all(slot.sockets)
            slot.sockets.clear()

    async def _start_workers(self) -> int:
        """Returns once all serve: how many models have a window in the bundled table.

        Raises WorkerFailed, or OSError if the system starts no process.
        """
        starts = [asyncio.create_task(slot.begin()) for slot in self._crew.slots]
        try:
            windows = await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self._kill()
            raise
        self._keepers = [asyncio.create_task(slot.keep()) for slot in self._crew.slots]
        for keeper in self._keepers:
            keeper.add_done_callback(self._note_keeper)
        return windows[0]

    def _note_keeper(self, keeper: "asyncio.Task[None]") -> None:
        """A mistake of ours in a keeper must not leave a slot empty without a word."""
        if not keeper.cancelled() and keeper.exception() is not None:
            self._crew.fail(WorkerFailed(f"workers cannot be kept alive: {keeper.exception()!r}"))

    def _drain(self) -> None:
        """All workers finish their open requests and end. None is replaced any more."""
        self._crew.is_stopping = True
        self._crew.send(Order(kind="drain"))

    async def _close_workers(self) -> None:
        """Returns once all have ended. Those that take too long are killed."""
        self._drain()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        try:
            async with asyncio.timeout(self._crew.end_seconds):
                await self._reap()
        except TimeoutError:
            left = sum(not slot.is_empty for slot in self._crew.slots)
            log.warning("workers have not ended in time and are killed: %d", left)
            await self._kill()

    async def _kill(self) -> None:
        for slot in self._crew.slots:
            slot.kill()
        await self._reap()

    async def _reap(self) -> None:
        await asyncio.gather(*(slot.wait() for slot in self._crew.slots))


def _make_runtime_directory() -> "tempfile.TemporaryDirectory[str]":
    """For the sockets of one running gateway, which only its user can enter. It is gone after its `cleanup`.

    Raises OSError if there is no place for temporary files.
    """
    usual = tempfile.gettempdir()
    is_long = len(os.fsencode(usual)) + len(_PREFIX) > _MAX_PATH_BYTES
    return tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=_SHORT if is_long else usual, ignore_cleanup_errors=True
    )
