"""The events of one worker for its supervisor, as server-sent events. The last one holds its metrics.

Events wait while the supervisor is not connected, so none is missed between the start of a worker and the
moment when the supervisor has found it. Only one listener at a time makes sense.
"""

import asyncio
from contextlib import ExitStack
from typing import Final

import msgspec
from aiohttp import web

from gateway.admin.event_stream import STREAM_HEADERS, render_block
from gateway.reporting.events import Bus, Relayed
from gateway.reporting.metrics import Metrics

# The name of the last event. Its data is a JSON string in Prometheus' text format.
FAREWELL: Final = "farewell"
# A supervisor that does not read any more must not hold up the end of a worker.
_FAREWELL_SECONDS: Final = 0.5


class WorkerStream:
    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._metrics = metrics
        self._exits = ExitStack()
        self._subscription = self._exits.enter_context(bus.subscribe())
        self._has_ended = asyncio.Event()
        self._is_heard = False

    async def send(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends events until the worker ends or the supervisor hangs up."""
        response = web.StreamResponse(headers=STREAM_HEADERS)
        self._is_heard = True
        try:
            await response.prepare(request)
            while not self._has_ended.is_set():
                event = await self._subscription.next()
                await response.write(render_block(event))
                if isinstance(event, Relayed):
                    self._has_ended.set()
        except ConnectionError:
            return response
        finally:
            self._is_heard = False
        return response

    async def close(self) -> None:
        """Sends what waits, and then the metrics, to the supervisor if it listens."""
        self._exits.close()
        if not self._is_heard:
            return
        self._subscription.put(
            Relayed(name=FAREWELL, data=msgspec.json.encode(self._metrics.render().decode()))
        )
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._has_ended.wait()
        except TimeoutError:
            return
