"""The admin port of a gateway whose workers die: nobody who watches it notices more than is gone."""

import json
import os
import re
import signal
from pathlib import Path

import aiohttp

from tests.hostile.process import ProcessGateway, linux_only, serving
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings
from tests.toy.running import run_session, wait_until
from tests.toy.upstream import ToyUpstream
from tests.workers.processes import count_starts, find_admin_port, find_workers

pytestmark = linux_only

_WINDOW = 16_000
_DONE = re.compile(r'^gateway_compactions_total\{kind="summary",result="done"\} (.*)$', re.MULTILINE)


class Watcher:
    """One client of the admin port, whose event stream stays open."""

    def __init__(self, port: int, client: aiohttp.ClientSession, stream: aiohttp.ClientResponse) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._client = client
        self._stream = stream
        # How many summaries the metrics showed, each time.
        self.counted: list[float] = []

    async def read_metrics(self) -> str:
        async with self._client.get(f"{self._url}/metrics") as response:
            text = await response.text()
        found = _DONE.search(text)
        self.counted.append(float(found[1]) if found else 0.0)
        return text

    async def list_ids(self) -> list[str]:
        async with self._client.get(f"{self._url}/api/conversations") as response:
            return [each["id"] for each in (await response.json())["conversations"]]

    async def hear_compaction(self, conversation: str) -> None:
        """Reads on until it comes."""
        while True:
            name, _, data = (await self._stream.content.readuntil(b"\n\n")).decode().partition("\ndata: ")
            if name == "event: session.compacted" and json.loads(data)["sessionID"] == conversation:
                return


async def kill(process: int, gateway: ProcessGateway, watcher: Watcher) -> None:
    """Returns when the worker is replaced."""
    starts = count_starts(gateway)
    os.kill(process, signal.SIGKILL)
    await watcher.read_metrics()
    await wait_until(lambda: count_starts(gateway) > starts)
    await watcher.read_metrics()


async def test_events_and_counters_go_on_when_every_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    async with ToyUpstream(window=_WINDOW) as toy:
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more="admin: {port: 0}\n"))
        async with (
            serving("--config", "gateway.yaml", "--workers", "2", folder=tmp_path) as gateway,
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{find_admin_port(gateway)}/api/events") as stream,
        ):
            watcher = Watcher(find_admin_port(gateway), client, stream)
            first = await run_session(make_session(30, 1), gateway.base_url, toy, Shape(max_tokens=1_000))
            await watcher.hear_compaction(first.conversation)
            assert first.conversation in await watcher.list_ids()
            await watcher.read_metrics()
            for process in list(find_workers(gateway).values()):
                await kill(process, gateway, watcher)
            second = await run_session(make_session(30, 2), gateway.base_url, toy, Shape(max_tokens=1_000))
            await watcher.hear_compaction(second.conversation)
            # What the dead workers had stored of the first one is listed, too.
            listed = await watcher.list_ids()
            assert listed[0] == second.conversation and {*listed} <= {first.conversation, *listed[:1]}
            text = await watcher.read_metrics()
    assert watcher.counted == sorted(watcher.counted)
    assert 0 < watcher.counted[0] < watcher.counted[-1]
    assert "\ngateway_workers 2.0\n" in text
    assert "\ngateway_workers_replaced_total 2.0\n" in text
