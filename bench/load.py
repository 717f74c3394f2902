"""The load: keep-alive connections, each of which sends its prepared requests one after the other.

Of a response it reads only where it ends, and whether a summary was active.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from bench.talk import Talk

Request = tuple[bytes, memoryview, bytes]
_PIVOT_SIGN: Final = b"x-gateway-plan: pivot"


@dataclass(frozen=True)
class Load:
    """One round. reads: pieces in which the responses arrived. pivots: responses with an active summary."""

    requests: int
    seconds: float
    reads: int
    pivots: int


class LoadError(Exception):
    """A status other than 200 or a broken connection. The figures would be meaningless."""


class _Connection(asyncio.Protocol):
    def __init__(self, done: "asyncio.Future[None]") -> None:
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._script: Iterator[Request] = iter(())
        self._buffer = b""
        self._left = -1  # bytes of body to come; -1: head not complete
        self._is_chunked = False
        self.requests = self.reads = self.pivots = 0

    def start(self, script: Iterator[Request]) -> None:
        self._script = script
        self._send_next()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(LoadError(f"connection lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        if self._left < 0 and not self._is_chunked:
            data = self._take_head(data)
        if self._is_chunked:
            self._buffer = (self._buffer + data)[-5:]
            if self._buffer == b"0\r\n\r\n":
                self._finish()
        elif self._left >= 0:
            self._left -= len(data)
            if self._left <= 0:
                self._finish()

    def _take_head(self, data: bytes) -> bytes:
        """The bytes behind the head; empty until the head is complete."""
        data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = data
            return b""
        head = data[:end].lower()
        self._buffer = b""
        if not head.startswith(b"http/1.1 200") and not self._done.done():
            self._done.set_exception(LoadError(data[:400].decode("latin-1")))
        self.pivots += _PIVOT_SIGN in head
        start = head.find(b"\r\ncontent-length:")
        self._is_chunked = start < 0
        if start >= 0:
            self._left = int(head[start + 17 :].partition(b"\r\n")[0])
        return data[end + 4 :]

    def _finish(self) -> None:
        self.requests += 1
        self._left = -1
        self._is_chunked = False
        self._buffer = b""
        self._send_next()

    def _send_next(self) -> None:
        pieces = next(self._script, None)
        if pieces is None:
            if not self._done.done():
                self._done.set_result(None)
            return
        assert self._transport is not None
        self._transport.writelines(pieces)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def send_turns(port: int, talks: Sequence[Talk], turns: range, connections: int) -> Load:
    """Sends these turns of all talks, each talk in order and on one connection. Raises LoadError."""
    return await _send(port, connections, lambda lane: _iter_turns(talks[lane::connections], turns))


async def _send(port: int, connections: int, script: Callable[[int], Iterator[Request]]) -> Load:
    loop = asyncio.get_running_loop()
    opened = [await _open(loop, port) for _ in range(connections)]
    started = time.perf_counter()
    for lane, (connection, _) in enumerate(opened):
        connection.start(script(lane))
    try:
        await asyncio.gather(*(done for _, done in opened))
        seconds = time.perf_counter() - started
    finally:
        for connection, _ in opened:
            connection.close()
    return Load(
        requests=sum(connection.requests for connection, _ in opened),
        seconds=seconds,
        reads=sum(connection.reads for connection, _ in opened),
        pivots=sum(connection.pivots for connection, _ in opened),
    )


async def _open(loop: asyncio.AbstractEventLoop, port: int) -> "tuple[_Connection, asyncio.Future[None]]":
    done: asyncio.Future[None] = loop.create_future()
    _, connection = await loop.create_connection(lambda: _Connection(done), "127.0.0.1", port)
    return connection, done


def _iter_turns(talks: Sequence[Talk], turns: range) -> Iterator[Request]:
    """The first turn of all talks, then the second, as if several agents worked at the same time."""
    for turn in turns:
        for talk in talks:
            if turn < len(talk.ends):
                yield talk.render(turn)
