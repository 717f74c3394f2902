"""The connection between the supervisor and one worker, on which each learns that the other has ended."""

import asyncio
import socket
from typing import Self

from gateway.store.served.frames import MessageLine, open_line
from gateway.workers.messages import Order, Report, render


class Link:
    """Open it with `open_link`."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._line: MessageLine | None = None

    async def open(self, connected: socket.socket) -> Self:
        self._line = await open_line(connected, self._received.put_nowait, self._end)
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
