"""A worker's admin pages are for its supervisor alone."""

import stat

import pytest
from aiohttp import web

from gateway.admin.merged.worker_client import Gone, WorkerPage, ask
from gateway.admin.worker_socket import WorkerAdmin
from gateway.admin.worker_stream import WorkerStream
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from tests.toy.gateway import make_settings
from tests.toy.upstream import ToyUpstream
from tests.toy.workers import running_worker, socket_paths


class _NoPages:
    def routes(self) -> list[web.RouteDef]:
        return []


async def test_a_worker_shows_its_pages_at_its_socket_and_opens_no_admin_port() -> None:
    with socket_paths() as paths:
        path = next(paths)
        async with ToyUpstream() as toy, running_worker(make_settings(toy), path) as worker:
            mode = path.stat().st_mode
            shown = await ask(path, "/api/conversations")
            missing = await ask(path, "/api/nothing")
            assert worker.admin_port == 0
        after = await ask(path, "/api/conversations")
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    assert isinstance(shown, WorkerPage) and shown.parse() == {"conversations": [], "next": None}
    assert isinstance(missing, WorkerPage) and missing.status == 404
    assert after == Gone() and not path.exists()


async def test_a_socket_that_cannot_be_opened_raises_os_error() -> None:
    with socket_paths() as paths:
        path = next(paths) / "in" / "no" / "folder"
        admin = WorkerAdmin(path, [_NoPages()], WorkerStream(Bus(), Metrics()))
        with pytest.raises(OSError):
            await admin.open()
        await admin.close()
