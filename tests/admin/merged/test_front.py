"""One admin port over real gateways, with the checks and pages of a single one."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from gateway.admin.merged.front import AdminFront
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.settings import Admin
from tests.admin.test_event_stream import wait_for_rows
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream
from tests.toy.workers import running_front, running_toys, running_worker, socket_paths

# The front asks for none here; where there is one, texts are shown.
_TOKEN = "admin: {token: secret}\n"
_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"


@asynccontextmanager
async def running_workers(
    toy: ToyUpstream, how_many: int, more: str = ""
) -> AsyncIterator[tuple[AdminFront, Sequence[RunningGateway]]]:
    live = LiveWorkers()
    with socket_paths() as paths:
        async with AsyncExitStack() as exits:
            front = await exits.enter_async_context(running_front(live))
            sockets: list[Path] = [next(paths) for _ in range(how_many)]
            workers = []
            for socket in sockets:
                worker = running_worker(make_settings(toy, more=more), socket)
                workers.append(await exits.enter_async_context(worker))
                live.add(socket)
            yield front, workers


async def get(front: AdminFront, path: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{front.port}{path}"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        text = await response.text()
        return response.status, json.loads(text) if path.startswith("/api") else text


async def test_conversations_of_all_workers_are_listed_and_shown_with_their_log() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_workers(toy, 2, _TENANTS + _TOKEN) as (front, workers),
    ):
        shape = Shape(max_tokens=1_000)
        red = await run_session(make_session(30, 3), workers[0].base_url, toy, shape, Pace(key="sk-red"))
        blue = await run_session(make_session(2, 4), workers[1].base_url, toy, pace=Pace(key="sk-blue"))
        for worker in workers:
            await worker.settle()
        _, everything = await get(front, "/api/conversations")
        _, only_red = await get(front, "/api/conversations?tenant=red")
        status, shown = await get(front, f"/api/conversations/{red.conversation}")
        _, log = await get(front, f"/api/conversations/{red.conversation}/log")
        _, empty_log = await get(front, f"/api/conversations/{blue.conversation}/log")
        _, originals = await get(front, f"/api/conversations/{red.conversation}/originals")
        digest = originals["taken"][0]["messages"][0]["digest"]
        original = f"/api/conversations/{red.conversation}/originals/{digest}"
        original_status, _ = await get(front, original)
        _, metrics = await get(front, "/metrics")
        unknown, _ = await get(front, "/api/conversations/0123456789abcdef")
        nowhere, _ = await get(front, f"/api/conversations/{blue.conversation}/originals/{digest}")
    assert [each["id"] for each in everything["conversations"]] == [blue.conversation, red.conversation]
    assert [each["tenant"] for each in only_red["conversations"]] == ["red"]
    assert status == 200 and shown["lines"]["hard"] == 12_000
    assert log["log"] and empty_log["log"] == []
    assert (original_status, unknown, nowhere) == (200, 404, 404)
    assert f'gateway_compactions_total{{kind="summary",result="done"}} {len(log["log"])}.0' in metrics
    assert "gateway_workers 2.0" in metrics


async def test_events_of_all_workers_come_on_one_stream() -> None:
    async with ToyUpstream(window=16_000) as toy, running_workers(toy, 2) as (front, workers):
        url = f"http://127.0.0.1:{front.port}/api/events"
        async with aiohttp.ClientSession() as client, client.get(url) as stream:
            assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
            runs = [
                await run_session(make_session(30, seed), worker.base_url, toy, Shape(max_tokens=1_000))
                for seed, worker in enumerate(workers)
            ]
            heard = [await read_compacted(stream, run.conversation) for run in runs]
    assert heard == [run.conversation for run in runs] and len({*heard}) == 2


async def test_conversations_that_change_at_any_worker_are_told() -> None:
    async with ToyUpstream() as toy, running_workers(toy, 2) as (front, workers):
        url = f"http://127.0.0.1:{front.port}/api/events"
        async with aiohttp.ClientSession() as client, client.get(url) as stream:
            assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
            runs = [
                await run_session(make_session(2, seed), worker.base_url, toy)
                for seed, worker in enumerate(workers)
            ]
            async with asyncio.timeout(60):
                await wait_for_rows(stream, {run.conversation: len(run.answers) for run in runs})


async def read_compacted(stream: aiohttp.ClientResponse, conversation: str) -> str:
    """Reads on until this conversation has been compacted."""
    found = ""
    while found != conversation:
        name, _, data = (await stream.content.readuntil(b"\n\n")).decode().partition("\ndata: ")
        if name == "event: session.compacted":
            found = str(json.loads(data)["sessionID"])
    return found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer nearly"}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "Bearer secret", "Host": "evil.example"}, 403),
        ({"Authorization": "Bearer secret", "Origin": "http://evil.example"}, 403),
    ],
)
async def test_who_may_ask_is_checked_as_with_one_process(headers: dict[str, str], status: int) -> None:
    async with running_toys(1) as (live, (toy,)), running_front(live, token="secret") as front:
        toy.pages["/api/conversations"] = {"conversations": []}
        url = f"http://127.0.0.1:{front.port}/api/conversations"
        async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as response:
            assert response.status == status
        assert bool(toy.asked) == (status == 200)


async def test_a_token_can_be_changed_while_the_port_is_open() -> None:
    async with running_toys(1) as (live, _), running_front(live, token="old") as front:
        front.use(Admin(host="127.0.0.1", port=0, token=SecretStr("new")))
        headers = [{"Authorization": f"Bearer {token}"} for token in ("old", "new")]
        statuses = [(await read(front.port, "GET", "/metrics", each))[0] for each in headers]
    assert statuses == [401, 200]


async def test_pages_and_methods_are_those_of_one_process() -> None:
    """Every page of a single gateway has the same answer here, as long as nothing has happened."""
    paths = ["/api/conversations", "/api/conversations/", "/api", "/", "/metrics/", "/healthz", "/api/x"]
    paths += [f"/api/conversations/c0ffee{more}" for more in ("/log", "/originals", "/compact", "/x")]
    asked = [(method, path) for path in paths for method in ("GET", "HEAD", "DELETE")]
    async with ToyUpstream() as toy:
        async with running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway:
            single = [await read(gateway.admin_port, *each) for each in asked]
        async with running_workers(toy, 2) as (front, _):
            merged = [await read(front.port, *each) for each in asked]
    assert merged == single


async def read(
    port: int, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, str | None, bytes]:
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, response.headers.get("Content-Type"), await response.read()
