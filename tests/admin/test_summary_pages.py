"""Summaries over HTTP, and the end of a conversation. `tests/end_to_end` has what follows from an edit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tests.toy.agent import make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_OPEN = "admin: {port: 0, token: sesame}\n"
_SHUT = "admin: {port: 0}\npolicies: {default: {show_texts: false}}\n"


@dataclass
class Compacted:
    gateway: RunningGateway
    client: aiohttp.ClientSession
    identity: str


@asynccontextmanager
async def compacted(admin: str) -> AsyncIterator[Compacted]:
    """A conversation with summaries."""
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=admin)) as gateway,
    ):
        run = await run_session(make_session(40, 3), gateway.base_url, toy)
        await gateway.settle()
        base = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}/"
        headers = {"Authorization": "Bearer sesame"}
        async with aiohttp.ClientSession(base, headers=headers) as client:
            yield Compacted(gateway, client, run.conversation)


async def test_summaries_say_what_they_cover_and_the_newest_that_was_sent_is_in_use() -> None:
    async with compacted(_OPEN) as site, site.client.get("summaries") as response:
        page = await response.json()
    assert page["id"] == site.identity
    newest, *older = page["summaries"]
    assert older, "it was compacted more than once"
    assert [each["in_use"] for each in page["summaries"]].count(True) == 1
    assert newest["covers"] > older[0]["covers"]
    assert newest["kind"] == "summary" and newest["trigger"] == "auto" and newest["calls"] >= 1
    assert "conversation id" in newest["framing"] and newest["framing"] not in newest["text"]
    assert newest["recalled"] is None
    assert newest["text"] and newest["tokens"] > 0 and newest["saved_tokens"] > 0
    assert newest["versions"] == [
        {"version": 1, "created": newest["versions"][0]["created"], "edited": False, "text": newest["text"]}
    ]


async def test_without_permission_the_texts_are_null_and_nothing_can_be_edited() -> None:
    async with compacted(_SHUT) as site:
        async with site.client.get("summaries") as response:
            summaries = (await response.json())["summaries"]
        assert all(each["text"] is None and each["framing"] is None for each in summaries)
        assert all(version["text"] is None for each in summaries for version in each["versions"])
        key = summaries[0]["key"]
        async with site.client.put(f"summaries/{key}", json={"text": "Mine."}) as response:
            assert response.status == 403
        async with site.client.post(f"summaries/{key}/restore", json={"version": 1}) as response:
            assert response.status == 403


async def test_a_summary_that_is_not_in_use_any_more_and_one_that_never_was_are_told_apart() -> None:
    async with compacted(_OPEN) as site:
        async with site.client.get("summaries") as response:
            summaries = (await response.json())["summaries"]
        statuses = []
        for key in (summaries[-1]["key"], "ab" * 32, "not-a-key"):
            async with site.client.put(f"summaries/{key}", json={"text": "Mine."}) as response:
                statuses.append(response.status)
        path = f"summaries/{summaries[0]['key']}/restore"
        async with site.client.post(path, json={"version": 9}) as response:
            statuses.append(response.status)
    assert statuses == [409, 409, 404, 404]


async def test_a_deleted_conversation_is_gone() -> None:
    async with compacted(_SHUT) as site:
        url = f"../{site.identity}"
        async with site.client.delete(url) as response:
            page = await response.json()
            assert response.status == 200 and page["id"] == site.identity
            assert page["deleted"]["state"] > 0 and page["deleted"]["originals"] > 0
        async with site.client.get(url) as response:
            assert response.status == 404
        async with site.client.delete(url) as response:
            assert response.status == 404
