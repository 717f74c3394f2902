"""A gateway from its start to its end, for whoever runs one in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.app.gateway import Gateway, WorkerPlace
from gateway.app.process import USUAL_PERIODS, Periods
from gateway.settings import Settings


@asynccontextmanager
async def running(
    settings: Settings, place: WorkerPlace | None = None, periods: Periods = USUAL_PERIODS
) -> AsyncIterator[Gateway]:
    """Serves while the block lasts. At its end open requests are drained, and what is queued is written.

    place: of one of several workers. Raises StoreError for a store that cannot be used, OSError for a port
    that is taken, or an upstream that is this gateway.
    """
    gateway = Gateway(settings, place, periods)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()
