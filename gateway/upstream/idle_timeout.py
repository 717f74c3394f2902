"""Who has been silent for too long? One timestamp per read, one sweeper for all.

A read timeout of the library does not fire when its parser hangs on a malformed chunk (FACTS §1); closing the
response from outside does.
"""

import asyncio
import time
from contextlib import suppress

from gateway.core.errors import UpstreamStalled
from gateway.upstream.response import UpstreamResponse

_MOST_SECONDS_BETWEEN_SWEEPS = 1.0


class Watch:
    """One exchange with the upstream of that name. `seen_seconds` is set at each sign of life."""

    __slots__ = ("_idle_seconds", "_is_stalled", "_task", "name", "response", "seen_seconds")

    def __init__(self, name: str, idle_seconds: float, task: "asyncio.Task[None] | None") -> None:
        self.name = name
        self._idle_seconds = idle_seconds
        self._is_stalled = False
        self._task = task
        self.response: UpstreamResponse | None = None
        self.seen_seconds = time.monotonic()

    def check(self, now_seconds: float) -> None:
        """Wakes a reader that has waited too long: by closing its response, or by cancelling its task."""
        if self._is_stalled or now_seconds - self.seen_seconds <= self._idle_seconds:
            return
        self._is_stalled = True
        if self.response is not None:
            self.response.close()
        elif self._task is not None:
            self._task.cancel()

    def explain(self, error: BaseException) -> UpstreamStalled | None:
        """What is to be raised in place of what the wake-up looked like; None if it was none of ours."""
        if not self._is_stalled:
            return None
        if isinstance(error, asyncio.CancelledError) and self._task is not None:
            self._task.uncancel()
        return UpstreamStalled(f"{self.name}: no sign of life for {self._idle_seconds:g} s")

    def end(self) -> None:
        """Closes the answer that was watched; one that came to its end has given its connection back."""
        response = self.response
        if response is not None:
            if not response.content.is_eof():
                response.close()
            self.response = None
        self.seen_seconds = time.monotonic()


class IdleTimeout:
    def __init__(self, shortest_idle_seconds: float) -> None:
        self._every_seconds = min(_MOST_SECONDS_BETWEEN_SWEEPS, shortest_idle_seconds / 4)
        self._watches: set[Watch] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="watchdog")

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper

    def begin(self, name: str, idle_seconds: float, task: "asyncio.Task[None] | None") -> Watch:
        """Watches the task that exchanges with an upstream, until `end`."""
        watch = Watch(name, idle_seconds, task)
        self._watches.add(watch)
        return watch

    def end(self, watch: Watch) -> None:
        self._watches.discard(watch)
        watch.end()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            now = time.monotonic()
            for watch in list(self._watches):
                watch.check(now)
