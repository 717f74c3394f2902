"""How late the event loop is: everything that a request waits for waits as long."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

# Often enough to see a step of some ten milliseconds now and then, and too rare to cost anything.
_PERIOD_SECONDS: Final = 0.5


async def sample_loop_delay(note: Callable[[float], None], period_seconds: float = _PERIOD_SECONDS) -> None:
    """Never returns. note: gets how many seconds later than planned this task went on."""
    while True:
        planned_seconds = time.monotonic() + period_seconds
        await asyncio.sleep(period_seconds)
        note(max(0.0, time.monotonic() - planned_seconds))
