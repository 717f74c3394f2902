"""A person edits a summary: the text is at the upstream with the next request, wherever that goes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.toy.admin_calls import ask_to_compact
from tests.toy.agent import Message, Trim, make_session
from tests.toy.checks import read_sizes
from tests.toy.delivery import Delivery
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.redis_server import RedisServer
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0, token: sesame}\n"
_SESSION = make_session(30, 3)
_TEXT = "A person knows: the ticket is 4711, and the tests pass."


@asynccontextmanager
async def api(gateway: Product) -> AsyncIterator[aiohttp.ClientSession]:
    base = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/"
    async with aiohttp.ClientSession(base, headers={"Authorization": "Bearer sesame"}) as client:
        yield client


async def list_summaries(gateway: Product, identity: str) -> list[Any]:
    async with api(gateway) as client, client.get(f"{identity}/summaries") as response:
        assert response.status == 200
        found: list[Any] = (await response.json())["summaries"]
        return found


async def put(gateway: Product, identity: str, key: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with api(gateway) as client, client.put(f"{identity}/summaries/{key}", json=body) as response:
        return response.status, await response.json()


async def restore(gateway: Product, identity: str, key: str, version: int) -> tuple[int, Any]:
    path = f"{identity}/summaries/{key}/restore"
    async with api(gateway) as client, client.post(path, json={"version": version}) as response:
        return response.status, await response.json()


async def play(gateway: Product, toy: ToyUpstream, first: int, last: int) -> Run:
    run = await run_session(_SESSION, gateway.base_url, toy, pace=Pace(first=first, last=last))
    assert run.failed == [] and run.refusals == []
    await gateway.at_rest()
    return run


async def play_until_compacted(gateway: Product, toy: ToyUpstream) -> tuple[Run, int]:
    """The last run, and the turn after it."""
    for turn in range(len(_SESSION)):
        run = await play(gateway, toy, turn, turn + 1)
        if run.plans == ["pivot"]:
            return run, turn + 1
    raise AssertionError("it was never compacted")


def read_summary(run: Run) -> str:
    """What stands for the folded messages, below its framing, of the last request."""
    body = next(seen.body for seen in reversed(run.seen) if not seen.is_summary)
    messages = json.loads(body)["messages"]
    framing, _, summary = next(m["content"] for m in messages if m["role"] == "assistant").partition("\n\n")
    assert "not verified" in framing
    return str(summary)


def read_prefix(run: Run) -> bytes:
    """Up to the end of the summary, byte for byte."""
    body = next(seen.body for seen in reversed(run.seen) if not seen.is_summary)
    text = json.dumps(read_summary(run), ensure_ascii=False)[1:].encode()
    return body[: body.index(text) + len(text)]


async def test_an_edited_summary_is_sent_from_the_next_request_on_and_can_be_restored(
    store_url: str,
) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=store_url, more=_ADMIN)
        async with serve(settings) as gateway:
            before, turn = await play_until_compacted(gateway, toy)
            identity = before.conversation
            (summary, *_) = await list_summaries(gateway, identity)
            assert summary["in_use"] and summary["text"] == read_summary(before)
            calls = len(toy.summaries)
            status, edited = await put(
                gateway, identity, summary["key"], {"text": _TEXT, "based_on": summary["version"]}
            )
            assert (status, edited["text"], edited["version"]) == (200, _TEXT, summary["version"] + 1)
            after = await play(gateway, toy, turn, turn + 1)
            assert read_summary(after) == _TEXT
            again = await put(gateway, identity, summary["key"], {"text": "Mine.", "based_on": 1})
            assert again[0] == 409 and "version 2" in again[1]["detail"]
        async with serve(settings) as gateway:
            later = await play(gateway, toy, turn + 1, turn + 2)
            assert read_prefix(later) == read_prefix(after)
            (summary, *_) = await list_summaries(gateway, identity)
            assert [each["edited"] for each in summary["versions"]] == [True, False]
            status, restored = await restore(gateway, identity, summary["key"], 1)
            assert (status, restored["version"]) == (200, 3)
            last = await play(gateway, toy, turn + 2, turn + 3)
            assert read_summary(last) == read_summary(before)
    assert len(toy.summaries) == calls


async def wait_for_text(gateway: Product, identity: str) -> None:
    """The news of it arrive a moment later."""
    async with asyncio.timeout(30):
        while (await list_summaries(gateway, identity))[0]["text"] != _TEXT:
            await asyncio.sleep(0.01)


async def test_another_replica_uses_the_edited_summary(empty_redis: RedisServer) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=empty_redis.patient_url, more=_ADMIN)
        async with serve(settings) as one, serve(settings) as other:
            before, turn = await play_until_compacted(one, toy)
            await play(other, toy, turn, turn + 1)
            (summary, *_) = await list_summaries(other, before.conversation)
            key = summary["key"]
            assert (await put(other, before.conversation, key, {"text": _TEXT}))[0] == 200
            await wait_for_text(one, before.conversation)
            after = await play(one, toy, turn + 1, turn + 2)
            assert read_summary(after) == _TEXT
            assert read_prefix(await play(other, toy, turn + 2, turn + 3)) == read_prefix(after)


@pytest.mark.parametrize(
    ("text", "status", "word"),
    [("  ", 422, "empty"), ("word " * 20_000, 422, "at most"), (None, 400, "body")],
)
async def test_what_is_refused_says_why_and_changes_nothing(text: str | None, status: int, word: str) -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=_ADMIN)) as gateway,
    ):
        before, turn = await play_until_compacted(gateway, toy)
        (summary, *_) = await list_summaries(gateway, before.conversation)
        answer = await put(gateway, before.conversation, summary["key"], {"text": text})
        assert answer[0] == status and word in answer[1]["detail"]
        after = await play(gateway, toy, turn, turn + 1)
    assert read_prefix(after) == read_prefix(before)


async def test_the_next_estimate_counts_the_new_text() -> None:
    """A summary of a quarter of the prompt becomes a few words."""
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=_ADMIN)) as gateway,
    ):
        before, turn = await play_until_compacted(gateway, toy)
        (summary, *_) = await list_summaries(gateway, before.conversation)
        assert (await put(gateway, before.conversation, summary["key"], {"text": "Go on."}))[0] == 200
        after = await play(gateway, toy, turn, turn + 1)
    true, sent = after.outgoing[-1].prompt_tokens, read_sizes(after.answers[-1])[1]
    assert true < 0.85 * before.outgoing[-1].prompt_tokens
    assert abs(sent - true) < 0.1 * true


def clear_old_results(kept: int) -> Trim:
    """As opencode does: all results but the newest ones become a placeholder."""

    def trim(history: list[Message]) -> list[Message]:
        results = [at for at, message in enumerate(history) if message["role"] == "tool"]
        cleared = set(results[: max(len(results) - kept, 0) // kept * kept])
        text = "[Old tool result content cleared]"
        return [
            {**message, "content": text} if at in cleared else message for at, message in enumerate(history)
        ]

    return trim


async def test_the_text_stays_when_the_client_clears_more_of_its_results() -> None:
    """Then what it covers has changed, and the summary is found again."""
    session = replace(make_session(40, 3), trim=clear_old_results(10))
    keys = list[str]()
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_ADMIN)) as gateway:
        for turn in range(len(session)):
            run = await run_session(session, gateway.base_url, toy, pace=Pace(first=turn, last=turn + 1))
            if turn == 15:
                await ask_to_compact(gateway, run.conversation, headers={"Authorization": "Bearer sesame"})
            await gateway.at_rest()
            summaries = await list_summaries(gateway, run.conversation)
            used = next((each["key"] for each in summaries if each["in_use"]), None)
            if used is not None and not keys:
                assert (await put(gateway, run.conversation, used, {"text": _TEXT}))[0] == 200
            elif used is not None:
                assert read_summary(run) == _TEXT
            keys += [used] if used is not None else []
    assert len(toy.summaries) == 1
    assert len(keys) > 20


async def test_an_edit_waits_for_a_summary_that_is_being_made_from_the_old_text() -> None:
    """Then that one is in use, and the person can edit it."""
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=_ADMIN)) as gateway:
        before, turn = await play_until_compacted(gateway, toy)
        (summary, *_) = await list_summaries(gateway, before.conversation)
        ready, calls = asyncio.Event(), len(toy.summaries)
        toy.summary_delivery = Delivery(after=ready)
        headers = {"Authorization": "Bearer sesame"}
        assert (await ask_to_compact(gateway, before.conversation, headers=headers))[0] == 202
        await wait_until(lambda: len(toy.summaries) == calls + 1)
        editing = asyncio.create_task(put(gateway, before.conversation, summary["key"], {"text": _TEXT}))
        ready.set()
        assert (await editing)[0] == 409
        await gateway.at_rest()
        (newer, *_) = await list_summaries(gateway, before.conversation)
        assert newer["key"] != summary["key"]
        assert (await put(gateway, before.conversation, newer["key"], {"text": _TEXT}))[0] == 200
        after = await play(gateway, toy, turn, turn + 1)
        assert read_summary(after) == _TEXT
