"""What operators read about conversations through the admin port."""

import asyncio
import json
from typing import Any

import aiohttp

from tests.toy.admin_port import ADMIN, ask_to_compact, get_json
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.running import ask as ask_model
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0}\n"
_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"


async def ask(gateway: RunningGateway, path: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{gateway.admin_port}{path}"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, await response.json()


async def test_a_conversation_is_listed_with_the_usage_of_its_last_response() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
        identity = run.answers[-1].header("x-gateway-conversation")
        shown_status, shown = await ask(gateway, f"/api/conversations/{identity}")
        status, listed = await ask(gateway, "/api/conversations")
    usage = json.loads(run.answers[-1].body)["usage"]
    (found,) = listed["conversations"]
    assert (status, shown_status) == (200, 200)
    assert (found["id"], found["parent"], found["model"]) == (identity, None, "toy-model")
    assert (found["upstream"], len(found["tenant"])) == ("default", len("key:") + 12)
    assert found["prompt_tokens"] == usage["prompt_tokens"]
    assert found["output_tokens"] == usage["completion_tokens"]
    assert found["pivot"]["kind"] == "summary" and found["pivot"]["covers"] > 1
    # A title is read in the background.
    assert {**shown, **found, "title": None} == {**shown, "title": None}
    assert shown["body_in_memory"] and shown["lines"]["hard"] == 12_000
    # No text of the summary or of the conversation is shown.
    text = json.dumps(shown)
    assert not any(fact.token in text for fact in make_session(30, 3).facts) and "sk-toy" not in text


async def test_conversations_are_listed_newest_first_for_one_tenant_or_for_all() -> None:
    more = _ADMIN + _TENANTS
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        for key, seed in (("sk-red", 1), ("sk-blue", 2), ("sk-red", 3)):
            await run_session(make_session(2, seed), gateway.base_url, toy, pace=Pace(key=key))
        _, everything = await ask(gateway, "/api/conversations")
        _, red = await ask(gateway, "/api/conversations?tenant=red")
        _, unknown = await ask(gateway, "/api/conversations?tenant=re")
    assert [each["tenant"] for each in everything["conversations"]] == ["red", "blue", "red"]
    newest, middle, oldest = everything["conversations"]
    assert red["conversations"] == [newest, oldest] and middle["tenant"] == "blue"
    assert unknown == {"conversations": [], "next": None}


async def test_unknown_conversations_and_pages_are_404() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        assert (await ask(gateway, "/api/conversations/0123456789abcdef"))[0] == 404
        assert (await ask(gateway, "/api/conversations/"))[0] == 404
        assert (await ask(gateway, "/api"))[0] == 404
        assert await ask(gateway, "/api/conversations") == (200, {"conversations": [], "next": None})


async def test_after_a_start_a_compaction_begins_at_the_next_request_of_its_conversation(
    store_url: str,
) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings, session = make_settings(toy, store=store_url, more=ADMIN), make_session(8, 3)
        async with running_gateway(settings) as gateway:
            run = await run_session(session, gateway.base_url, toy, pace=Pace(last=7))
            await gateway.settle()
        async with running_gateway(settings) as gateway:
            # What conversations did is read in the background of a start, and a list does not wait for it.
            while not (listed := await get_json(gateway, "/conversations"))["conversations"]:
                await asyncio.sleep(0.05)
            status, begun = await ask_to_compact(gateway, run.conversation)
            assert toy.summaries == []
            await run_session(session, gateway.base_url, toy, pace=Pace(first=7))
            await gateway.settle()
            summaries = len(toy.summaries)
            after, now = await ask_to_compact(gateway, run.conversation)
            await gateway.settle()
    assert [row["id"] for row in listed["conversations"]] == [run.conversation]
    assert (status, begun["begins"]) == (202, "at the next request")
    assert (after, now["begins"]) == (202, "now")
    assert summaries == 1


async def test_all_pages_need_the_token() -> None:
    more = "admin: {port: 0, token: secret}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        for path in ("/api/conversations", "/api/conversations/x", "/api/events"):
            assert (await ask(gateway, path))[0] == 401


async def test_the_calls_of_agents_and_summaries_are_listed_with_their_purpose() -> None:
    calls = [
        ("Port the parser.", {"x-session-id": "ses_1"}),
        ("List the files.", {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}),
        ("Your task is to create a detailed summary of the conversation so far.", {"x-session-id": "ses_1"}),
    ]
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        for text, headers in calls:
            body = json.dumps({"model": "toy-model", "messages": [{"role": "user", "content": text}]})
            async with aiohttp.ClientSession(headers=headers) as client:
                await ask_model(client, f"{gateway.base_url}/chat/completions", body.encode())
        _, listed = await ask(gateway, "/api/conversations")
    found = [(each["purpose"], each["session"]) for each in reversed(listed["conversations"])]
    assert found == [("main", "ses_1"), ("agent", "ses_2"), ("summary", "ses_1")]
