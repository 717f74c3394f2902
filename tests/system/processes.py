"""Gateways as processes: their workers, the clients of each of them, the memory that they take."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.toy.agent import Session, Shape
from tests.toy.product import Process
from tests.toy.running import Answer, Pace, Run, ask, run_session, wait_until
from tests.toy.upstream import ToyUpstream

HI = json.dumps({"model": "toy-model", "messages": [{"role": "user", "content": "Hi."}]}).encode()
STREAM = {"model": "toy-model", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}
# A process takes two seconds of a core to start, and far longer beside other tests.
PATIENCE_SECONDS = 150.0

_READY = re.compile(r"(worker-\d+) is ready \(process (\d+)\)")
_ENDING = b"data: [DONE]\n\n\r\n0\r\n\r\n"

# For tests that read /proc.
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def post(base_url: str, body: bytes = HI, key: str = "sk-toy") -> Answer:
    """On a connection of its own, so that any worker may get it."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:
        return await ask(client, f"{base_url}/chat/completions", body)


async def try_post(base_url: str, body: bytes = HI, key: str = "sk-toy") -> Answer | None:
    """None if the worker that had it died."""
    try:
        return await post(base_url, body, key)
    except aiohttp.ClientError:
        return None


async def play(
    session: Session, base_urls: Sequence[str], toy: ToyUpstream, shape: Shape, first: int, last: int
) -> Run:
    """Each turn on a connection of its own, to one address after the other."""
    runs, pace = list[Run](), Pace(first=first, last=first + 1)
    for turn in range(first, last):
        since = runs[-1].since if runs else None
        # A client that trims its history has to name its session where several processes serve it.
        pace = Pace(first=turn, last=turn + 1, since=since, headers={"x-gateway-session": "toy"})
        runs.append(await run_session(session, base_urls[turn % len(base_urls)], toy, shape, pace))
        # What is made in the background comes before the next turn, as it does with slow models.
        await wait_until(lambda: all(seen.finished for seen in toy.summaries))
    return Run(
        answers=tuple(answer for run in runs for answer in run.answers),
        seen=tuple(seen for run in runs for seen in run.seen),
        replays=tuple(code for run in runs for code in run.replays),
        sinces=tuple(since for run in runs for since in run.sinces),
    )


def find_workers(gateway: Process) -> dict[str, int]:
    """The process of each worker by its name, as the log told last."""
    return {name: int(number) for name, number in _READY.findall(gateway.log)}


def count_starts(gateway: Process) -> int:
    """How many workers have been ready since the start, replacements included."""
    return len(_READY.findall(gateway.log))


async def wait_until_started(gateway: Process, count: int) -> None:
    await wait_until(lambda: count_starts(gateway) >= count, PATIENCE_SECONDS)


async def wait_until_said(gateway: Process, words: str) -> None:
    """Returns once its log holds them."""
    await wait_until(lambda: words in gateway.log, PATIENCE_SECONDS)


def is_alive(process_id: int) -> bool:
    """False also for a process that has ended and is not waited for."""
    return _read_state(process_id) not in ("", "Z")


def is_stopped(process_id: int) -> bool:
    """After SIGSTOP, which takes a moment."""
    return _read_state(process_id) == "T"


def _read_state(process_id: int) -> str:
    """See proc(5). "" if there is no such process."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def wait_until_gone(process_ids: Sequence[int]) -> None:
    await wait_until(lambda: not any(map(is_alive, process_ids)), PATIENCE_SECONDS)


def read_peak_bytes(process_id: int) -> int:
    """The most memory that it has used so far, of all its pages, shared ones included."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) << 10


def find_clients(process_id: int, port: int) -> set[int]:
    """The ports of the clients that are connected to this process at its `port`. It should be stopped."""
    return {remote for local, remote in _list_connections(process_id) if local == port} - {0}


def has_connection_from(process_id: int, port: int) -> bool:
    """Whether this process has a connection to somewhere that begins at this port of its own."""
    return any(local == port for local, _ in _list_connections(process_id))


def _list_connections(process_id: int) -> list[tuple[int, int]]:
    """The ports of each: its own and the other one."""
    owned = _list_sockets(Path(f"/proc/{process_id}/fd"))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Local address, remote address and inode, see proc(5).
    return [(_read_port(fields[1]), _read_port(fields[2])) for fields in lines if fields[9] in owned]


def _list_sockets(folder: Path) -> set[str]:
    found = set()
    for path in folder.iterdir():
        try:
            link = str(path.readlink())
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:["):
            found.add(link.removeprefix("socket:[").rstrip("]"))
    return found


def _read_port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


@dataclass
class Exchange:
    """One request. port: of its client. response: what has come so far."""

    name: str
    port: int = 0
    response: bytes = b""

    @property
    def is_whole(self) -> bool:
        return self.response.startswith(b"HTTP/1.1 200 ") and self.response.endswith(_ENDING)


@dataclass
class Load:
    """Clients that send streaming requests one after the other, each on a new connection, until `stop`."""

    port: int
    exchanges: list[Exchange] = field(default_factory=list)
    _is_stopping: bool = False
    _clients: list["asyncio.Task[None]"] = field(default_factory=list)

    def start(self, clients: int) -> None:
        self._clients = [asyncio.create_task(self._run(number)) for number in range(clients)]

    async def stop(self) -> None:
        """Returns when the last responses have ended."""
        self._is_stopping = True
        await asyncio.gather(*self._clients)

    async def _run(self, client: int) -> None:
        number = 0
        while not self._is_stopping:
            number += 1
            await self._exchange(Exchange(f"{client}-{number}"))

    async def _exchange(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        exchange.port = writer.get_extra_info("sockname")[1]
        messages = [{"role": "user", "content": f"Hello from {exchange.name}."}]
        body = json.dumps({"model": "toy-model", "stream": True, "messages": messages}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: toy\r\nAuthorization: Bearer sk-toy\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        try:
            while piece := await reader.read(1 << 16):
                exchange.response += piece
        except ConnectionError:
            pass
        writer.close()
