"""Publishes the events of all workers on one bus, and hands the last metrics of each to the collector.

Each worker has one listener here, for as long as its process runs.
"""

import asyncio
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from gateway.admin.merged.collector import MetricsCollector
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.worker_client import open_session
from gateway.admin.worker_stream import FAREWELL
from gateway.reporting.events import Bus, Relayed

# A worker has just been started, or its process has ended and is still in the list.
_RETRY_SECONDS: Final = 0.05
_NAME: Final = b"event: "
_DATA: Final = b"\ndata: "
_END: Final = b"\n\n"


class EventRelay:
    def __init__(self, workers: LiveWorkers, bus: Bus, collector: MetricsCollector) -> None:
        self._workers = workers
        self._bus = bus
        self._collector = collector

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as listeners:
            known: tuple[Path, ...] = ()
            async for sockets in self._workers.follow():
                for socket in [each for each in sockets if each not in known]:
                    listeners.create_task(self._follow(socket), name=f"events of {socket.name}")
                known = sockets

    async def _follow(self, socket: Path) -> None:
        """Until the process has ended. Events that it had sent before are read to the last one."""
        while socket in self._workers.sockets:
            await self._listen(socket)
            await asyncio.sleep(_RETRY_SECONDS)
        self._collector.forget(socket)

    async def _listen(self, socket: Path) -> None:
        """Until the stream ends, or at once if nothing listens at the socket."""
        try:
            async with open_session(socket) as session, session.get("http://worker/api/events") as stream:
                while block := await stream.content.readuntil(_END):
                    self._take(socket, block)
        except (aiohttp.ClientError, msgspec.MsgspecError, OSError, ValueError):
            return

    def _take(self, socket: Path, block: bytes) -> None:
        """Incomplete at the end of a stream that broke; then it is left out."""
        head, found, data = block.removesuffix(_END).partition(_DATA)
        if not (found and block.endswith(_END) and head.startswith(_NAME)):
            return
        name = head.removeprefix(_NAME).decode()
        if name == FAREWELL:
            self._collector.take_farewell(socket, msgspec.json.decode(data, type=str))
        else:
            self._bus.publish(Relayed(name=name, data=data))
