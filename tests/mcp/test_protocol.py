"""Both generations of the protocol, and bodies that are neither."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.exchange import AsgiResponse
from gateway.mcp.protocol import NAME, quiet, respond
from gateway.mcp.tools import DESCRIPTIONS, ToolAnswer
from tests.builders.mcp import (
    HANDSHAKE,
    MODERN,
    make_headers,
    make_mcp_head,
    read_text,
    render_call,
    render_initialize,
    render_request,
)

_MAX_BYTES = 1 << 15
_BOTH = pytest.mark.parametrize("version", [HANDSHAKE, MODERN])


async def echo(name: str, arguments: Mapping[str, object]) -> ToolAnswer:
    return ToolAnswer(f"{name} {json.dumps(arguments)}", "failed" if "fails" in arguments else "found")


async def ask(body: bytes, version: str = HANDSHAKE) -> AsgiResponse:
    return await respond(echo, make_mcp_head(make_headers(body, version)), body, _MAX_BYTES)


async def test_a_handshake_names_the_server_and_opens_no_session() -> None:
    response = await ask(render_initialize())
    result: Any = json.loads(response.body)["result"]
    assert result["serverInfo"]["name"] == NAME
    assert result["protocolVersion"] == HANDSHAKE
    assert "conversation id" in result["instructions"]
    assert set(result["capabilities"]) == {"tools"}


async def test_what_follows_a_handshake_is_accepted() -> None:
    body = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert (await ask(body)).status == 202


async def test_the_modern_generation_discovers_without_a_handshake() -> None:
    result: Any = json.loads((await ask(render_request("server/discover", MODERN), MODERN)).body)["result"]
    assert MODERN in result["supportedVersions"] and set(result["capabilities"]) == {"tools"}


@_BOTH
async def test_three_tools_are_listed_and_none_of_them_changes_anything(version: str) -> None:
    tools: Any = json.loads((await ask(render_request("tools/list", version), version)).body)["result"][
        "tools"
    ]
    assert [tool["name"] for tool in tools] == [each.name for each in DESCRIPTIONS]
    assert [tool["inputSchema"] for tool in tools] == [each.schema for each in DESCRIPTIONS]
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools)


@_BOTH
async def test_a_call_reaches_the_tool_with_its_arguments(version: str) -> None:
    response = await ask(render_call("search_history", version, query="é 😀"), version)
    assert response.status == 200 and response.content_type == "application/json"
    assert read_text(response.body) == f"search_history {json.dumps({'query': 'é 😀'})}"
    assert not json.loads(response.body)["result"].get("isError")


@_BOTH
async def test_a_tool_that_fails_is_an_error_of_the_tool(version: str) -> None:
    response = await ask(render_call("search_history", version, fails=True), version)
    assert response.status == 200 and json.loads(response.body)["result"]["isError"]


@_BOTH
@pytest.mark.parametrize("method", ["resources/list", "prompts/list", "subscriptions/listen", "x" * 9_000])
async def test_what_is_not_offered_is_a_protocol_error(method: str, version: str) -> None:
    response = await ask(render_request(method, version), version)
    assert "error" in json.loads(response.body)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"null", b"[]", b"\xff\xfe", b'"x"', b"[" * 30_000, b'{"a":' * 6_000, b"9" * 30_000),
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b"[" + render_call("list_files") + b"]",
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\\ud800","arguments":{}}}',
    ],
)
@_BOTH
async def test_what_is_no_request_gets_400(body: bytes, version: str) -> None:
    headers = make_headers(render_request("ping", version), version)
    response = await respond(echo, make_mcp_head(headers), body, _MAX_BYTES)
    assert response.status == 400
    assert "error" in json.loads(response.body)


_VERSIONS = st.sampled_from([HANDSHAKE, MODERN, "1999-01-01", "x", "é"])
_METHODS = st.sampled_from(["tools/call", "tools/list", "initialize", "ping", "notifications/cancelled"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
_OBJECTS = st.fixed_dictionaries(
    {}, optional={"jsonrpc": st.just("2.0"), "id": _VALUES, "method": _METHODS}
) | (
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "id": st.integers(), "method": _METHODS, "params": _VALUES}
    )
)


@given(st.binary() | st.builds(lambda value: json.dumps(value).encode(), _OBJECTS | _VALUES), _VERSIONS)
async def test_no_body_makes_it_raise(body: bytes, version: str) -> None:
    headers = {**make_headers(render_request("ping")), "MCP-Protocol-Version": version, "Mcp-Method": "ping"}
    response = await respond(echo, make_mcp_head(headers), body, _MAX_BYTES)
    assert 200 <= response.status < 500


async def test_the_package_logs_nothing_of_what_clients_send(caplog: pytest.LogCaptureFixture) -> None:
    level = logging.getLogger("mcp").level
    try:
        quiet()
        with caplog.at_level(logging.DEBUG):
            for body in (b'{"secret', render_call("secret", name="secret"), render_request("secret")):
                await ask(body)
    finally:
        logging.getLogger("mcp").setLevel(level)
    assert [record.name for record in caplog.records if record.name.startswith("mcp")] == []
    assert "secret" not in caplog.text
