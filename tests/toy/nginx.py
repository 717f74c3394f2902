"""Starts a real nginx with `deploy/compose/nginx.conf` in front of gateways on this machine.

Only what belongs to the containers is replaced: names and ports, the name server, and the folder for files.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import pytest

_PROGRAM: Final = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
_CONFIGURATION: Final = Path(__file__).resolve().parents[2] / "deploy" / "compose" / "nginx.conf"
# As the file has them.
_LISTEN, _RESOLVER = "listen 8080;", re.compile(r"^\s*resolver .*;\n", re.MULTILINE)
_SERVER: Final = re.compile(r"^(\s*server )gateway-(\d+):8080 resolve (.*;)$", re.MULTILINE)
_START_SECONDS: Final = 20.0

# Where no test may be skipped, as in CI, an nginx that is missing is a failure.
requires_nginx = pytest.mark.skipif(
    _PROGRAM is None and "REQUIRE_NGINX" not in os.environ,
    reason="nginx is not installed (apt-get install nginx)",
)


class Nginx:
    """ports: of the gateways, in the order in which the file names them."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.port = 0
        self._folder = folder
        self._ports = list(ports)
        self._left_out = frozenset[int]()
        self._process: Process | None = None

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    async def start(self) -> None:
        assert _PROGRAM is not None
        user = "user root;" if os.geteuid() == 0 else ""
        while self._process is None:
            self.port = _find_free_port()
            self._write()
            configuration = str(self._folder / "nginx.conf")
            process = await asyncio.create_subprocess_exec(
                *(_PROGRAM, "-e", "stderr", "-c", configuration, "-g", f"daemon off; {user}")
            )
            # It ends if another program has taken the port meanwhile.
            if await self._wait_ready(process):
                self._process = process

    async def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()

    async def use(self, ports: Sequence[int], left_out: Sequence[int] = ()) -> None:
        """As an operator does before and after a gateway is restarted: `down` behind a server, and a reload.

        Returns once the processes with the configuration before have ended, and all their requests.
        """
        assert self._process is not None
        self._ports, self._left_out = list(ports), frozenset(left_out)
        self._write()
        before = self._find_workers()
        self._process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(_START_SECONDS):
            while not before.isdisjoint(self._find_workers()):
                await asyncio.sleep(0.01)

    def _find_workers(self) -> set[str]:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return set(children.read_text().split())

    def _write(self) -> None:
        text = _RESOLVER.sub("", _CONFIGURATION.read_text("utf-8"))
        text, count = _SERVER.subn(self._render_server, text)
        assert count == len(self._ports) and _LISTEN in text
        text = text.replace(_LISTEN, f"listen 127.0.0.1:{self.port};").replace(" /tmp/", f" {self._folder}/")
        (self._folder / "nginx.conf").write_text(text, "utf-8")

    def _render_server(self, found: re.Match[str]) -> str:
        port = self._ports[int(found[2]) - 1]
        options = "down;" if port in self._left_out else found[3]
        return f"{found[1]}127.0.0.1:{port} {options}"

    async def _wait_ready(self, process: Process) -> bool:
        async with asyncio.timeout(_START_SECONDS):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return True
        return False


@asynccontextmanager
async def running_nginx(folder: Path, ports: Sequence[int]) -> AsyncIterator[Nginx]:
    """In front of the gateways at these ports: as many as the file names."""
    nginx = Nginx(folder, ports)
    try:
        await nginx.start()
        yield nginx
    finally:
        await nginx.stop()


def _find_free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port
