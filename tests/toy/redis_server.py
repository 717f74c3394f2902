"""Starts a real redis-server (or valkey-server) in a folder of its own, on a free port, and treats it badly.

The port stays the same when the server is started again, so that a gateway finds it where it was.
"""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import pytest

from tests.toy.certificates import Certificates, make_certificates

_PROGRAM: Final = shutil.which("redis-server") or shutil.which("valkey-server")
# Below the ports that the system gives to outgoing connections: a server that is away keeps its port.
_FIRST_PORT, _PORTS = 20_000, 10_000
_START_SECONDS = 20.0

# Where no test may be skipped, as in CI, a server that is missing is a failure.
requires_redis = pytest.mark.skipif(
    _PROGRAM is None and "REQUIRE_REDIS" not in os.environ,
    reason="redis-server is not installed (apt-get install redis-server)",
)

Reply = bytes | int | None | list["Reply"]


class RedisRefused(Exception):
    """The server's own words."""


@dataclass(kw_only=True)
class RedisServer:
    folder: Path
    port: int
    password: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    certificates: Certificates | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As an operator writes it."""
        user = f":{self.password}@" if self.password else ""
        if self.certificates is None:
            return f"redis://{user}127.0.0.1:{self.port}/0"
        return f"rediss://{user}127.0.0.1:{self.port}/0?ca_file={self.certificates.ca}"

    @property
    def patient_url(self) -> str:
        """The same for a gateway that waits as long as a busy machine needs."""
        return f"{self.url}{'&' if '?' in self.url else '?'}timeout_ms=10000"

    async def start(self) -> None:
        """With what an earlier run has saved, if anything. Returns once it answers."""
        await asyncio.to_thread(self._start)

    async def stop(self) -> None:
        """As an operator does: what it holds is saved, and is there again after the next start."""
        await asyncio.to_thread(self._end, signal.SIGTERM)

    async def kill(self) -> None:
        """Everything that was not saved is lost, that is: all."""
        await asyncio.to_thread(self._end, signal.SIGKILL)

    async def restart_empty(self) -> None:
        await self.kill()
        await self.start()

    def pause(self) -> None:
        """It holds its connections and takes new ones, but does not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def run(self, *command: str | bytes | int) -> Reply:
        """One command on a connection of its own. Raises RedisRefused."""
        return (await self.run_all([command]))[0]

    async def run_all(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply]:
        return await asyncio.to_thread(self._run, commands)

    def empty(self) -> None:
        """Without a loop, for fixtures."""
        self._run([("FLUSHALL",), ("CONFIG", "RESETSTAT")])

    async def list_keys(self) -> list[str]:
        """Of the chosen database, sorted."""
        keys = await self.run("KEYS", "*")
        assert isinstance(keys, list)
        return sorted(key.decode() for key in keys if isinstance(key, bytes))

    async def count_calls(self) -> dict[str, int]:
        """How often each command has run since the start or `CONFIG RESETSTAT`."""
        text = await self.run("INFO", "commandstats")
        assert isinstance(text, bytes)
        rows = [row.split(":", 1) for row in text.decode().splitlines() if row.startswith("cmdstat_")]
        return {name.removeprefix("cmdstat_"): int(row.split(",")[0][6:]) for name, row in rows}

    def _start(self) -> None:
        assert _PROGRAM is not None and self._process is None
        while self._process is None:
            process = subprocess.Popen(
                [_PROGRAM, *self._list_arguments()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if self._wait_ready(process):
                self._process = process
            else:  # another program has taken the port since it was chosen
                self.port = _find_free_port(self.port + 1)

    def _list_arguments(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "3600 1",
            "logfile": str(self.folder / "redis.log"),
            **({"requirepass": self.password} if self.password else {}),
            **(self.certificates.list_server_options(self.port) if self.certificates else {}),
            **self.options,
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _wait_ready(self, process: "subprocess.Popen[bytes]") -> bool:
        """False if the server ended instead."""
        until = time.monotonic() + _START_SECONDS
        while process.poll() is None:
            try:
                self._run([("PING",)])
            except RedisRefused as error:
                if not str(error).startswith("LOADING"):
                    return True
            except (OSError, EOFError):
                pass
            else:
                return True
            if time.monotonic() > until:
                process.kill()
                process.wait()
                raise TimeoutError(f"redis-server does not answer at port {self.port}")
            time.sleep(0.005)
        return False

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal_number)
            process.wait(_START_SECONDS)

    def _signal(self, signal_number: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)

    def _run(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply]:
        wanted = [("AUTH", self.password), *commands] if self.password else list(commands)
        with self._connected() as connection, connection.makefile("rb") as stream:
            connection.sendall(b"".join(_render(command) for command in wanted))
            replies = [_read_reply(stream) for _ in wanted]
        return replies[len(wanted) - len(commands) :]

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=_START_SECONDS)) as plain:
            connection = plain
            if self.certificates is not None:
                context = ssl.create_default_context(cafile=str(self.certificates.ca))
                context.load_cert_chain(self.certificates.client, self.certificates.client_key)
                connection = context.wrap_socket(plain, server_hostname="127.0.0.1")
            with connection:
                yield connection


@asynccontextmanager
async def running_redis(
    *, password: str = "", tls: bool = False, options: Mapping[str, str] | None = None
) -> AsyncIterator[RedisServer]:
    """options: of redis.conf, such as `{"maxmemory": "8mb"}`. tls: clients need a certificate only if the
    option `tls-auth-clients` says so.
    """
    with tempfile.TemporaryDirectory(prefix="redis-") as name:
        folder = Path(name)
        certificates = await asyncio.to_thread(make_certificates, folder) if tls else None
        server = RedisServer(
            folder=folder,
            port=_find_free_port(_FIRST_PORT + os.getpid() * 37 % _PORTS),
            password=password,
            options=options or {},
            certificates=certificates,
        )
        await server.start()
        try:
            yield server
        finally:
            await server.kill()


def _find_free_port(first: int) -> int:
    for port in range(first, first + _PORTS):
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free")


def _render(command: Sequence[str | bytes | int]) -> bytes:
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _read_reply(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError("the server closed the connection")
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"-":
            raise RedisRefused(rest.decode())
        case b"+":
            return rest
        case b":":
            return int(rest)
        case b"*":
            return None if rest == b"-1" else [_read_reply(stream) for _ in range(int(rest))]
        case _:
            return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
