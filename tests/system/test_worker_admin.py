"""One admin port over all workers: lists, pages, events and counters as of a single process, whichever worker
has served what, and whichever of them dies.
"""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.system.processes import (
    PATIENCE_SECONDS,
    count_starts,
    find_workers,
    is_alive,
    linux_only,
    play,
    post,
    wait_until_started,
)
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.house import ADMIN, ADMIN_TOKEN, make_settings
from tests.toy.product import Process, serve, serve_process
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = [linux_only, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

_HEADERS = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
_SAMPLE = re.compile(r"^([a-z_]+)(\{.*\})? ([0-9.e+-]+)$", re.MULTILINE)
# At so many requests a session of 16,000 tokens has its first summary.
_TURNS = 24


@dataclass
class Office:
    """Two workers, and a client of their admin port."""

    toy: ToyUpstream
    gateway: Process
    client: aiohttp.ClientSession

    async def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, str, bytes]:
        """Status, type and body."""
        url = f"{self.gateway.admin_url}{path}"
        async with self.client.request(method, url, headers=headers or {}, data=body or None) as response:
            return response.status, response.headers.get("Content-Type", ""), await response.read()

    async def get(self, path: str) -> Any:
        status, _, body = await self.ask(f"/api/v1{path}")
        assert status == 200, body
        return json.loads(body)

    async def list_ids(self, query: str = "") -> list[str]:
        return [row["id"] for row in (await self.get(f"/conversations{query}"))["conversations"]]

    async def read_metrics(self) -> Counter[str]:
        """Values by name and labels."""
        _, _, body = await self.ask("/metrics")
        samples = Counter[str]()
        for name, labels, value in _SAMPLE.findall(body.decode()):
            samples[name + labels] = float(value)  # type: ignore[assignment]
        return samples

    async def say(self, count: int, key: str) -> list[str]:
        """So many conversations at once, over both workers; their ids."""
        ready, before = asyncio.Event(), len(self.toy.requests)
        self.toy.delivery = Delivery(after=ready)
        asked = []
        for number in range(count):
            text = f"Question {number} of {key}."
            body = json.dumps({"model": "toy-model", "messages": [{"role": "user", "content": text}]})
            asked.append(asyncio.create_task(post(self.gateway.base_url, body.encode(), key)))
        await wait_until(lambda: len(self.toy.requests) == before + count)
        ready.set()
        answers = [await each for each in asked]
        assert {answer.status for answer in answers} == {200}
        self.toy.delivery = Delivery()
        return [answer.header("x-gateway-conversation") or "" for answer in answers]

    async def wait_for(self, ids: set[str], query: str) -> None:
        """Returns once the list holds them: what was done is told a moment later."""
        async with asyncio.timeout(60):
            while not ids <= set(await self.list_ids(query)):
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{folder}/state", more=ADMIN)
        async with (
            serve_process(settings, folder, "--workers", "2") as gateway,
            aiohttp.ClientSession(headers=_HEADERS) as client,
        ):
            yield Office(toy, gateway, client)


@pytest_asyncio.fixture(loop_scope="module")
async def office(shared_office: Office) -> Office:
    await wait_until(
        lambda: [is_alive(each) for each in find_workers(shared_office.gateway).values()] == [True] * 2,
        PATIENCE_SECONDS,
    )
    shared_office.toy.reset()
    return shared_office


async def find_tenant(office: Office, identity: str) -> str:
    """The name that the gateway gives to a key."""
    return str((await office.get(f"/conversations/{identity}"))["tenant"])


async def test_the_lists_of_all_workers_are_one_that_is_paged_newest_first(office: Office) -> None:
    said = await office.say(12, "sk-paging")
    tenant = await find_tenant(office, said[0])
    await office.wait_for(set(said), f"?tenant={tenant}")
    seen, cursor = list[dict[str, Any]](), ""
    while True:
        page = await office.get(f"/conversations?tenant={tenant}&limit=5{cursor}")
        assert len(page["conversations"]) <= 5
        seen += page["conversations"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert sorted(row["id"] for row in seen) == sorted(said)
    assert all(before["last_seen"] >= after["last_seen"] for before, after in pairwise(seen))
    assert {row["requests"] for row in seen} == {1}
    # Another tenant has none of them.
    assert set(await office.list_ids("?tenant=key:0123456789ab")) == set()


async def test_a_conversation_has_its_page_its_log_and_its_originals_whoever_served_it(
    office: Office,
) -> None:
    toy, session = office.toy, make_session(30, 31)
    run = await play(session, [office.gateway.base_url], toy, Shape(max_tokens=1_000), 0, _TURNS)
    assert run.failed == [] and toy.summaries
    one = f"/conversations/{run.conversation}"
    await office.wait_for({run.conversation}, "?limit=500")
    async with asyncio.timeout(60):
        # Each worker tells what it did a moment later, and not at the same moment.
        shown = await office.get(one)
        while shown["requests"] < _TURNS or shown["compactions"] < len(toy.summaries):
            await asyncio.sleep(0.02)
            shown = await office.get(one)
    assert shown["lines"]["hard"] == 12_000 and shown["requests"] == _TURNS
    assert shown["compactions"] == len(toy.summaries) == len((await office.get(f"{one}/log"))["log"])
    taken = await office.get(f"{one}/originals")
    digest = taken["taken"][0]["messages"][0]["digest"]
    original = await office.get(f"{one}/originals/{digest}")
    said = json.dumps(session.messages(_TURNS - 1))
    assert json.dumps(original.get("message", original))[1:-1] in said
    other = (await office.say(1, "sk-other"))[0]
    for path in (f"/conversations/{other}/originals/{digest}", "/conversations/0123456789abcdef"):
        assert (await office.ask(f"/api/v1{path}"))[0] == 404


async def test_a_compaction_by_hand_is_made_by_the_worker_that_has_the_newest_body(office: Office) -> None:
    toy, session = office.toy, make_session(16, 32)
    run = await play(session, [office.gateway.base_url], toy, Shape(max_tokens=1_000), 0, 12)
    assert toy.summaries == []
    path = f"/api/v1/conversations/{run.conversation}/compact"
    body = b'{"instructions": "Keep the ticket numbers."}'
    async with asyncio.timeout(60):
        while (await office.ask(path, "POST", body=body))[0] != 202:
            await asyncio.sleep(0.02)
    await wait_until(lambda: len(toy.summaries) == 1 and toy.summaries[0].finished)
    assert b"Keep the ticket numbers." in toy.summaries[0].body
    status, _, said = await office.ask("/api/v1/conversations/0123456789abcdef/compact", "POST")
    assert status == 404, said
    status, _, said = await office.ask(path, "POST", body=b"x" * 600_000)
    assert (status, json.loads(said)["detail"]) == (400, "body: too large")


async def test_what_all_workers_counted_is_summed(office: Office) -> None:
    before = await office.read_metrics()
    await office.say(10, "sk-counted")
    after = await office.read_metrics()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown['gateway_requests_total{format="chat",plan="passthrough",status="2xx"}'] == 10
    assert grown["gateway_overhead_seconds_count"] == 10
    assert grown['gateway_overhead_seconds_bucket{le="+Inf"}'] == 10
    assert after["gateway_workers"] == 2 and after["gateway_open_requests"] == 0
    assert len([name for name in after if name.startswith("gateway_build_info{")]) == 1


async def test_events_and_counters_go_on_when_every_worker_is_killed_and_replaced(office: Office) -> None:
    toy, gateway = office.toy, office.gateway
    counted = list[float]()
    done = 'gateway_compactions_total{kind="summary",result="done"}'

    async def note_count() -> None:
        counted.append((await office.read_metrics())[done])

    replaced = (await office.read_metrics())["gateway_workers_replaced_total"]
    async with office.client.get(f"{gateway.admin_url}/api/v1/events") as stream:
        assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
        first = await play(make_session(30, 33), [gateway.base_url], toy, Shape(max_tokens=1_000), 0, _TURNS)
        await hear_compaction(stream, first.conversation)
        await note_count()
        for process_id in list(find_workers(gateway).values()):
            starts = count_starts(gateway)
            # A worker tells its numbers once a second, whoever looks.
            await note_count()
            os.kill(process_id, signal.SIGKILL)
            await note_count()
            await wait_until_started(gateway, starts + 1)
            await note_count()
        second = await play(make_session(30, 34), [gateway.base_url], toy, Shape(max_tokens=1_000), 0, _TURNS)
        await hear_compaction(stream, second.conversation)
        await note_count()
    # What the dead workers had stored of the first one is listed, too.
    await office.wait_for({first.conversation, second.conversation}, "?limit=500")
    assert counted == sorted(counted)
    assert 0 < counted[0] < counted[-1]
    metrics = await office.read_metrics()
    assert (metrics["gateway_workers"], metrics["gateway_workers_replaced_total"]) == (2, replaced + 2)


async def hear_compaction(stream: aiohttp.ClientResponse, conversation: str) -> None:
    """Reads on until it comes."""
    while (await read_event(stream, "session.compacted"))["sessionID"] != conversation:
        pass


async def read_event(stream: aiohttp.ClientResponse, kind: str) -> Any:
    """The next one of this kind."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            name, _, data = (await stream.content.readuntil(b"\n\n")).decode().partition("\ndata: ")
            if name == f"event: {kind}":
                return json.loads(data)


async def test_conversations_that_change_at_any_worker_are_told(office: Office) -> None:
    async with office.client.get(f"{office.gateway.admin_url}/api/v1/events") as stream:
        assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
        missing = set(await office.say(6, "sk-told"))
        while missing:
            told = await read_event(stream, "activity")
            missing -= {row["id"] for row in told["conversations"]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer nearly"}, 401),
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
async def test_who_may_ask_is_checked_as_with_one_process(
    office: Office, headers: dict[str, str], status: int
) -> None:
    for path in ("/api/v1/conversations", "/metrics", "/api/v1/events?x=1"):
        if status == 200 and "events" in path:
            continue
        assert (await office.ask(path, headers=headers))[0] == status, path


async def test_pages_and_methods_are_those_of_one_process(office: Office) -> None:
    """Every page of a single gateway has the same answer here, as long as nothing has happened."""
    nobody = "?tenant=key:0123456789ab"
    paths = [f"/api/v1/conversations{nobody}", f"/api/conversations{nobody}", "/api/conversations/"]
    paths += ["/api", "/", "/metrics/", "/healthz", "/api/x", "/api/v1/openapi.json"]
    paths += [f"/api/v1/conversations/c0ffee{more}" for more in ("", "/log", "/originals", "/compact", "/x")]
    paths += ["/api/v1/conversations/a%2F..%2Fb%3Fc", "/api/v1/conversations?limit=0"]
    asked = [(method, path) for path in paths for method in ("GET", "HEAD", "DELETE")]
    merged = [await office.ask(path, method) for method, path in asked]
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=ADMIN)) as product,
        aiohttp.ClientSession(headers=_HEADERS) as client,
    ):
        single = []
        for method, path in asked:
            async with client.request(method, f"{product.admin_url}{path}") as response:
                kind = response.headers.get("Content-Type", "")
                single.append((response.status, kind, await response.read()))
    for one, other, what in zip(merged, single, asked, strict=True):
        assert one == other, what


async def test_a_worker_that_hangs_keeps_no_page_waiting(office: Office) -> None:
    known = (await office.say(16, "sk-hanging"))[0]
    tenant = await find_tenant(office, known)
    hanging = find_workers(office.gateway)["worker-1"]
    os.kill(hanging, signal.SIGSTOP)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            listed = await office.list_ids(f"?tenant={tenant}")
            metrics = await office.read_metrics()
    finally:
        os.kill(hanging, signal.SIGCONT)
    assert len(listed) >= 2
    # It counts as it did last.
    assert metrics["gateway_workers"] == 2
