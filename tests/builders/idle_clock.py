"""Time as idle timeouts see it: it passes only when a test says so, however busy the machine is."""

import asyncio
import time

import pytest


class IdleClock:
    def __init__(self) -> None:
        self._now_seconds = time.monotonic()
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return self._now_seconds

    async def let_pass(self, seconds: float) -> None:
        """Returns after all timeouts were checked, if nothing else looks at the clock meanwhile."""
        self._now_seconds += seconds
        looks = self._looks
        while self._looks == looks:
            await asyncio.sleep(0.005)


def stop_idle_clock(monkeypatch: pytest.MonkeyPatch) -> IdleClock:
    clock = IdleClock()
    monkeypatch.setattr("gateway.upstream.idle_timeout.time", clock)
    return clock
