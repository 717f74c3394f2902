"""The product, as tests use it. No other file of the black-box tests knows what it is made of.

async with serve(settings) as product:        # in this process
    ...                                       # ask product.base_url
    await product.at_rest()
async with serve_process(settings, folder) as process: ...   # a process: only for its end and its memory
result = command("check", "--config", path)   # a command that ends
"""

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

import gateway.__main__ as program
from gateway.app.gateway import Gateway
from gateway.app.process import Periods
from gateway.settings import Settings, load_settings
from gateway.settings import SettingsError as SettingsError
from gateway.state.single import LeaseTimes
from tests.toy.running import wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "gateway")
# No test has to wait for what an operator would wait for.
FAST = Periods(
    lease=LeaseTimes(keep_seconds=1.5, renew_seconds=0.3),
    activity_round=0.005,
    activity_pause=0.005,
    feed=0.02,
)


@dataclass(frozen=True, repr=False)
class Product:
    """A gateway in this process."""

    _app: Gateway
    _folder: Path

    @property
    def port(self) -> int:
        return self._app.port

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self._app.admin_port

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def at_rest(self) -> None:
        """Returns once what the store had is known, no background work is under way, and all that it made is
        with the store. One on disk writes what can be lost half a second later.
        """
        process = self._app.process
        await wait_until(lambda: process.keeper.has_restored and self._app.is_idle)
        await process.log_writer.finish()
        await process.archive.finish()
        await process.search.finish()
        await process.sessions.finish()
        await process.named.finish()
        await wait_until(lambda: not process.activity.unsaved)

    async def reload(self, settings: str) -> None:
        """As by a changed settings file. Raises SettingsError if they cannot be used."""
        path = await asyncio.to_thread(_write, self._folder, settings)
        await self._app.reload(await asyncio.to_thread(_load, path, {}, None))

    async def stop(self) -> None:
        """Before the end of the block: open requests are drained first."""
        await self._app.stop()


def _load(path: Path | None, env: Mapping[str, str], upstream: str | None) -> Settings:
    # Other tests run at the same time: where the settings name no ports, they are free ones.
    written = {} if path is None else yaml.safe_load(path.read_text("utf-8")) or {}
    listen, admin = written.get("listen") or {}, written.get("admin") or {}
    host = None if "host" in listen else "127.0.0.1"
    port = None if "port" in listen else 0
    admin_port = None if "port" in admin else 0
    return load_settings(path, dict(env), upstream=upstream, host=host, port=port, admin_port=admin_port)


def _write(folder: Path, settings: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(settings, "utf-8")
    return path


@asynccontextmanager
async def serve(
    settings: str | None,
    *,
    upstream: str | None = None,
    env: Mapping[str, str] | None = None,
    periods: Periods = FAST,
) -> AsyncIterator[Product]:
    """settings: YAML; None: no settings file, and then `upstream` is the only upstream.

    Without a port of its own in the settings, the admin port is a free one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = None if settings is None else await asyncio.to_thread(_write, folder, settings)
        loaded = await asyncio.to_thread(_load, path, env or {}, upstream)
        async with Gateway(loaded, periods=periods) as app:
            yield Product(app, folder)


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def command(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """A command that ends, in this process. `run_command` runs it in one of its own.

    Variables of the environment that the product reads are taken from `env` alone.
    """
    out, err = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(_make_environment() | dict(env or {}))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = program.main(arguments)
            except SystemExit as end:  # wrong usage, --help
                status = end.code if isinstance(end.code, int) else 1
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Result(status=status, out=out.getvalue(), err=err.getvalue())


def run_command(*arguments: str, cwd: Path, before: Sequence[str] = (), **environment: str) -> Result:
    """The same in a process. before: what the program is started with, such as `setpriv`."""
    ended = subprocess.run(
        [*before, *_COMMAND, *arguments],
        cwd=cwd,
        env=_make_environment() | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return Result(status=ended.returncode, out=ended.stdout, err=ended.stderr)


def _make_environment() -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    return inherited | {"PYTHONPATH": str(_REPOSITORY)}


# A line of the start screen, which is printed once the gateway listens. A log in JSON has a line instead.
_CLIENTS = re.compile(r"base_url http://[^ ]+:(\d+)/v1|\"message\": \"listening on http://[^ \"]+:(\d+)")
_ADMIN = re.compile(r"admin +http://[^ ]+:(\d+)/")
# Both are for a machine that is busy with other things. A process takes two seconds of a core to start, and
# with four workers there are five of them.
_START_SECONDS = 150.0
_STOP_SECONDS = 50.0


@dataclass(repr=False)
class Process:
    """`refold serve` with these options, on a free port. folder: its working directory, with its log."""

    options: Sequence[str]
    folder: Path
    port: int = 0
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

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
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def log(self) -> str:
        """All that was printed since the last start."""
        return (self.folder / "gateway.log").read_text("utf-8", "replace")

    async def start(self) -> None:
        """Returns once its start screen is there. Raises AssertionError with the log if it ends instead."""
        with (self.folder / "gateway.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*_COMMAND, "serve", "--port", "0", *self.options),
                cwd=self.folder,
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


@asynccontextmanager
async def serve_process(settings: str | None, folder: Path, *options: str) -> AsyncIterator[Process]:
    """settings None: the options say everything. Killed at the end if it still runs.

    Several of them run at the same time, so where the settings say nothing of `admin`, it gets a free port.
    """
    if settings is not None:
        path = folder / "gateway.yaml"
        path.write_text(settings if "admin:" in settings else f"{settings}\nadmin: {{port: 0}}\n", "utf-8")
        options = ("--config", str(path), *options)
    process = Process(options, folder)
    try:
        await process.start()
        yield process
    finally:
        if process.is_running:
            await process.kill()
