"""Who may ask, what may be asked, and how much: over sockets, with originals on a shelf."""

import asyncio
import gzip
import json
from collections.abc import Mapping

import aiohttp
import pytest

from gateway.mcp.endpoint import is_mcp
from gateway.mcp.library import McpLibrary
from gateway.settings import fingerprint
from gateway.store.keys import make_tag
from tests.builders.mcp import (
    HANDSHAKE,
    MODERN,
    Endpoint,
    make_headers,
    read_text,
    render_call,
    render_request,
    running_endpoint,
)
from tests.builders.pipeline import load_text
from tests.builders.shelf import Shelf
from tests.toy.admin_port import ADMIN
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.wire_through.raw import connecting

_TENANTS = "tenants: [{name: red, keys: [sk-red]}, {name: blue, keys: [sk-blue]}]\n"
_SEARCH = render_call("search_history", conversation="c1", query="port")


def make_shelf() -> Shelf:
    return Shelf(originals={(make_tag("tenant:red"), "c1"): ["the port is 7431"]})


async def post(
    endpoint: Endpoint, body: bytes = _SEARCH, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """By the key of red, if no other is named."""
    own = {**make_headers(render_request("ping")), "Authorization": "Bearer sk-red"}
    sent = {**own, **(headers or {})}
    async with (
        aiohttp.ClientSession() as client,
        client.post(endpoint.url, data=body, headers=sent) as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize("target", ["/mcp", "/mcp/", "/mcp?key=a"])
def test_the_path_alone_is_ours(target: str) -> None:
    assert is_mcp(target)


@pytest.mark.parametrize("target", ["/mcp2", "/v1/mcp", "/mcp/x", "/MCP", "//mcp", "/", "/mcp//"])
def test_every_other_path_is_not(target: str) -> None:
    assert not is_mcp(target)


async def test_a_tenant_finds_its_own_and_no_other() -> None:
    async with running_endpoint(make_shelf(), _TENANTS) as endpoint:
        own = await post(endpoint)
        other = await post(endpoint, headers={"Authorization": "Bearer sk-blue"})
    assert own[0] == other[0] == 200
    assert read_text(own[1]).endswith("the port is 7431")
    assert json.loads(other[1])["result"]["isError"] and b"7431" not in other[1]


@pytest.mark.parametrize("header", ["x-api-key", "api-key", "x-goog-api-key"])
async def test_a_key_counts_in_every_form(header: str) -> None:
    async with running_endpoint(make_shelf(), _TENANTS) as endpoint:
        status, body = await post(endpoint, headers={"Authorization": "", header: "sk-red"})
    assert status == 200 and b"7431" in body


@pytest.mark.parametrize("key", ["", "sk-green", "Bearer sk-green"])
async def test_an_unknown_key_gets_401_as_elsewhere(key: str) -> None:
    async with running_endpoint(make_shelf(), _TENANTS) as endpoint:
        status, body = await post(endpoint, headers={"Authorization": key})
    assert status == 401
    assert json.loads(body)["error"]["code"] == "invalid_api_key"


async def test_without_tenants_the_key_makes_the_tenant_and_no_key_is_one_too() -> None:
    tags = {key: make_tag(f"key:{fingerprint(key)}") for key in ("sk-red", "")}
    shelf = Shelf(originals={(tags["sk-red"], "c1"): ["port 1"], (tags[""], "c1"): ["port 2"]})
    async with running_endpoint(shelf) as endpoint:
        texts = [
            read_text((await post(endpoint, headers={"Authorization": key}))[1])[-6:]
            for key in ("Bearer sk-red", "")
        ]
        other = await post(endpoint, headers={"openai-organization": "o"})
    assert texts == ["port 1", "port 2"]
    assert b"port" not in other[1]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS", "HEAD"])
async def test_there_is_no_stream_to_open_and_no_session_to_delete(method: str) -> None:
    async with (
        running_endpoint(make_shelf()) as endpoint,
        aiohttp.ClientSession() as client,
        client.request(method, endpoint.url) as response,
    ):
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert await response.read() == b""


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        # DNS rebinding: the page's own name leads here.
        ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1", "Host": "127.0.0.1:1"}, 200),
        ({"Origin": "http://box.lan:1", "Host": "box.lan:1"}, 200),
        ({"Origin": "https://chat.example"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "gateway.example"}, 200),
    ],
)
async def test_web_pages_are_turned_away_unless_they_are_named(
    headers: dict[str, str], expected: int
) -> None:
    listen = "listen: {origins: ['https://chat.example'], hosts: [box.lan]}\n"
    async with running_endpoint(make_shelf(), _TENANTS + listen) as endpoint:
        status, body = await post(endpoint, headers=headers)
    assert status == expected
    assert (b"foreign_origin" in body) == (expected == 403)


async def test_the_quota_of_the_tenant_counts() -> None:
    limited = "tenants: [{name: red, keys: [sk-red], requests_per_minute: 2}]\n"
    async with running_endpoint(make_shelf(), limited) as endpoint:
        answers = [await post(endpoint) for _ in range(3)]
    assert [status for status, _ in answers] == [200, 200, 429]
    assert json.loads(answers[2][1])["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_body_that_is_too_large_gets_413(is_compressed: bool) -> None:
    body = render_call("search_history", conversation="c1", query="x" * 40_000)
    headers = {"Content-Encoding": "gzip"} if is_compressed else {}
    async with running_endpoint(make_shelf(), _TENANTS) as endpoint:
        status, _ = await post(endpoint, gzip.compress(body) if is_compressed else body, headers)
        assert endpoint.memory.used_bytes == 0
    assert status == 413


async def test_a_compressed_body_is_read() -> None:
    async with running_endpoint(make_shelf(), _TENANTS) as endpoint:
        status, body = await post(endpoint, gzip.compress(_SEARCH), {"Content-Encoding": "gzip"})
    assert status == 200 and b"7431" in body


@pytest.mark.parametrize("body", [b"", b"{", b"\x00\xff", b"[1]", b"secret"])
async def test_what_is_no_request_gets_400(body: bytes) -> None:
    async with running_endpoint(make_shelf(), _TENANTS) as endpoint:
        status, answered = await post(endpoint, body)
        good, _ = await post(endpoint)
    assert (status, good) == (400, 200)
    assert "error" in json.loads(answered)


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
async def test_a_hundred_calls_at_once_get_their_own_answers(version: str) -> None:
    tag = make_tag("tenant:red")
    shelf = Shelf(originals={(tag, f"c{number}"): [f"port {number}!"] for number in range(100)})
    async with running_endpoint(shelf, _TENANTS) as endpoint, aiohttp.ClientSession() as client:

        async def search(number: int) -> str:
            body = render_call("search_history", version, conversation=f"c{number}", query="port")
            headers = {**make_headers(body, version), "Authorization": "Bearer sk-red"}
            async with client.post(endpoint.url, data=body, headers=headers) as response:
                return read_text(await response.read())

        texts = await asyncio.gather(*map(search, range(100)))
    assert [text.rpartition("\n")[2] for text in texts] == [f"port {number}!" for number in range(100)]


class _SlowShelf(Shelf):
    """Its searches wait until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.cancelled = 0

    async def search(self, *_: object, **__: object) -> list[object]:  # type: ignore[override]
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return []


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
async def test_a_client_that_hangs_up_ends_its_call(version: str) -> None:
    shelf = _SlowShelf()
    body = render_call("search_history", version, conversation="c1", query="port")
    async with running_endpoint(shelf, _TENANTS) as endpoint:
        calls = [asyncio.create_task(_post(endpoint, body, version)) for _ in range(5)]
        await wait_until(lambda: shelf.begun == 5)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await wait_until(lambda: shelf.cancelled == 5)
        await wait_until(lambda: endpoint.memory.used_bytes == 0)
        assert (await post(endpoint, render_request("ping")))[0] == 200
        rendered = endpoint.metrics.render().decode()
    assert 'gateway_requests_total{format="mcp",plan="local",status="none"} 5.0' in rendered
    assert 'gateway_requests_total{format="mcp",plan="local",status="2xx"} 1.0' in rendered


async def _post(endpoint: Endpoint, body: bytes, version: str) -> None:
    headers = {**make_headers(body, version), "Authorization": "Bearer sk-red"}
    async with aiohttp.ClientSession() as client, client.post(endpoint.url, data=body, headers=headers):
        return


async def test_a_body_that_comes_byte_by_byte_is_read_whole() -> None:
    headers = {**make_headers(_SEARCH), "Authorization": "Bearer sk-red", "Host": "a"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /mcp HTTP/1.1\r\n{lines}Content-Length: {len(_SEARCH)}\r\n\r\n"
    async with (
        running_endpoint(make_shelf(), _TENANTS) as endpoint,
        connecting(endpoint.server.port) as connection,
    ):
        await connection.send(head.encode())
        for byte in _SEARCH:
            await connection.send(bytes([byte]))
        got = await connection.receive()
    assert b"7431" in got.body


async def test_without_the_package_a_known_caller_is_told_what_is_missing() -> None:
    library = McpLibrary("gateway.mcp.missing")
    async with running_endpoint(make_shelf(), _TENANTS, library) as endpoint:
        known = await post(endpoint)
        unknown = await post(endpoint, headers={"Authorization": "Bearer sk-green"})
    assert (known[0], unknown[0]) == (501, 401)
    assert "pip install 'refold[mcp]'" in json.loads(known[1])["error"]["message"]


# In the whole gateway.


async def ping(url: str) -> int:
    body = render_request("ping")
    async with (
        aiohttp.ClientSession(headers=make_headers(body)) as client,
        client.post(url, data=body) as response,
    ):
        return response.status


async def test_the_gateway_answers_the_path_and_passes_what_is_beside_it() -> None:
    paths = ("/mcp", "/mcp/", "/mcp?a=b", "/mcp2", "/v1/mcp", "/mcp/x")
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        statuses = {path: await ping(gateway.root_url + path) for path in paths}
    assert [statuses[path] for path in paths[:3]] == [200, 200, 200]
    assert [seen.path for seen in toy.requests] == ["/v1/mcp2", "/v1/mcp", "/v1/mcp/x"]


async def test_a_reload_gives_the_path_to_the_upstream_and_takes_it_back() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        relayed = []
        for more in ("mcp: false\n", "mcp: true\n"):
            await gateway.app.reload(load_text(make_settings(toy, more=ADMIN + more)))
            await ping(f"{gateway.root_url}/mcp")
            relayed.append(len(toy.requests))
    assert relayed == [1, 1]
