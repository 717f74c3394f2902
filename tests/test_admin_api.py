"""What operators read of conversations and hear of events, through the admin port."""

import asyncio
import json
from typing import Any

import aiohttp
from aiohttp import web

from gateway.admin.event_stream import EventStream
from gateway.reporting.events import Bus, Pruned
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.running import ask as ask_model
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0}\n"
_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"


async def ask(gateway: RunningGateway, path: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{gateway.handle.admin_port}{path}"
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return answer.status, await answer.json()


async def test_a_conversation_is_listed_with_what_its_last_answer_told() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
        status, listed = await ask(gateway, "/api/conversations")
        identity = run.answers[-1].header("x-gateway-conversation")
        shown_status, shown = await ask(gateway, f"/api/conversations/{identity}")
    usage = json.loads(run.answers[-1].body)["usage"]
    (found,) = listed["conversations"]
    assert (status, shown_status) == (200, 200)
    assert (found["id"], found["parent"], found["model"]) == (identity, None, "toy-model")
    assert (found["upstream"], len(found["tenant"])) == ("default", len("key:") + 12)
    assert found["prompt_tokens"] == usage["prompt_tokens"]
    assert found["output_tokens"] == usage["completion_tokens"]
    assert found["pivot"]["kind"] == "summary" and found["pivot"]["covers"] > 1
    assert shown.items() >= found.items()
    assert shown["body_in_memory"] and shown["lines"]["hard"] == 12_000
    # Neither the summary nor a word of the conversation.
    text = json.dumps(shown)
    assert not any(fact.token in text for fact in make_session(30, 3).facts) and "sk-toy" not in text


async def test_each_tenants_conversations_can_be_asked_for_alone_and_the_newest_comes_first() -> None:
    more = _ADMIN + _TENANTS
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        for key, seed in (("sk-red", 1), ("sk-blue", 2), ("sk-red", 3)):
            await run_session(make_session(2, seed), gateway.base_url, toy, pace=Pace(key=key))
        _, everything = await ask(gateway, "/api/conversations")
        _, red = await ask(gateway, "/api/conversations?tenant=red")
        _, nobody = await ask(gateway, "/api/conversations?tenant=re")
    assert [each["tenant"] for each in everything["conversations"]] == ["red", "blue", "red"]
    newest, middle, oldest = everything["conversations"]
    assert red["conversations"] == [newest, oldest] and middle["tenant"] == "blue"
    assert nobody == {"conversations": []}


async def test_what_nobody_saw_is_404() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        assert (await ask(gateway, "/api/conversations/0123456789abcdef"))[0] == 404
        assert (await ask(gateway, "/api/conversations/"))[0] == 404
        assert (await ask(gateway, "/api"))[0] == 404
        assert await ask(gateway, "/api/conversations") == (200, {"conversations": []})


async def test_the_list_and_the_events_are_guarded_like_the_metrics() -> None:
    more = "admin: {port: 0, token: secret}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        for path in ("/api/conversations", "/api/conversations/x", "/api/events"):
            assert (await ask(gateway, path))[0] == 401


async def test_events_arrive_while_they_happen() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        url = f"http://127.0.0.1:{gateway.handle.admin_port}/api/events"
        async with aiohttp.ClientSession() as client, client.get(url) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
            run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
            blocks = [(await stream.content.readuntil(b"\n\n")).decode() for _ in range(2)]
    names, data = zip(*(block.strip().split("\n") for block in blocks), strict=True)
    boundary, compacted = (json.loads(line.removeprefix("data: ")) for line in data)
    assert names == ("event: compact_boundary", "event: session.compacted")
    assert boundary["subtype"] == "compact_boundary"
    assert boundary["session_id"] == compacted["sessionID"]
    assert compacted["sessionID"] == run.answers[-1].header("x-gateway-conversation")


async def test_silence_is_filled_and_who_hangs_up_is_forgotten() -> None:
    bus = Bus()
    server = web.Server(EventStream(bus, alive_seconds=0.01).send, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as client, client.get(url) as stream:
        blocks = [await stream.content.readuntil(b"\n\n") for _ in range(3)]
        assert blocks == [b": listening\n\n", b": keep-alive\n\n", b": keep-alive\n\n"]
        bus.publish(Pruned(session_id="c", tenant="t", marks=1, saved_tokens=2))
        while (block := await stream.content.readuntil(b"\n\n")).startswith(b":"):
            pass
        assert block.startswith(b"event: pruned\ndata: {")
    async with asyncio.timeout(2):
        while bus.subscribers:
            await asyncio.sleep(0.005)
    await runner.cleanup()


async def test_calls_beside_the_main_line_are_listed_as_what_they_are() -> None:
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
