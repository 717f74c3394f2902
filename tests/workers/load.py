"""Requests on connections of their own, so that it is known which process served each of them."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

_ENDING = b"data: [DONE]\n\n\r\n0\r\n\r\n"


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
    _clients: list[asyncio.Task[None]] = field(default_factory=list)

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
        body = {
            "model": "toy-model",
            "stream": True,
            "messages": [{"role": "user", "content": f"Hello from {exchange.name}."}],
        }
        writer.write(_render(json.dumps(body).encode()))
        try:
            while piece := await reader.read(1 << 16):
                exchange.response += piece
        except ConnectionError:
            pass
        writer.close()


def _render(body: bytes) -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: toy\r\nAuthorization: Bearer sk-toy\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


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
    links = [str(path.readlink()) for path in folder.iterdir()]
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}


def _read_port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
