"""How long a server may take, counted in slices during which the event loop was free to read.

A process that is busy reads its replies late. That must not look like a slow server, so a slice that the
event loop was late for counts once, however long it was.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

# Of the time that is allowed: one late slice is a small part of it, and the timers are few.
SLICES: Final = 5


class Patience:
    """`async with Patience(seconds)`: raises TimeoutError inside, once its slices have passed.

    passed: slices that have passed before; at least one is left.
    """

    def __init__(self, seconds: float, passed: int = 0) -> None:
        self._slice_seconds = seconds / SLICES
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._passed_before = min(passed, SLICES - 1)
        # Slices that have passed, those before included.
        self.passed = self._passed_before

    @property
    def passed_here(self) -> int:
        return self.passed - self._passed_before

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._arm()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._slice_seconds, self._tick)

    def _tick(self) -> None:
        self.passed += 1
        if self.passed < SLICES:
            self._arm()
        else:
            self._limit.reschedule(asyncio.get_running_loop().time())
