"""Clients with the official Python SDK search what a real gateway has summarized.

docs/mcp.md
"""

import gzip
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import aiohttp
import httpx2 as httpx
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.toy.agent import Session, find_tokens, make_session
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Product, serve
from tests.toy.redis_server import RedisServer
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

Mode = Literal["legacy", "auto", "2026-07-28"]
_MODES = pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
LOSSY = "policies: {default: {summary: {method: digest, max_tokens: 256}}}\n"
_KEPT_UNDER = re.compile(r"searched under the conversation id (\w+)\.")


@dataclass(frozen=True)
class Talk:
    """A session that was played through a gateway."""

    session: Session
    run: Run

    @property
    def conversation(self) -> str:
        """The id in the first line of the newest summary, as the model sees it."""
        return str(_KEPT_UNDER.findall(json.dumps(self.run.outgoing[-1].request))[-1])

    @property
    def hidden(self) -> list[str]:
        """Facts that the model no longer sees."""
        sent = json.dumps(self.run.outgoing[-1].request)
        return [
            token
            for token in find_tokens(self.session.facts, "user", "assistant", "tool")
            if token not in sent
        ]


async def play(gateway: Product, toy: ToyUpstream, seed: int, key: str) -> Talk:
    session = make_session(40, seed)
    run = await run_session(session, gateway.base_url, toy, pace=Pace(key=key))
    assert run.failed == []
    await gateway.at_rest()
    return Talk(session, run)


@asynccontextmanager
async def connecting(gateway: Product, key: str, mode: Mode = "auto") -> AsyncIterator[Client]:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        transport = streamable_http_client(f"{gateway.root_url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def read(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def search(client: Client, conversation: str, query: str) -> CallToolResult:
    return await client.call_tool("search_history", {"conversation": conversation, "query": query})


@_MODES
async def test_a_client_finds_and_reads_what_the_summary_has_lost(mode: Mode) -> None:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")
        assert len(talk.hidden) > 3
        async with connecting(gateway, "sk-toy", mode) as client:
            tools = await client.list_tools()
            found = [read(await search(client, talk.conversation, token)) for token in talk.hidden]
            position = int(found[0].partition("[message ")[2].partition(",")[0])
            whole = await client.call_tool(
                "read_message", {"conversation": talk.conversation, "position": position}
            )
    assert [tool.name for tool in tools.tools] == ["search_history", "read_message", "list_files"]
    assert [token for token, text in zip(talk.hidden, found, strict=True) if token not in text] == []
    assert talk.hidden[0] in read(whole)


@_MODES
async def test_the_files_of_the_summarized_part_are_listed(mode: Mode) -> None:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")
        async with connecting(gateway, "sk-toy", mode) as client:
            files = await client.call_tool("list_files", {"conversation": talk.conversation})
    paths = [line.partition(" (")[0] for line in read(files).splitlines()]
    calls = json.dumps([message for turn in talk.session.turns for message in [dict(turn.assistant)]])
    assert paths and all(path in calls for path in paths)


async def test_nothing_of_another_tenant_is_found() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=_TENANTS + LOSSY)) as gateway,
    ):
        red, blue = await play(gateway, toy, 3, "sk-red"), await play(gateway, toy, 4, "sk-blue")
        async with connecting(gateway, "sk-blue") as client:
            others = [await search(client, red.conversation, token) for token in red.hidden]
            none = await search(client, "0" * 16, red.hidden[0])
            own = [await search(client, blue.conversation, token) for token in red.hidden]
    assert all(other == none for other in others) and none.is_error
    assert not [text for text in map(read, own) for token in red.hidden if token in text]


async def test_any_replica_answers_for_what_another_one_has_summarized(empty_redis: RedisServer) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=empty_redis.patient_url)
        async with serve(settings) as first, serve(settings) as second:
            talk = await play(first, toy, 3, "sk-toy")
            token = find_tokens(talk.session.facts, "tool")[0]
            async with connecting(second, "sk-toy") as client:
                assert token in read(await search(client, talk.conversation, token))


async def test_the_log_has_no_query_and_nothing_found(caplog: pytest.LogCaptureFixture) -> None:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")
        with caplog.at_level(logging.DEBUG, logger="gateway"):
            async with connecting(gateway, "sk-toy") as client:
                await search(client, talk.conversation, talk.hidden[0])
    assert "call tool=search_history" in caplog.text
    assert talk.hidden[0] not in "".join(record.getMessage() for record in caplog.records)


# Who may ask, what may be asked, and how much: over sockets, without the client's library.

HANDSHAKE, MODERN = "2025-06-18", "2026-07-28"
_META = "io.modelcontextprotocol"


def render_request(method: str, version: str = HANDSHAKE, **params: object) -> bytes:
    if version == MODERN:
        params["_meta"] = {f"{_META}/protocolVersion": version, f"{_META}/clientCapabilities": {}}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()


def render_call(tool: str, version: str = HANDSHAKE, **arguments: object) -> bytes:
    return render_request("tools/call", version, name=tool, arguments=arguments)


def make_headers(body: bytes, version: str = HANDSHAKE) -> dict[str, str]:
    """The modern generation repeats in headers what a proxy may route by."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    headers["MCP-Protocol-Version"] = version
    if version == MODERN:
        asked = json.loads(body)
        headers["Mcp-Method"] = asked["method"]
        headers |= {"Mcp-Name": asked["params"]["name"]} if "name" in asked["params"] else {}
    return headers


async def post(
    product: Product,
    body: bytes,
    key: str = "sk-red",
    path: str = "/mcp",
    method: str = "POST",
    **headers: str,
) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {**make_headers(render_request("ping")), "Authorization": f"Bearer {key}", **named}
    async with (
        aiohttp.ClientSession(headers=sent) as client,
        client.request(method, f"{product.root_url}{path}", data=body) as response,
    ):
        return response.status, await response.read()


@asynccontextmanager
async def serving(more: str = _TENANTS) -> AsyncIterator[tuple[Product, ToyUpstream]]:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN + more)) as product:
        yield product, toy


async def test_the_path_alone_is_ours_and_what_is_beside_it_passes() -> None:
    paths = ("/mcp", "/mcp/", "/mcp?a=b", "/mcp2", "/v1/mcp", "/mcp/x", "/MCP")
    async with serving() as (product, toy):
        statuses = [(await post(product, render_request("ping"), path=path))[0] for path in paths]
    assert statuses[:3] == [200, 200, 200]
    assert [seen.path for seen in toy.requests] == ["/v1/mcp2", "/v1/mcp", "/v1/mcp/x", "/v1/MCP"]


async def test_an_unknown_key_a_web_page_and_another_method_are_turned_away() -> None:
    ping = render_request("ping")
    async with serving(_TENANTS + "listen: {origins: ['https://chat.example']}\n") as (product, _):
        for key in ("", "sk-green"):
            status, body = await post(product, ping, key)
            assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
        for origin, expected in (("https://evil.example", 403), ("null", 403), ("https://chat.example", 200)):
            assert (await post(product, ping, Origin=origin))[0] == expected
        assert (await post(product, ping, Sec_Fetch_Site="cross-site"))[0] == 403
        for header in ("x-api-key", "api-key", "x-goog-api-key"):
            assert (await post(product, ping, Authorization="", **{header: "sk-red"}))[0] == 200
        for method in ("GET", "DELETE", "PUT"):
            assert (await post(product, b"", method=method))[0] == 405


async def test_the_quota_of_the_tenant_counts_and_a_body_has_a_bound() -> None:
    limited = (
        "tenants: [{name: red, keys: [sk-red], requests_per_minute: 4}, {name: blue, keys: [sk-blue]}]\n"
    )
    ping, long = render_request("ping"), render_call("search_history", conversation="c", query="x" * 40_000)
    async with serving(limited) as (product, _):
        statuses = [(await post(product, ping))[0] for _ in range(9)]
        assert 429 in statuses and statuses.count(200) >= 4
        assert (await post(product, long, "sk-blue"))[0] == 413
        assert (await post(product, gzip.compress(long), "sk-blue", Content_Encoding="gzip"))[0] == 413
        assert (await post(product, gzip.compress(ping), "sk-blue", Content_Encoding="gzip"))[0] == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\x00\xff", b"[1]", b"secret", b"[" * 9_000, b'{"jsonrpc":"1.0"}']
)
async def test_what_is_no_request_gets_400(body: bytes) -> None:
    async with serving() as (product, _):
        status, answered = await post(product, body)
        assert (await post(product, render_request("ping")))[0] == 200
    assert status == 400 and "error" in json.loads(answered) and b"secret" not in answered


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
async def test_wrong_calls_are_errors_of_the_tool_that_quote_nothing(version: str) -> None:
    calls: tuple[tuple[str, dict[str, object]], ...] = (
        ("search_history", {"conversation": "c1"}),
        ("search_history", {"conversation": "c1", "query": "secret" * 200}),
        ("read_message", {"conversation": "c1", "position": "secret"}),
        ("list_files", {"conversation": 7}),
        ("delete_everything", {}),
        ("list_files", {"conversation": "secret"}),
    )
    async with serving() as (product, _):
        for name, arguments in calls:
            body = render_call(name, version, **arguments)
            status, answered = await post(product, body, **make_headers(body, version))
            result = json.loads(answered)["result"]
            assert status == 200 and result["isError"] and "secret" not in str(result)


async def test_a_reload_gives_the_path_to_the_upstream_and_takes_it_back() -> None:
    async with serving("") as (product, toy):
        relayed = []
        for more in ("mcp: false\n", "mcp: true\n"):
            await product.reload(make_settings(toy, more=ADMIN + more))
            await post(product, render_request("ping"))
            relayed.append(len(toy.requests))
    assert relayed == [1, 1]
