"""A change of the settings file, or of a file that it names, is noticed however the file is replaced."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.reload.watcher import SettingsWatcher

_TEXT = "upstreams: {default: {base_url: http://127.0.0.1:1/v1, api_key: '${file:secret}'}}\n"


class Watch:
    """A watcher that looks when it is told to. changes: how often it has asked for a reload."""

    def __init__(self) -> None:
        self.changes = 0
        self._looks = asyncio.Semaphore(0)
        self._rests = asyncio.Semaphore(0)

    async def pause(self) -> None:
        self._rests.release()
        await self._looks.acquire()

    def request(self) -> None:
        self.changes += 1

    async def look(self, times: int = 2) -> int:
        """Two looks notice a change. The number of changes so far."""
        for _ in range(times):
            await self._rests.acquire()
            self._looks.release()
        await self._rests.acquire()
        self._rests.release()
        return self.changes


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Watch]:
    watch = Watch()
    task = asyncio.create_task(SettingsWatcher(path).run(watch.request, watch.pause))
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def write(folder: Path, text: str = _TEXT, secret: str = "sk-1") -> Path:
    (folder / "secret").write_text(secret)
    path = folder / "gateway.yaml"
    path.write_text(text)
    return path


async def test_nothing_is_asked_for_while_nothing_changes(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with watching(path) as watch:
        os.utime(path)
        assert await watch.look(4) == 0


async def test_a_change_in_place_is_noticed_once(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with watching(path) as watch:
        path.write_text(_TEXT + "drain_seconds: 1\n")
        assert await watch.look() == 1
        assert await watch.look() == 1


async def test_a_file_that_is_still_being_written_is_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with watching(path) as watch:
        path.write_text(_TEXT + "drain_")
        assert await watch.look(1) == 0
        path.write_text(_TEXT + "drain_seconds: 1\n")
        assert await watch.look(1) == 0
        assert await watch.look(1) == 1


async def test_a_rename_over_the_file_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with watching(path) as watch:
        (tmp_path / "new").write_text(_TEXT + "drain_seconds: 1\n")
        (tmp_path / "new").rename(path)
        assert await watch.look() == 1


async def test_a_file_that_the_settings_name_is_watched_also_if_a_change_named_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with watching(path) as watch:
        (tmp_path / "secret").write_text("sk-2")
        assert await watch.look() == 1
        (tmp_path / "other").write_text("sk-3")
        path.write_text(_TEXT.replace("file:secret", "file:other"))
        assert await watch.look() == 2
        (tmp_path / "other").write_text("sk-4")
        assert await watch.look() == 3
        (tmp_path / "secret").write_text("sk-5")
        assert await watch.look() == 3


async def test_a_mounted_config_map_is_noticed_when_kubernetes_swaps_its_link(tmp_path: Path) -> None:
    for name, secret in (("..1", "sk-1"), ("..2", "sk-2")):
        (tmp_path / name).mkdir()
        write(tmp_path / name, secret=secret)
    (tmp_path / "..data").symlink_to("..1")
    for name in ("gateway.yaml", "secret"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    async with watching(tmp_path / "gateway.yaml") as watch:
        (tmp_path / "..tmp").symlink_to("..2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        assert await watch.look() == 1


async def test_a_file_that_is_gone_for_a_while_is_noticed_when_it_is_back(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with watching(path) as watch:
        path.unlink()
        assert await watch.look() == 1
        path.write_text(_TEXT)
        assert await watch.look() == 2


async def test_a_change_between_its_making_and_its_first_look_is_noticed(tmp_path: Path) -> None:
    path, watch = write(tmp_path), Watch()
    watcher = SettingsWatcher(path)
    path.write_text(_TEXT + "drain_seconds: 1\n")
    task = asyncio.create_task(watcher.run(watch.request, watch.pause))
    assert await watch.look() == 1
    task.cancel()
