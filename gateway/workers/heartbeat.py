"""Whether a worker's event loop still runs: the worker says so every few seconds.

Silent periods are counted, not seconds. If the supervisor itself was stopped for an hour, or the whole
machine, that is one period, and the worker's reports of that time are read next.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

_BEAT_SECONDS: Final = 5.0
# A minute. gunicorn gives a worker half of that; a machine that swaps gets the rest. What a request may take
# of the event loop is counted in milliseconds (ARCHITECTURE, the rules).
_MOST_SILENT: Final = 12


async def beat(report: Callable[[], None]) -> None:
    """Never returns."""
    while True:
        report()
        await asyncio.sleep(_BEAT_SECONDS)


async def wait_silence(
    receive: Callable[[], Awaitable[bytes | None]], seconds: float = _BEAT_SECONDS
) -> None:
    """Returns when nothing was received for too many periods. seconds: of one period.

    Never returns for a worker that has closed its link: it is about to end.
    """
    silent = 0
    while silent < _MOST_SILENT:
        try:
            async with asyncio.timeout(seconds):
                message = await receive()
        except TimeoutError:
            silent += 1
            continue
        silent = 0
        if message is None:
            await asyncio.get_running_loop().create_future()
