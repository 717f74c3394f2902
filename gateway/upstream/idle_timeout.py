"""Ends exchanges whose upstream has shown no sign of life for too long.

One timestamp for each exchange, and one sweeper for all of them. The read timeout of aiohttp does not fire
when its parser hangs on a malformed chunk; closing the response from outside wakes the reader even then.
"""

import asyncio
import math
import time
from contextlib import suppress
from typing import Protocol

from gateway.core.errors import UpstreamStalled
from gateway.settings import UpstreamSettings
from gateway.upstream.target import find_origin

_MAX_SECONDS_BETWEEN_SWEEPS = 1.0


class Closable(Protocol):
    """A response. A task that reads it gets an error when it is closed."""

    def close(self) -> None: ...


class IdleTimeout:
    """The timeout of one exchange, which runs in one task."""

    __slots__ = (
        *("_idle_seconds", "_is_stalled", "_response", "_seen_seconds", "_task", "upstream"),
        *("begun_seconds", "head_seconds", "last_seconds"),
    )

    def __init__(self, upstream: UpstreamSettings, task: "asyncio.Task[None] | None") -> None:
        self.upstream = upstream
        self._idle_seconds = upstream.idle_seconds
        self._task = task
        self._response: Closable | None = None
        self._is_stalled = False
        # Times are of time.monotonic(): when the request was sent, when the head of the response came, and
        # the last sign of life.
        self.begun_seconds = self.last_seconds = time.monotonic()
        self.head_seconds: float | None = None
        # The same as the last one, or never while nothing is expected.
        self._seen_seconds = self.begun_seconds

    def reset(self) -> None:
        """The upstream has shown a sign of life."""
        self._seen_seconds = self.last_seconds = time.monotonic()

    def pause(self) -> None:
        """Until the next `reset` the upstream is not expected to send anything."""
        self._seen_seconds = math.inf

    def expect_from(self, response: Closable) -> None:
        """From now on, a stall closes the response. Until then it cancels the task."""
        self._response = response
        self.reset()
        self.head_seconds = self.last_seconds

    def check(self, now_seconds: float) -> None:
        """Wakes the task, once, if it has waited for too long."""
        if self._is_stalled or now_seconds - self._seen_seconds <= self._idle_seconds:
            return
        self._is_stalled = True
        if self._response is not None:
            self._response.close()
        elif self._task is not None:
            self._task.cancel()

    def find_stall(self, error: BaseException) -> UpstreamStalled | None:
        """The error to raise instead, if this timeout caused `error`. Takes back the task's cancellation."""
        if not self._is_stalled:
            return None
        if isinstance(error, asyncio.CancelledError) and self._task is not None:
            self._task.uncancel()
        origin = find_origin(self.upstream.base_url)
        return UpstreamStalled(f"{self.upstream.name}: {origin} was silent for {self._idle_seconds:g} s")

    def close_response(self) -> None:
        """Closes the response, if any; one that was read to its end has released its connection already."""
        if self._response is not None:
            self._response.close()
            self._response = None


class IdleSweeper:
    def __init__(self, shortest_idle_seconds: float) -> None:
        self._every_seconds = min(_MAX_SECONDS_BETWEEN_SWEEPS, shortest_idle_seconds / 4)
        self._timeouts: set[IdleTimeout] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep(), name="idle sweeper")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def watch(self, upstream: UpstreamSettings) -> IdleTimeout:
        """The timeout of an exchange in the current task. Call `end` when the exchange is over."""
        timeout = IdleTimeout(upstream, asyncio.current_task())
        self._timeouts.add(timeout)
        return timeout

    def end(self, timeout: IdleTimeout) -> None:
        """Closes the response, too."""
        self._timeouts.discard(timeout)
        timeout.close_response()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            now = time.monotonic()
            for timeout in list(self._timeouts):
                timeout.check(now)
