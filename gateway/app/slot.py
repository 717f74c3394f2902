"""The place of one worker: its sockets, its process, and the next process when that one has ended.

A process that ends is replaced, later and later if its successors end again at once.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from gateway.admin.merged.live_workers import LiveWorkers
from gateway.app.orders import (
    BEAT_SECONDS,
    MOST_BYTES,
    Order,
    Report,
    SettingsText,
    StartOrder,
    receive,
    send,
)
from gateway.http.ports import bind_beside, close_all, is_listening

log = logging.getLogger("gateway.workers")

# A start takes two seconds of a core. On a machine that is busy with other things, those that start together
# share what is left of it; too short a patience would end a gateway that only needs longer.
_START_SECONDS: Final = 180.0
# 20 s of beats: new connections wait for it meanwhile. What a request may take of the event loop is counted
# in milliseconds (ARCHITECTURE, the rules).
_MOST_SILENT: Final = 4
# A worker that has lived for so long has not failed to start.
_STEADY_SECONDS: Final = 10.0
# The first replacement comes at once.
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
# With so many failures of each worker and none that serves, whatever started the gateway should know.
_MOST_FAILURES: Final = 5


class WorkerFailed(Exception):
    """A worker could not begin to serve. status: that `refold serve` exits with."""

    def __init__(self, reason: str, status: int = 1) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def message(self) -> str:
        """As a gateway of one process prints it: problems of settings name their file themselves."""
        return str(self) if self.status == 2 else f"gateway: {self}"


@dataclass(kw_only=True)
class Crew:
    """What all slots of a gateway share. arguments: of the workers, behind the name of the program.

    folder: for their admin sockets. settings, reloaded: see `StartOrder`. end_seconds: in which a worker
    drains and closes what it has. failure: done when no worker can be kept alive, with the reason.
    """

    arguments: Sequence[str]
    live: LiveWorkers
    settings: SettingsText | None
    reloaded: SettingsText | None = None
    end_seconds: float = 0.0
    folder: Path = Path()
    slots: "list[Slot]" = field(default_factory=list)
    is_stopping: bool = False
    failure: "asyncio.Future[WorkerFailed]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def fail(self, reason: WorkerFailed) -> None:
        if not self.failure.done():
            self.failure.set_result(reason)

    def send(self, order: Order) -> None:
        """To all workers. One that starts at this moment gets it, too."""
        for slot in self.slots:
            slot.send(order)


class Slot:
    """number: from 1 on. sockets: at the port of the gateway. They stay open here, so that new connections
    wait for the successor of a worker.
    """

    def __init__(self, number: int, sockets: list[socket.socket], crew: Crew) -> None:
        self.name = f"worker-{number}"
        self.sockets = sockets
        self.is_ready = False
        # To start a process, in a row.
        self.failures = 0
        self._number = number
        self._crew = crew
        # None between two.
        self._process: Process | None = None
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter]
        self._admin_socket = Path()
        # How many processes were started, for names that are never used twice.
        self._started = 0
        self._started_seconds = 0.0

    @property
    def is_empty(self) -> bool:
        return self._process is None

    async def begin(self) -> int:
        """Returns once a new process serves: how many models have a window in the bundled table.

        Raises WorkerFailed, or OSError if the system starts no process.
        """
        process = await self._launch()
        windows = await self._wait_ready()
        self.is_ready = True
        log.info("%s is ready (process %d)", self.name, process.pid)
        return windows

    async def keep(self) -> None:
        """Replaces the process again and again."""
        while True:
            if self._process is not None:
                await self._watch(self._process)
            await asyncio.sleep(_find_pause(self.failures))
            if self._crew.is_stopping:
                return
            self._crew.live.count_replaced()
            try:
                await self.begin()
            except (WorkerFailed, OSError) as error:
                await self._note_failure(error)

    def send(self, order: Order) -> None:
        if self._process is not None:
            send(self._link[1], order)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> int:
        """The status of the process when it has ended; that of one which a signal ended is negative."""
        process = self._process
        if process is None:
            return 0
        status = await process.wait()
        if self._process is process:
            self._process, self.is_ready = None, False
            self._link[1].close()
            self._crew.live.remove(self._admin_socket)
            # A worker that was killed has left it.
            self._admin_socket.unlink(missing_ok=True)
        return status

    async def _launch(self) -> Process:
        crew = self._crew
        if not self.sockets:
            self.sockets += bind_beside(next(slot.sockets for slot in crew.slots if slot.sockets))
        self._started += 1
        admin_socket = crew.folder / f"{self._number}-{self._started}.admin"
        order = StartOrder(
            settings=crew.settings,
            reloaded=crew.reloaded,
            listening=[each.fileno() for each in self.sockets],
            admin_path=str(admin_socket),
            checks_upstreams=self._number == 1,
        )
        ours, theirs = socket.socketpair()
        # Each has its own end, or the death of one would not be noticed.
        with theirs:
            try:
                process = await _start_process(crew.arguments, self._number, theirs.fileno(), order.listening)
            except BaseException:
                ours.close()
                raise
        self._link = await asyncio.open_unix_connection(sock=ours, limit=MOST_BYTES)
        self._process, self._started_seconds = process, time.monotonic()
        send(self._link[1], order)
        if crew.reloaded != order.reloaded:
            self.send(Order(kind="reload", settings=crew.reloaded))
        if crew.is_stopping:
            self.send(Order(kind="drain"))
        self._admin_socket = admin_socket
        crew.live.add(admin_socket)
        return process

    async def _wait_ready(self) -> int:
        """Raises WorkerFailed."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                report = await receive(self._link[0], Report)
        except TimeoutError:
            self.kill()
            raise WorkerFailed(f"{self.name} did not start within {_START_SECONDS:g} s") from None
        if report is None:
            raise WorkerFailed(f"{self.name} ended while it started: {_describe_end(await self.wait())}")
        if report.kind == "failed":
            raise WorkerFailed(report.reason, report.status)
        return report.windows

    async def _watch(self, process: Process) -> None:
        """Returns when a worker that served has ended."""
        watching = asyncio.create_task(self._kill_if_hanging(process))
        try:
            status = await self.wait()
        finally:
            watching.cancel()
        if self._crew.is_stopping:
            return
        has_lived = time.monotonic() - self._started_seconds >= _STEADY_SECONDS
        self.failures = 0 if has_lived else self.failures + 1
        log.warning(
            "%s (process %d) has ended: %s; another one is started",
            self.name,
            process.pid,
            _describe_end(status),
        )

    async def _kill_if_hanging(self, process: Process) -> None:
        """A worker that is stopped, or that hangs, would keep its clients and its place for ever."""
        await self._wait_hanging()
        log.error("%s (process %d) does not respond and is killed", self.name, process.pid)
        self.kill()

    async def _wait_hanging(self) -> None:
        """Returns when its event loop does not run any more, or when it does not end though it is leaving.

        Silent periods are counted, not seconds. If the supervisor itself was stopped for an hour, or the
        whole machine, that is one period, and the worker's reports of that time are read next.
        """
        silent = 0
        while silent < _MOST_SILENT:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    report = await receive(self._link[0], Report)
            except TimeoutError:
                silent += 1
                continue
            silent = 0
            if report is None:
                # It has closed its side, so it is about to end.
                await asyncio.sleep(_MOST_SILENT * BEAT_SECONDS)
                return
            if report.kind == "retiring":
                self._leave()
                await asyncio.sleep(self._crew.end_seconds)
                return

    def _leave(self) -> None:
        """New connections go to the other workers, unless none listens. Those that already wait here and
        that no process accepts are reset.
        """
        others = chain.from_iterable(slot.sockets for slot in self._crew.slots if slot is not self)
        if any(map(is_listening, others)):
            close_all(self.sockets)
            self.sockets.clear()

    async def _note_failure(self, error: WorkerFailed | OSError) -> None:
        self.kill()
        await self.wait()
        self._leave()
        self.failures += 1
        log.error("%s cannot be replaced yet: %s", self.name, error)
        slots = self._crew.slots
        if (
            not any(slot.is_ready for slot in slots)
            and min(slot.failures for slot in slots) >= _MOST_FAILURES
        ):
            self._crew.fail(error if isinstance(error, WorkerFailed) else WorkerFailed(str(error)))


def _find_pause(failures: int) -> float:
    """Seconds before a worker is started again, after so many failures in a row."""
    if failures <= 1:
        return 0.0
    pause: float = _FIRST_PAUSE_SECONDS * 2.0 ** (failures - 2)
    return min(pause, _LONGEST_PAUSE_SECONDS)


async def _start_process(arguments: Sequence[str], number: int, link: int, listening: list[int]) -> Process:
    """link, listening: descriptors that it inherits. Raises OSError if the system starts none."""
    return await asyncio.create_subprocess_exec(
        *_find_program(),
        *arguments,
        *("--as-worker", str(number), "--link", str(link)),
        stdin=DEVNULL,
        pass_fds=(link, *listening),
    )


def _find_program() -> list[str]:
    """How to start this program again.

    `python -m` would look for modules in the working directory first, which the `gateway` command does not.
    """
    is_module = getattr(sys.modules.get("__main__"), "__spec__", None) is not None
    is_safe = sys.flags.safe_path or not is_module
    flags = ["-I"] if sys.flags.isolated else ["-P"] if is_safe else []
    return [sys.executable, *flags, "-m", "gateway"]


def _describe_end(status: int) -> str:
    """In the words of an operator."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
