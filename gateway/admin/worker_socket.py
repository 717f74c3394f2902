"""The admin pages of one worker on a Unix socket, for its supervisor alone.

The supervisor serves the admin port for all workers, and checks there who may ask. Here the permissions of
the socket decide: it is for the user of the gateway.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from gateway.admin.server import Pages
from gateway.admin.worker_stream import WorkerStream
from gateway.http.server import make_library_log
from gateway.settings import Admin

_CLOSE_SECONDS: Final = 0.1


class WorkerAdmin:
    """Takes the place of `AdminServer` in a worker. port: always 0."""

    port = 0

    def __init__(self, path: Path, pages: Sequence[Pages], stream: WorkerStream) -> None:
        """stream: of one of the pages. It is closed with the socket."""
        self._path = path
        self._pages = pages
        self._stream = stream
        self._runner: web.AppRunner | None = None

    def use(self, settings: Admin) -> None:
        """The supervisor alone checks tokens."""

    async def open(self) -> None:
        """Raises OSError."""
        application = web.Application()
        for pages in self._pages:
            application.add_routes(pages.routes())
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            shutdown_timeout=_CLOSE_SECONDS,
            handler_cancellation=True,
            access_log=None,
            logger=make_library_log(),
        )
        await self._runner.setup()
        mask = os.umask(0o177)
        try:
            await web.UnixSite(self._runner, str(self._path)).start()
        finally:
            os.umask(mask)

    async def close(self) -> None:
        await self._stream.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._path.unlink(missing_ok=True)
