"""Keys, upstreams and cookies: nothing crosses between callers, or leaves base_url."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.toy.gateway import running_gateway
from tests.wire_through.raw import (
    Connection,
    Got,
    RawUpstream,
    ask,
    connecting,
    render_answer,
    render_request,
    writing,
)
from tests.wire_through.wiring import WHOLE, Wire, opening_wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS = ["/v1/chat/completions", "/v1/embeddings"]
OWN = "sk-of-the-upstream"


@dataclass(frozen=True)
class House:
    """Two upstreams, the first with a key of its own; tenants a (first), b (second), c (either)."""

    first: RawUpstream
    second: RawUpstream
    port: int

    async def ask(self, path: str, *headers: tuple[str, str], body: bytes = WHOLE) -> Got:
        return await ask(self.port, render_request(path, body, headers))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_house() -> AsyncIterator[House]:
    async with RawUpstream() as first, RawUpstream() as second:
        first_keys = f'api_key: "{OWN}", formats: [chat, responses], discover: false'
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  first: {{base_url: "{first.base_url}", {first_keys}}}\n'
            f'  second: {{base_url: "{second.base_url}", formats: [chat, messages], discover: false}}\n'
            f"tenants:\n  - {{name: a, keys: [sk-a, sk-a2], upstream: first}}\n"
            f"  - {{name: b, keys: [sk-b], upstream: second}}\n  - {{name: c, keys: [sk-c]}}\n"
        )
        async with running_gateway(yaml) as gateway:
            yield House(first, second, gateway.port)


@pytest.fixture
def house(module_house: House) -> House:
    for upstream in (module_house.first, module_house.second):
        upstream.received.clear()
        upstream.script = writing(render_answer())
    return module_house


CREDENTIALS = [
    [("Authorization", "Bearer sk-a")],
    [("authorization", "bearer sk-a")],
    [("AUTHORIZATION", "Bearer  sk-a2")],
    [("x-api-key", "sk-a")],
    [("Api-Key", "sk-a")],
    [("Authorization", "Bearer sk-a"), ("X-API-Key", "sk-other"), ("api-key", "third")],
    [("Authorization", "Bearer sk-nobody"), ("x-api-key", "sk-a")],
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("credential", CREDENTIALS, ids=str)
async def test_the_upstreams_key_replaces_every_form_of_the_callers(
    house: House, path: str, credential: list[tuple[str, str]]
) -> None:
    got = await house.ask(path, *credential, ("X-Stays", "1"))
    [seen] = house.first.received
    assert got.status == 200
    assert seen.head.without("host", "content-length", "connection") == (
        (b"X-Stays", b"1"),
        (b"Authorization", f"Bearer {OWN}".encode()),
    )


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_key_of_its_own_the_upstream_gets_the_callers(house: House, path: str) -> None:
    await house.ask(path, ("Authorization", "Bearer sk-b"), ("x-api-key", "y"))
    [seen] = house.second.received
    assert seen.head.values("authorization") == [b"Bearer sk-b"]
    assert seen.head.values("x-api-key") == [b"y"]
    assert house.first.received == []


STRANGERS = [
    [],
    [("Authorization", "Bearer sk-nobody")],
    [("Authorization", "Bearer ")],
    [("Authorization", "Basic sk-a")],
    [("Authorization", "sk-a2 ")],
    [("Authorization", "Bearer sk-b"), ("x-api-key", "sk-a")],
    [("x-api-key", "sk-A")],
    [("Authorization", f"Bearer {OWN}")],
]


@pytest.mark.parametrize("path", [*PATHS, "/", "/v1/models?key=sk-A"])
@pytest.mark.parametrize("credential", STRANGERS[:4] + STRANGERS[5:], ids=str)
async def test_an_unknown_key_gets_401(house: House, path: str, credential: list[tuple[str, str]]) -> None:
    got = await house.ask(path, *credential, ("x-gateway-bypass", "1"))
    error = json.loads(got.body)["error"]
    assert (got.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert error["message"].startswith("The gateway does not know this key")
    assert house.first.received == house.second.received == []
    assert not any(value and value.split()[-1] in error["message"] for _, value in credential)


async def test_an_unknown_key_gets_an_error_of_its_format(house: House) -> None:
    got = await house.ask("/v1/messages", ("x-api-key", "sk-nobody"))
    assert (got.status, json.loads(got.body)["type"]) == (401, "error")


async def test_a_tenant_without_an_upstream_uses_one_that_has_its_format(house: House) -> None:
    for path in ("/v1/responses", "/v1/messages/batches", "/v1/chat/completions", "/v1/embeddings"):
        await house.ask(path, ("Authorization", "Bearer sk-c"))
    assert [seen.target for seen in house.second.received] == [b"/v1/messages/batches"]
    assert len(house.first.received) == 3


async def test_a_tenant_with_an_upstream_never_leaves_it(house: House) -> None:
    """A key of another tenant is not sent to it, whatever the format."""
    for path in ("/v1/messages", "/v1/responses", "/v1/chat/completions", "/v1/embeddings"):
        await house.ask(path, ("Authorization", "Bearer sk-a"))
        await house.ask(path, ("Authorization", "Bearer sk-b"))
    assert (len(house.first.received), len(house.second.received)) == (4, 4)
    assert all(seen.head.values("authorization") == [b"Bearer sk-b"] for seen in house.second.received)


async def test_equal_conversations_of_two_tenants_are_two(house: House) -> None:
    keys = ("sk-a", "sk-a2", "sk-b")
    answers = [await house.ask(PATHS[0], ("Authorization", f"Bearer {key}")) for key in keys]
    first, same, other = (got.own("conversation") for got in answers)
    assert first == same != other


async def test_cookies_stay_with_whom_they_were_set_for(house: House) -> None:
    cookies = [("Set-Cookie", "session=secret; Path=/"), ("Content-Type", "application/json")]
    for upstream in (house.first, house.second):
        upstream.script = writing(render_answer(b"{}", cookies))
    for path in PATHS:
        got = await house.ask(path, ("Authorization", "Bearer sk-b"))
        assert got.head.values("set-cookie") == [b"session=secret; Path=/"]
        # This one was set for the upstream's own key.
        got = await house.ask(path, ("Authorization", "Bearer sk-a"))
        assert got.head.values("set-cookie") == []
        await house.ask(path, ("Authorization", "Bearer sk-c"))
    assert (len(house.first.received), len(house.second.received)) == (4, 2)
    assert not any(seen.head.values("cookie") for seen in house.first.received)


async def test_one_connection_may_serve_two_callers(house: House) -> None:
    """A proxy in front of us reuses its connections: the key counts, not the connection."""
    async with connecting(house.port) as connection:
        for key, status in (("sk-a", 200), ("sk-nobody", 401), ("sk-b", 200)):
            assert await status_for(connection, key) == status
    assert (len(house.first.received), len(house.second.received)) == (1, 1)


async def status_for(connection: Connection, key: str) -> int:
    headers = [("Authorization", f"Bearer {key}")]
    return (await connection.ask(render_request(PATHS[0], WHOLE, headers))).status


async def test_without_tenants_every_key_is_its_own(wire: Wire) -> None:
    found = set()
    for credential in ([], [("Authorization", "Bearer x")], [("Authorization", "Bearer y")]):
        got = await wire.ask(render_request(body=WHOLE, headers=credential))
        found.add(got.own("conversation"))
        sent = [(name.decode(), value.decode()) for name, value in wire.upstream.received[-1].head.headers]
        assert [pair for pair in sent if pair[0] == "Authorization"] == credential
    assert len(found) == 3


ESCAPES = [
    "http://127.0.0.1:1/v1/chat/completions",
    "https://evil.test/",
    "/v1/../admin",
    "/..",
    "/v1/..",
    "/v1/x/../../admin",
    "/v1/%2e%2e/admin",
    "/v1/%2E./admin",
    "/v1/.%2e",
    "/v1/..%2fadmin",
    "/v1/x%2f..%2f..%2fadmin",
    "/v1/..\\admin",
    "/v1/..%5cadmin",
    "/v1/./x",
    "/v1/../v1/chat/completions?x",
    "evil.test/x",
    "@evil.test/x",
]


@pytest.mark.parametrize("target", ESCAPES)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_path_leads_out_of_base_url(wire: Wire, target: str, method: str) -> None:
    got = await wire.ask(render_request(target, WHOLE if method == "POST" else b"", method=method))
    assert got.status == 400
    assert wire.upstream.received == []


@pytest.mark.parametrize("request_line", ["CONNECT evil.test:443", "OPTIONS *"])
async def test_other_forms_of_a_target_are_refused(wire: Wire, request_line: str) -> None:
    got = await wire.ask(f"{request_line} HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode())
    assert got.status in (400, 501)
    assert wire.upstream.received == []


async def test_the_host_header_does_not_choose_the_upstream(wire: Wire) -> None:
    for target in ("/v1/other", "//evil.test/v1/other"):
        request = render_request(target, WHOLE).replace(b"gateway.test", b"evil.test", 1)
        assert (await wire.ask(request)).status == 200
        assert wire.upstream.received[-1].head.values("host") == [f"127.0.0.1:{wire.upstream.port}".encode()]


async def test_an_upstream_that_only_speaks_messages_gets_its_kind_of_key() -> None:
    async with opening_wire(f'api_key: "{OWN}", formats: [messages]') as wire:
        request = render_request("/v1/messages", WHOLE, [("Authorization", "Bearer mine")])
        # Without tenants, a key on loopback is for requests that name a loopback host.
        await ask(wire.port, request.replace(b"gateway.test", b"127.0.0.1", 1))
        head = wire.upstream.received[0].head
        assert (head.values("x-api-key"), head.values("authorization")) == ([OWN.encode()], [])
