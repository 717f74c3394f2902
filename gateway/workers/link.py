"""The connection between the supervisor and one worker, on which each learns that the other has ended.

Each message is preceded by its length.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final, Self

from gateway.workers.messages import Order, Report, render

_LENGTH: Final = struct.Struct(">I")
# Far above what is ever sent: the largest is a settings file.
_MAX_BYTES: Final = 1 << 30

TakeMessage = Callable[[bytes], None]


class _MessageLine(asyncio.Protocol):
    """take: called for each message. on_lost: called once, when the other side has gone."""

    def __init__(self, take: TakeMessage, on_lost: Callable[[], None]) -> None:
        self._take = take
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self.is_lost = False

    def send(self, message: bytes) -> None:
        """Does nothing if the other side has gone."""
        if self._transport is not None and not self.is_lost:
            self._transport.writelines((_LENGTH.pack(len(message)), message))

    def close(self) -> None:
        """What is not sent yet is still sent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have this interface without inheriting from it.
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_lost = True
        self._received.clear()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for message in self._split():
            self._take(message)

    def _split(self) -> Iterator[bytes]:
        """The whole messages that have come. A rest stays."""
        start, received = 0, self._received
        messages = []
        while len(received) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received, start)
            if size > _MAX_BYTES and self._transport is not None:
                self._transport.abort()
                break
            end = start + _LENGTH.size + size
            if len(received) < end:
                break
            messages.append(bytes(memoryview(received)[start + _LENGTH.size : end]))
            start = end
        del received[:start]
        yield from messages


class Link:
    """Open it with `open_link`."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._line: _MessageLine | None = None

    async def open(self, connected: socket.socket) -> Self:
        _, self._line = await asyncio.get_running_loop().create_unix_connection(
            lambda: _MessageLine(self._received.put_nowait, self._end), sock=connected
        )
        return self

    def send(self, message: Order | Report) -> None:
        if self._line is not None:
            self._line.send(render(message))

    async def receive(self) -> bytes | None:
        """The next message of the other side; None once it has gone."""
        message = await self._received.get()
        if message is None:
            self._end()
        return message

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def _end(self) -> None:
        self._received.put_nowait(None)
