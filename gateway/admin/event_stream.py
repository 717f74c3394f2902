"""Events of the bus as server-sent events, with comments that keep the connection alive."""

import asyncio
from typing import Final

from aiohttp import web

from gateway.admin.routing import respond_problem
from gateway.reporting.events import Bus, Event, Subscription, event_name, render_event

# Proxies close connections that are silent for 30 s or more.
_ALIVE_SECONDS: Final = 15.0
_MAX_LISTENERS: Final = 32
STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class EventStream:
    def __init__(self, bus: Bus, alive_seconds: float = _ALIVE_SECONDS) -> None:
        """alive_seconds: time without an event after which a comment is sent."""
        self._bus = bus
        self._alive_seconds = alive_seconds
        self._listeners = 0

    async def send(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends events until the listener hangs up or the port closes."""
        if self._listeners >= _MAX_LISTENERS:
            return respond_problem(503, "too many listeners")
        response = web.StreamResponse(headers=STREAM_HEADERS)
        self._listeners += 1
        try:
            with self._bus.subscribe(watches=True) as subscription:
                await response.prepare(request)
                await response.write(b": listening\n\n")
                while True:
                    await response.write(await self._next_block(subscription))
        except ConnectionError:
            return response
        finally:
            self._listeners -= 1

    async def _next_block(self, subscription: Subscription) -> bytes:
        try:
            async with asyncio.timeout(self._alive_seconds):
                event = await subscription.next()
        except TimeoutError:
            return b": keep-alive\n\n"
        return render_block(event)


def render_block(event: Event) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event_name(event).encode(), render_event(event))
