"""A caller's key reaches only the upstream of its request: no log and no other upstream."""

import asyncio
import logging

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_SECRET = "sk-LEAKME"


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {_SECRET}\x01",
        f"Authorization : Bearer {_SECRET}",
        f"Authorization: Bearer {_SECRET}{'x' * 70_000}",
    ],
    ids=["control", "space", "long"],
)
async def test_an_unreadable_header_is_not_quoted_in_the_log(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ToyUpstream() as toy, running_gateway(None, upstream=toy.base_url) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n".encode("latin-1"))
        await writer.drain()
        await reader.read()
        writer.close()
    assert _SECRET not in caplog.text


async def test_a_summary_call_to_another_upstream_carries_no_header_of_the_caller() -> None:
    session = make_session(24, 3, "one_user", 700)
    async with ToyUpstream(window=16_000) as toy, ToyUpstream(window=16_000) as other:
        policy = "policies: {default: {summary: {upstream: other}}}\n"
        settings = make_settings(toy, more=policy).replace(
            "upstreams:\n", f'upstreams:\n  other: {{base_url: "{other.base_url}", api_key: sk-own}}\n', 1
        )
        settings += "tenants: [{name: a, keys: [sk-toy], upstream: default}]\n"
        async with running_gateway(settings) as gateway:
            run = await run_session(
                session, gateway.base_url, toy, Shape(), Pace(headers={"Cookie": "a=1", "X-Org": "acme"})
            )
    assert run.failed == [] and other.summaries and not toy.summaries
    for seen in other.summaries:
        names = {name.lower() for name, _ in seen.headers}
        assert names.isdisjoint({"cookie", "x-org"})
        assert ("Authorization", "Bearer sk-own") in seen.headers


async def test_header_values_outside_ascii_do_not_prevent_a_summary() -> None:
    session = make_session(24, 3, "one_user", 700)
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy)) as gateway:
        pace = Pace(headers={"X-Title": "Caf\u00e9"})
        run = await run_session(session, gateway.base_url, toy, Shape(), pace)
    assert run.failed == [] and run.summaries


async def test_arguments_nested_too_deeply_to_parse_pass_unchanged() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * 3_000}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    async with ToyUpstream() as toy, running_gateway(None, upstream=toy.base_url) as gateway:
        toy.reply = lambda _: Reply(text="Noted.")
        body = {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": {"name": "f"}}],
        }
        async with aiohttp.ClientSession() as client:
            url = f"{gateway.base_url}/chat/completions"
            async with client.post(url, json=body) as response:
                assert response.status == 200
