"""One worker as the supervisor sees it: a process with a link to it."""

import asyncio
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from typing import Final

from gateway.app.orders import (
    BEAT_SECONDS,
    REPORTS,
    AliveReport,
    FailedReport,
    Link,
    Order,
    ReadyReport,
    Report,
    RetiringReport,
    StartOrder,
)

# A start takes two seconds of a core. On a machine that is busy with other things, those that start together
# share what is left of it; too short a patience would end a gateway that only needs longer.
_START_SECONDS: Final = 180.0
# 20 s of beats: new connections wait for it meanwhile. What a request may take of the event loop is counted
# in milliseconds (ARCHITECTURE, the rules).
_MOST_SILENT: Final = 4


class WorkerFailed(Exception):
    """A worker could not begin to serve. status: that `refold serve` exits with."""

    def __init__(self, reason: str, status: int = 1) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def message(self) -> str:
        """As a gateway of one process prints it: problems of settings name their file themselves."""
        return str(self) if self.status == 2 else f"gateway: {self}"


class WorkerProcess:
    """let_leave: called when it leaves everything new to others; returns the seconds it has for its end."""

    def __init__(
        self, number: int, process: Process, link: Link[Report], let_leave: Callable[[], float]
    ) -> None:
        self.name = f"worker-{number}"
        self._let_leave = let_leave
        self._process = process
        self._link = link
        self._started_seconds = time.monotonic()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def lived_seconds(self) -> float:
        return time.monotonic() - self._started_seconds

    async def wait_ready(self) -> ReadyReport:
        """Raises WorkerFailed."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                message = await self._link.receive()
        except TimeoutError:
            self.kill()
            raise WorkerFailed(f"{self.name} did not start within {_START_SECONDS:g} s") from None
        if message is None:
            raise WorkerFailed(f"{self.name} ended while it started: {describe_end(await self.wait())}")
        match message:
            case ReadyReport() as ready:
                return ready
            case FailedReport(reason=reason, status=status):
                raise WorkerFailed(reason, status)
            case AliveReport() | RetiringReport():
                raise WorkerFailed(f"{self.name} has not said that it is ready")

    async def wait_hanging(self) -> None:
        """Once it is ready: returns when its event loop does not run any more, or when it does not end though
        it is leaving.

        Silent periods are counted, not seconds. If the supervisor itself was stopped for an hour, or the
        whole machine, that is one period, and the worker's reports of that time are read next.
        """
        silent = 0
        while silent < _MOST_SILENT:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    message = await self._link.receive()
            except TimeoutError:
                silent += 1
                continue
            silent = 0
            if message is None:
                # It has closed its side, so it is about to end.
                await asyncio.sleep(_MOST_SILENT * BEAT_SECONDS)
                return
            if isinstance(message, RetiringReport):
                await asyncio.sleep(self._let_leave())
                return

    async def wait(self) -> int:
        """The status when it has ended; that of a process which a signal ended is negative."""
        status = await self._process.wait()
        self._link.close()
        return status

    def send(self, order: Order) -> None:
        self._link.send(order)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


async def launch(
    number: int, arguments: Sequence[str], first: StartOrder, let_leave: Callable[[], float]
) -> WorkerProcess:
    """A new process, which has the first order. Raises OSError if the system starts none.

    arguments: behind the name of the program. let_leave: see `WorkerProcess`.
    """
    ours, theirs = socket.socketpair()
    link_number = theirs.fileno()
    # Each has its own end, or the death of one would not be noticed.
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *_find_program(),
                *arguments,
                *("--as-worker", str(number), "--link", str(link_number)),
                stdin=DEVNULL,
                pass_fds=(link_number, *first.listening),
            )
        except BaseException:
            ours.close()
            raise
    link = await Link(REPORTS).open(ours)
    link.send(first)
    return WorkerProcess(number, process, link, let_leave)


def _find_program() -> list[str]:
    """How to start this program again.

    `python -m` would look for modules in the working directory first, which the `gateway` command does not.
    """
    is_module = getattr(sys.modules.get("__main__"), "__spec__", None) is not None
    is_safe = sys.flags.safe_path or not is_module
    flags = ["-I"] if sys.flags.isolated else ["-P"] if is_safe else []
    return [sys.executable, *flags, "-m", "gateway"]


def describe_end(status: int) -> str:
    """In the words of an operator."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
