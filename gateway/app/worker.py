"""The worker's side: a gateway on the port of the supervisor, which ends when the supervisor ends."""

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from gateway.app.gateway import Gateway, WorkerPlace
from gateway.app.orders import (
    BEAT_SECONDS,
    MOST_BYTES,
    Order,
    Report,
    SettingsText,
    StartOrder,
    receive,
    send,
    unpack_settings,
)
from gateway.app.reload import find_change
from gateway.bounds.process import collect_garbage, tune_interpreter
from gateway.command_line.options import load_chosen_settings, name_worker
from gateway.command_line.process_setup import HURRY_SECONDS, end_within, set_up_logging
from gateway.http.ports import close_all
from gateway.settings import Settings, SettingsError
from gateway.store.interface import StoreError

log = logging.getLogger("gateway.workers")

# A client that asks more often than this moves to another worker between two requests. Closing a connection
# at the moment of a request would break that.
_RETIRE_SECONDS: Final = 1.0


async def run_worker(options: argparse.Namespace) -> int:
    """Serves until the supervisor says otherwise, or has gone. Returns the exit status."""
    is_told_to_end = asyncio.Event()
    _obey_supervisor_only(is_told_to_end)
    reader, writer = await asyncio.open_unix_connection(
        sock=socket.socket(fileno=options.link), limit=MOST_BYTES
    )
    try:
        order = await receive(reader, StartOrder)
        if order is None:
            return 1
        return await _Worker(options, (reader, writer), order, is_told_to_end).run()
    finally:
        writer.close()


def _obey_supervisor_only(is_told_to_end: asyncio.Event) -> None:
    """Ctrl-C and a hang-up of the terminal reach all processes of a gateway, and the supervisor tells what
    follows from them. SIGTERM may mean this worker alone: it finishes its requests and is replaced.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_told_to_end.set)


class _Worker:
    """link: to the supervisor. order: its first one."""

    def __init__(
        self,
        options: argparse.Namespace,
        link: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        order: StartOrder,
        is_told_to_end: asyncio.Event,
    ) -> None:
        self._options = options
        self._reader, self._writer = link
        self._order = order
        self._is_told_to_end = is_told_to_end
        # Set if the whole gateway ends. Otherwise the other workers go on without this one.
        self._is_last_call = asyncio.Event()
        self._is_orphaned = False

    async def run(self) -> int:
        sockets = [socket.socket(fileno=number) for number in self._order.listening]
        async with AsyncExitStack() as opened:
            opened.callback(close_all, sockets)
            try:
                gateway = await opened.enter_async_context(self._make(sockets))
            except (SettingsError, StoreError, OSError) as error:
                status = 2 if isinstance(error, SettingsError) else 1
                self._report(Report(kind="failed", reason=str(error), status=status))
                return status
            self._report(Report(kind="ready", windows=gateway.windows))
            tune_interpreter()
            # The supervisor hears from it, and is heard, until it is closed.
            loop = asyncio.get_running_loop()
            background = [
                loop.create_task(collect_garbage()),
                loop.create_task(self._obey(gateway)),
                loop.create_task(self._beat()),
            ]
            await self._is_told_to_end.wait()
            if not self._is_last_call.is_set():
                await self._retire(gateway)
            log.info("draining")
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        if self._is_orphaned:
            # The last worker removes the directory: the supervisor was killed.
            with suppress(OSError):
                Path(self._order.admin_path).parent.rmdir()
        return 0

    def _make(self, sockets: Sequence[socket.socket]) -> Gateway:
        """Not open yet. Raises SettingsError or StoreError."""
        settings, reloaded = self._load_settings(self._order.settings), self._order.reloaded
        if reloaded is not None:
            # What the other workers did at that time: some settings stay those of the start.
            settings = find_change(settings, self._load_settings(reloaded)).settings
        set_up_logging(settings.log, name_worker(self._options))
        place = WorkerPlace(
            sockets=sockets,
            admin_socket=Path(self._order.admin_path),
            checks_upstreams=self._order.checks_upstreams,
        )
        return Gateway(settings, place)

    def _load_settings(self, sent: SettingsText | None) -> Settings:
        """Raises SettingsError, which the supervisor has had first."""
        path = Path(self._options.config or "")
        return load_chosen_settings(self._options, os.environ, unpack_settings(sent, path))

    def _report(self, report: Report) -> None:
        send(self._writer, report)

    async def _beat(self) -> None:
        """Never returns."""
        while True:
            self._report(Report(kind="alive"))
            await asyncio.sleep(BEAT_SECONDS)

    async def _retire(self, gateway: Gateway) -> None:
        """Sends the clients to other workers, without an error for those that are about to ask."""
        log.info("leaving everything new to the other workers")
        self._report(Report(kind="retiring"))
        gateway.server.retire()
        # Meanwhile the supervisor closes its sockets: what came to those after ours are closed would be lost.
        await self._wait_last_call()
        await gateway.server.leave_port()
        await self._wait_last_call()
        gateway.server.close_unused()

    async def _wait_last_call(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETIRE_SECONDS):
                await self._is_last_call.wait()

    async def _reload(self, gateway: Gateway, sent: SettingsText | None) -> None:
        try:
            settings = await asyncio.to_thread(self._load_settings, sent)
            await gateway.reload(settings)
            set_up_logging(settings.log, name_worker(self._options))
        except (SettingsError, StoreError, OSError) as error:
            log.error("settings not reloaded in this worker, which keeps the earlier ones: %s", error)

    async def _obey(self, gateway: Gateway) -> None:
        """Carries out the orders of the supervisor."""
        while (order := await receive(self._reader, Order)) is not None:
            if order.kind == "reload":
                await self._reload(gateway, order.settings)
                continue
            self._end_with_all()
            if order.kind == "hurry":
                end_within(HURRY_SECONDS)
                gateway.stop_draining()
        log.warning("the supervisor has ended, so this worker ends, too")
        self._is_orphaned = True
        gateway.server.stop_listening()
        self._end_with_all()

    def _end_with_all(self) -> None:
        self._is_last_call.set()
        self._is_told_to_end.set()
