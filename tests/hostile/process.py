"""The program as a child process, for what only that shows: its memory, its end, and what `kill -9` leaves.

    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state")
        async with running_process(settings, tmp_path) as gateway:
            before = gateway.peak_rss_bytes
            ...  # ask gateway.port
            await gateway.kill()
            await gateway.start()  # on the same store, on another port

To see how long others wait: `async with StallMeter(gateway.port) as meter` of `bench/stall.py`. Its figures
depend on the machine, so a test that asserts on them takes a wide bound.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.subject import read_peak_rss_bytes, read_rss_bytes
from tests.toy.running import wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]
# A line of the start screen, which is printed once the gateway listens. A log in JSON has a line instead.
_CLIENTS = re.compile(r"base_url http://[^ ]+:(\d+)/v1|\"message\": \"listening on http://[^ \"]+:(\d+)")
_ADMIN = re.compile(r"admin +http://[^ ]+:(\d+)/")
# Both are for a machine that is busy with other things. A process takes two seconds of a core to start, and
# with four workers there are five of them.
_START_SECONDS = 150.0
_STOP_SECONDS = 50.0
_COMMAND = (sys.executable, "-m", "gateway")

# For tests that read /proc.
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class ProcessGateway:
    """`refold serve` with these options, on a free port. folder: its working directory, with its log."""

    def __init__(self, options: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._options = options
        self._process: Process | None = None
        self.port = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def admin_port(self) -> int:
        """0 if its start screen shows none."""
        found = _ADMIN.search(self.log)
        return int(found[1]) if found else 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def log(self) -> str:
        """All that was printed since the last start."""
        return (self._folder / "gateway.log").read_text("utf-8", "replace")

    @property
    def rss_bytes(self) -> int:
        """Memory that it uses now, of all its pages, shared ones included."""
        return read_rss_bytes(self.pid)

    @property
    def peak_rss_bytes(self) -> int:
        """The most since its start, or since `forget_peak`."""
        return read_peak_rss_bytes(self.pid)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # see proc(5)

    async def start(self) -> None:
        """Returns once its start screen is there. Raises AssertionError with the log if it ends instead."""
        with (self._folder / "gateway.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*_COMMAND, "serve", "--port", "0", *self._options),
                cwd=self._folder,
                env=_make_environment(),
                stdout=DEVNULL,
                stderr=log,
            )
        await wait_until(lambda: not self.is_running or self._find_port() > 0, _START_SECONDS)
        assert self.is_running, self.log
        self.port = self._find_port()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def stop(self) -> int:
        """SIGTERM, as an operator stops it. The status that it exits with."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """kill -9: it writes nothing more."""
        await self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """The status that it exits with."""
        assert self._process is not None
        async with asyncio.timeout(_STOP_SECONDS):
            return await self._process.wait()

    async def _end(self, number: signal.Signals) -> int:
        if self.is_running:
            self.send(number)
        return await self.wait()

    def _find_port(self) -> int:
        found = _CLIENTS.search(self.log)
        return int(found[1] or found[2]) if found else 0


# Several of them run at the same time.
_FREE_ADMIN = "admin: {port: 0}\n"


@asynccontextmanager
async def running_process(settings_yaml: str, folder: Path, *options: str) -> AsyncIterator[ProcessGateway]:
    """A gateway with these settings. Where they say nothing of `admin`, it gets a free port there."""
    settings = folder / "gateway.yaml"
    settings.write_text(
        settings_yaml if "admin:" in settings_yaml else f"{settings_yaml}\n{_FREE_ADMIN}", "utf-8"
    )
    async with serving("--config", str(settings), *options, folder=folder) as gateway:
        yield gateway


@asynccontextmanager
async def serving(*options: str, folder: Path) -> AsyncIterator[ProcessGateway]:
    """Killed at the end if it still runs."""
    gateway = ProcessGateway(options, folder)
    try:
        await gateway.start()
        yield gateway
    finally:
        if gateway.is_running:
            await gateway.kill()


def run_command(
    *arguments: str, cwd: Path, before: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command that ends. before: what the program is started with, such as `setpriv`."""
    return subprocess.run(
        [*before, *_COMMAND, *arguments],
        cwd=cwd,
        env=_make_environment() | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def _make_environment() -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    return inherited | {"PYTHONPATH": str(_REPOSITORY)}
