"""The worker's side of the link, with a test in the place of the supervisor."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from gateway.downstream.shared_port import bind_port
from gateway.downstream.tally import Tally
from gateway.workers.messages import SettingsText, StartOrder
from gateway.workers.worker_process import Launch, WorkerFailed, WorkerProcess, find_program, launch

SETTINGS = 'store: "memory:"\nadmin: {port: 0}\nupstreams: {default: {base_url: "http://127.0.0.1:9/v1"}}\n'


class Place:
    """What a supervisor prepares for a worker."""

    def __init__(self, sockets: list[socket.socket], folder: Path) -> None:
        self.sockets = sockets
        self.tally = Tally.create(1)
        self._folder = folder

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    async def start(self, text: str, **references: str) -> WorkerProcess:
        listening = tuple(each.fileno() for each in self.sockets)
        order = StartOrder(
            settings=SettingsText(text=text, references=references),
            reloaded=None,
            listening=listening,
            tally=self.tally.descriptor,
            store=None,
            admin_path=str(self._folder / "admin"),
            checks_upstreams=False,
        )
        command = [*find_program(), "serve", "--config", str(self._folder / "gateway.yaml")]
        launching = Launch(number=1, command=command, descriptors=(*listening, self.tally.descriptor))
        # As if the tests were the `gateway` command.
        flags = [word for word in launching.command if word != "-P"]
        return await launch(replace(launching, command=flags), order)


@asynccontextmanager
async def placed(folder: Path) -> AsyncIterator[Place]:
    place = Place(await bind_port("127.0.0.1", 0), folder)
    try:
        yield place
    finally:
        for listening in place.sockets:
            listening.close()
        place.tally.close()


async def test_it_uses_the_settings_that_it_is_given_whatever_is_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("listen: {prot: 1}\n")
    async with placed(tmp_path) as place:
        worker = await place.start(SETTINGS)
        report = await worker.wait_ready()
        assert report.windows > 100
        assert place.tally.has_least(0)
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{place.port}/readyz") as ready,
        ):
            assert ready.status == 200
        worker.drain()
        assert await worker.wait() == 0


async def test_it_uses_the_texts_of_files_that_are_there_no_more(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        worker = await place.start(
            SETTINGS.replace("http://127.0.0.1:9/v1", "${file:url}"), url="http://[::1]:9/v1"
        )
        await worker.wait_ready()
        worker.drain()
        assert await worker.wait() == 0


async def test_it_says_why_it_cannot_serve(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        worker = await place.start("listen: {prot: 1}\n")
        with pytest.raises(WorkerFailed, match="prot") as failed:
            await worker.wait_ready()
        assert failed.value.status == 2
        assert await worker.wait() == 2


async def test_it_ends_when_the_supervisor_has_gone(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        worker = await place.start(SETTINGS)
        await worker.wait_ready()
        worker.close_link()
        assert await worker.wait() == 0
