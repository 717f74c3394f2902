"""Messages on a stream between two processes of one gateway: each is preceded by its length.

Knows nothing of what the messages say.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

_LENGTH: Final = struct.Struct(">I")
# Far above what is ever sent: the largest record is a body of some megabytes.
_MAX_BYTES: Final = 1 << 30

TakeMessage = Callable[[bytes], None]


class MessageLine(asyncio.Protocol):
    """take: called for each message. on_lost: called once, when the other side has gone."""

    def __init__(self, take: TakeMessage, on_lost: Callable[[], None]) -> None:
        self._take = take
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self.is_lost = False

    @property
    def unsent_bytes(self) -> int:
        """What the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

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


async def open_line(connected: socket.socket, take: TakeMessage, on_lost: Callable[[], None]) -> MessageLine:
    """connected: one end of a pair; it belongs to the line from now on."""
    _, line = await asyncio.get_running_loop().create_unix_connection(
        lambda: MessageLine(take, on_lost), sock=connected
    )
    return line
