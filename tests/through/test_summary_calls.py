"""What a call for a summary carries: the client's headers to its own upstream, and nothing elsewhere."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.toy.agent import Message, Shape, make_session
from tests.toy.checks import read_headers
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import House
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.raw import RawUpstream, ask, render_answer, render_request, writing
from tests.toy.running import Run
from tests.toy.upstream import ToyUpstream
from tests.toy.wire import CHAT_PATH, opening_wire

# About 10,000 tokens, of which 8,000 fit: the first request of a conversation needs a summary.
WINDOW = 8_000
TURN = 10
SESSION = make_session(TURN + 1, 7)
BETA = "context-1m-2025-08-07"
CALLERS: dict[str, Any] = {
    "Cookie": "a=1",
    "X-Org": "acme",
    "OpenAI-Organization": "acme",
    "anthropic-beta": f"x,{BETA}",
}
FORMATS = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)


@asynccontextmanager
async def opening_house(
    other: str = "", policy: str = "", more: str = "", limits: str = ""
) -> AsyncIterator[House]:
    async with ToyUpstream(window=WINDOW) as toy:
        yaml = (
            f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
            f'{other}models:\n  - {{match: "*", context: {WINDOW}{limits}}}\n{policy}{more}'
        )
        async with serve(yaml) as product:
            yield House(toy, product, "sk-toy")


async def play_late(house: House, dialect: Dialect, model: str = "toy-model") -> Run:
    greeting: list[Message] = [{"role": "system", "content": "You are the toy's own client."}]
    session = replace(SESSION, leading=(*greeting, *SESSION.leading), model=model)
    shape = Shape(dialect=dialect, max_tokens=1_000)
    return await house.play(session, shape, TURN, TURN + 1, **CALLERS)


@FORMATS
async def test_it_goes_where_the_conversation_goes_with_the_clients_headers(dialect: Dialect) -> None:
    async with opening_house() as house:
        run = await play_late(house, dialect, "claude-sonnet-4-5")
        (summary,) = house.toy.summaries
    assert run.failed == [] and summary.refusal is None
    assert summary.path == f"/v1{dialect.path}"
    headers, sent = read_headers(summary), read_headers(run.outgoing[0])
    for name in ("authorization", "x-api-key", "anthropic-version", "cookie", "x-org", "anthropic-beta"):
        assert headers.get(name) == sent.get(name), name
    assert headers["accept-encoding"] and not [name for name in headers if name.startswith("x-gateway")]
    if dialect is MESSAGES:
        system = summary.request["system"]
        assert isinstance(system, list)
        # Some keys may only be used behind the introduction of their own client.
        assert [block["text"] for block in system][:1] == ["You are the toy's own client."]


@FORMATS
@pytest.mark.parametrize("method", ["auto", "never"])
async def test_it_asks_for_no_longer_a_reply_than_its_model_writes(dialect: Dialect, method: str) -> None:
    """A real API refuses more."""
    policy = f"policies: {{default: {{summary: {{ride: {method}}}}}}}\n"
    async with opening_house(policy=policy, limits=", output: 500") as house:
        run = await play_late(house, dialect)
        (summary,) = house.toy.summaries
    assert run.failed == [] and summary.refusal is None
    keys = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    (limit,) = [summary.request[key] for key in keys if key in summary.request]
    assert limit == 500


@FORMATS
@pytest.mark.parametrize("formats", ["chat", "messages"])
async def test_at_another_upstream_it_has_that_ones_format_and_key_alone(
    dialect: Dialect, formats: str
) -> None:
    async with ToyUpstream(window=WINDOW) as second:
        keys = f"formats: [{formats}], discover: false, api_key: sk-own"
        other = f'  other: {{base_url: "{second.base_url}", {keys}}}\n'
        policy = "policies: {default: {summary: {upstream: other}}}\n"
        tenants = "tenants: [{name: a, keys: [sk-toy], upstream: default}]\n"
        async with opening_house(other, policy, tenants) as house:
            run = await play_late(house, dialect)
            assert run.failed == [] and not house.toy.summaries
        (summary,) = second.summaries
    assert summary.refusal is None
    assert summary.path == ("/v1/messages" if formats == "messages" else CHAT_PATH)
    headers = read_headers(summary)
    assert headers.keys().isdisjoint({"cookie", "x-org", "openai-organization", "anthropic-beta"})
    key = headers.get("authorization") or f"Bearer {headers.get('x-api-key')}"
    assert key == "Bearer sk-own" and b"sk-toy" not in summary.body
    assert ("anthropic-version" in headers) == (formats == "messages")


@pytest.mark.parametrize("name", ["other", "null"])
async def test_beside_a_key_of_the_upstream_nothing_of_the_caller_is_sent(name: str) -> None:
    """Neither to an upstream of its own, which has no key here, nor to that of the conversation."""
    async with RawUpstream() as second:
        more = (
            f'  other: {{base_url: "{second.base_url}", discover: false}}\n'
            'models: [{match: "m", context: 3000}]\n'
            f"policies: {{default: {{summary: {{upstream: {name}}}}}}}\n"
        )
        async with opening_wire("api_key: sk-own", more) as wire:
            messages = [{"role": ("user", "assistant")[at % 2], "content": "word " * 300} for at in range(11)]
            body = json.dumps({"model": "m", "messages": messages}).encode()
            headers = [
                ("x-goog-api-key", "caller"),
                ("Authorization", "Bearer caller"),
                ("Cookie", "caller=1"),
            ]
            request = render_request(f"{CHAT_PATH}?key=caller", body, headers)
            await wire.ask(request.replace(b"gateway.test", b"127.0.0.1", 1))
            calls = second.received if name == "other" else wire.upstream.received
            assert any(b"<conversation>" in seen.body for seen in calls)
            for seen in (*second.received, *wire.upstream.received):
                sent = b"".join(b"".join(pair) for pair in seen.head.headers) + seen.target
                assert b"caller" not in sent
                assert seen.head.values("authorization") == (
                    [] if seen in second.received else [b"Bearer sk-own"]
                )


async def test_header_values_outside_ascii_do_not_prevent_it() -> None:
    async with opening_house() as house:
        odd: dict[str, Any] = {"X-Title": "Caf\u00e9"}
        run = await house.play(SESSION, Shape(max_tokens=1_000), TURN, TURN + 1, **odd)
    assert run.failed == [] and run.summaries


@pytest.mark.parametrize("how", ["redirect", "cookie"])
async def test_it_follows_no_redirect_and_brings_no_cookie_back(how: str) -> None:
    async with RawUpstream() as raw:
        yaml = (
            f'store: "memory:"\nupstreams:\n  default: {{base_url: "{raw.base_url}", discover: false}}\n'
            'models: [{match: "m", context: 3000}]\n'
        )
        headers = [("Set-Cookie", "a=1"), ("Location", f"{raw.base_url}/elsewhere")]
        line = "HTTP/1.1 307 Temporary Redirect" if how == "redirect" else "HTTP/1.1 200 OK"
        raw.script = writing(render_answer(b"{}", headers, line))
        async with serve(yaml) as product:
            messages = [{"role": ("user", "assistant")[at % 2], "content": "word " * 300} for at in range(11)]
            body = json.dumps({"model": "m", "messages": messages}).encode()
            for _ in range(2):
                await ask(product.port, render_request(CHAT_PATH, body))
    assert any(b"<conversation>" in seen.body for seen in raw.received)
    assert {seen.target for seen in raw.received} == {CHAT_PATH.encode()}
    assert not any(seen.head.values("cookie") for seen in raw.received)
