"""Settings are loaded one reload after the other, and what cannot be used changes nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.reload.reloader import Reloader
from gateway.settings import Settings, load_settings
from tests.builders.settings import PLAIN


class Applied:
    """Takes settings as a gateway does. Each waits until `go_on` allows it."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []
        self.begun = asyncio.Semaphore(0)
        self.go_on = asyncio.Semaphore(0)
        self.failure: Exception | None = None
        self.has_failed: list[bool] = []

    def note(self, *, has_failed: bool) -> None:
        self.has_failed.append(has_failed)

    async def apply(self, settings: Settings) -> None:
        self.begun.release()
        await self.go_on.acquire()
        if self.failure is not None:
            raise self.failure
        self.settings.append(settings)


@asynccontextmanager
async def reloading(path: Path, applied: Applied) -> AsyncIterator[asyncio.Event]:
    wanted = asyncio.Event()
    reloader = Reloader(lambda: load_settings(path, {}), applied.apply, wanted, applied.note)
    task = asyncio.create_task(reloader.run())
    try:
        yield wanted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_for_log(caplog: pytest.LogCaptureFixture, lines: int) -> None:
    async with asyncio.timeout(30):
        while len(caplog.messages) < lines:
            await asyncio.sleep(0)


async def test_a_request_during_a_reload_loads_the_newest_file_after_it(tmp_path: Path) -> None:
    path, applied = tmp_path / "gateway.yaml", Applied()
    path.write_text(PLAIN)
    async with reloading(path, applied) as wanted:
        wanted.set()
        await applied.begun.acquire()
        path.write_text(PLAIN + "drain_seconds: 1\n")
        wanted.set()
        path.write_text(PLAIN + "drain_seconds: 2\n")
        wanted.set()
        applied.go_on.release()
        await applied.begun.acquire()
        applied.go_on.release()
        async with asyncio.timeout(30):
            while len(applied.settings) < 2:
                await asyncio.sleep(0)
    assert [each.drain_seconds for each in applied.settings] == [8, 2]
    assert applied.has_failed[0] is False


async def test_a_bad_file_is_named_with_line_and_nearest_key_and_a_good_one_is_taken_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = tmp_path / "gateway.yaml", Applied()
    path.write_text(PLAIN + "drain_secondz: 1\n")
    async with reloading(path, applied) as wanted:
        wanted.set()
        await wait_for_log(caplog, 1)
        path.write_text(PLAIN)
        wanted.set()
        await applied.begun.acquire()
        applied.go_on.release()
        async with asyncio.timeout(30):
            while not applied.settings:
                await asyncio.sleep(0)
    (message,) = caplog.messages
    assert applied.has_failed[0] is True
    line = PLAIN.count("\n") + 1
    assert message == (
        f"settings not reloaded, the earlier ones stay: {path}:{line}: unknown key 'drain_secondz'; "
        "the nearest valid key is 'drain_seconds'"
    )


async def test_several_problems_are_one_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, applied = tmp_path / "gateway.yaml", Applied()
    path.write_text(PLAIN + "drain_seconds: no\nmodelz: []\n")
    async with reloading(path, applied) as wanted:
        wanted.set()
        await wait_for_log(caplog, 1)
    first, *problems = caplog.messages[0].splitlines()
    assert first == "settings not reloaded, the earlier ones stay:"
    assert len(problems) == 2 and all(problem.startswith(f"  {path}:") for problem in problems)


async def test_a_mistake_of_ours_does_not_end_later_reloads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = tmp_path / "gateway.yaml", Applied()
    path.write_text(PLAIN)
    applied.failure = RuntimeError("a mistake")
    async with reloading(path, applied) as wanted:
        wanted.set()
        await applied.begun.acquire()
        applied.go_on.release()
        await wait_for_log(caplog, 1)
        applied.failure = None
        wanted.set()
        await applied.begun.acquire()
        applied.go_on.release()
        async with asyncio.timeout(30):
            while not applied.settings:
                await asyncio.sleep(0)
    assert caplog.records[0].levelno == logging.ERROR
