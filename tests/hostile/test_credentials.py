"""Credentials: what a caller sends never goes out beside an upstream's own key, and separates callers without
tenants; with such a key callers reach models only, and web pages nothing.
"""

import json
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from tests.wire_through.raw import Got, RawUpstream, ask, render_answer, render_request, writing
from tests.wire_through.wiring import WHOLE, Wire, opening_wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN = "sk-of-the-upstream"
Pairs = Sequence[tuple[str, str]]
FORMS: list[tuple[Pairs, str]] = [
    ([("Authorization", "Bearer %s")], ""),
    ([("x-api-key", "%s")], ""),
    ([("api-key", "%s")], ""),
    ([("x-goog-api-key", "%s")], ""),
    ([("ocp-apim-subscription-key", "%s")], ""),
    ([("cf-aig-authorization", "Bearer %s")], ""),
    ([], "?key=%s"),
]
CALLERS = [
    *FORMS,
    ([("Authorization", "Bearer same"), ("openai-organization", "%s")], ""),
    ([("Authorization", "Bearer same"), ("openai-project", "%s")], ""),
    ([("Cookie", "session=%s")], ""),
]
COOKIES = [("Cookie", "caller=1"), ("OpenAI-Organization", "caller"), ("OpenAI-Project", "caller")]


def fill(pairs: Pairs, value: str) -> list[tuple[str, str]]:
    return [(name, text.replace("%s", value)) for name, text in pairs]


async def send(
    port: int,
    target: str,
    headers: Pairs = (),
    body: bytes = WHOLE,
    method: str = "POST",
    host: str = "127.0.0.1",
) -> Got:
    request = render_request(target, body, headers, method).replace(b"gateway.test", host.encode(), 1)
    return await ask(port, request)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_keyed() -> AsyncIterator[Wire]:
    """An upstream with a key of its own and two tenants."""
    tenants = "tenants:\n  - {name: a, keys: [caller]}\n  - {name: b, keys: [other]}\n"
    async with opening_wire(f'api_key: "{OWN}"', tenants) as wire:
        yield wire


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_laptop() -> AsyncIterator[Wire]:
    """An upstream with a key of its own on loopback, without tenants."""
    async with opening_wire(f'api_key: "{OWN}"') as wire:
        yield wire


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_wire() -> AsyncIterator[Wire]:
    """An upstream that gets the callers' own keys."""
    async with opening_wire() as wire:
        yield wire


def clean(wire: Wire) -> Wire:
    wire.upstream.received.clear()
    wire.upstream.script = writing(render_answer())
    return wire


@pytest.fixture
def keyed(module_keyed: Wire) -> Wire:
    return clean(module_keyed)


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    return clean(module_wire)


@pytest.fixture
def laptop(module_laptop: Wire) -> Wire:
    return clean(module_laptop)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize(("pairs", "query"), FORMS, ids=str)
async def test_what_is_accepted_from_a_tenant_is_not_forwarded(
    keyed: Wire, path: str, pairs: Pairs, query: str
) -> None:
    got = await send(keyed.port, path + query % "caller" if query else path, fill(pairs, "caller") + COOKIES)
    [seen] = keyed.upstream.received
    assert (got.status, seen.target) == (200, path.encode())
    assert seen.head.without("host", "content-length", "connection") == (
        (b"Authorization", f"Bearer {OWN}".encode()),
    )


@pytest.mark.parametrize(("pairs", "query"), CALLERS, ids=str)
async def test_without_tenants_every_form_tells_callers_apart(wire: Wire, pairs: Pairs, query: str) -> None:
    found = []
    for value in ("one", "two", "one"):
        target = "/v1/chat/completions" + query.replace("%s", value)
        found.append((await send(wire.port, target, fill(pairs, value))).own("conversation"))
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(("pairs", "query"), CALLERS, ids=str)
async def test_a_caller_cannot_use_the_named_responses_of_another(
    wire: Wire, pairs: Pairs, query: str
) -> None:
    """The gateway writes such a name out from what it has seen, so its own memory must keep callers apart."""
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    wire.upstream.script = writing(render_answer(json.dumps(answer).encode()))
    plans = []
    for value, body in (
        ("one", {"model": "m", "input": "My secret is 4711."}),
        ("two", {"model": "m", "input": "What is it?", "previous_response_id": "resp_1"}),
        ("one", {"model": "m", "input": "What is it?", "previous_response_id": "resp_1"}),
    ):
        target = "/v1/responses" + query.replace("%s", value)
        got = await send(wire.port, target, fill(pairs, value), json.dumps(body).encode())
        plans.append(got.own("plan") if got.status == 200 else None)
    # A request that names something unknown passes as it came, without a plan.
    assert plans[0] is not None and plans[2] is not None
    assert not plans[1]


CLOSED = [
    ("GET", "/v1/files"),
    ("DELETE", "/v1/files/file-1"),
    ("GET", "/v1/organization/admin_api_keys"),
    ("GET", "/v1/responses/resp_of_another"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/%66iles"),
    ("DELETE", "/v1/models/ft:gpt"),
    ("POST", "/v1/messages/batches"),
]


@pytest.mark.parametrize(("method", "target"), CLOSED)
async def test_with_an_own_key_callers_reach_models_only(keyed: Wire, method: str, target: str) -> None:
    got = await send(keyed.port, target, [("Authorization", "Bearer caller")], b"", method)
    assert got.status in (403, 404)
    assert b"allow" in got.body and OWN.encode() not in got.body
    assert keyed.upstream.received == []
    bypassed = [("Authorization", "Bearer caller"), ("x-gateway-bypass", "1")]
    assert (await send(keyed.port, target, bypassed, b"", method)).status == got.status


@pytest.mark.parametrize(
    "names",
    [
        {"previous_response_id": "resp_a"},
        {"conversation": "conv_a"},
        {"input": [{"type": "item_reference", "id": "msg_a"}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("bypass", [[], [("x-gateway-bypass", "1")]])
async def test_a_body_does_not_reach_what_another_tenant_stored(
    keyed: Wire, names: dict[str, object], bypass: Pairs
) -> None:
    body = json.dumps({"model": "m", "input": "x"} | names).encode()
    got = await send(keyed.port, "/v1/responses", [("x-api-key", "other"), *bypass], body)
    assert (got.status, json.loads(got.body)["error"]["code"]) == (400, "previous_response_not_found")
    assert keyed.upstream.received == []


@pytest.mark.parametrize("bypass", [[], [("x-gateway-bypass", "1")]])
@pytest.mark.parametrize("key", ["thread", "THREAD", "thre\\u0061d"])
async def test_a_body_does_not_continue_the_thread_of_another_tenant(
    keyed: Wire, key: str, bypass: Pairs
) -> None:
    answer = {"type": "message", "id": "msg_a", "role": "assistant", "content": []}
    keyed.upstream.script = writing(render_answer(json.dumps(answer).encode()))
    created = {"model": "m", "max_tokens": 9, "messages": [], "thread": {"type": "create"}}
    continued = created | {"thread": {"type": "continue", "previous_message_id": "msg_a"}}
    named = json.dumps(continued).encode().replace(b'"thread"', b'"%s"' % key.encode())
    got = [
        await send(keyed.port, "/v1/messages", [("x-api-key", owner), *bypass], body)
        for owner, body in (
            ("caller", json.dumps(created).encode()),
            ("other", named),
            ("caller", named),
        )
    ]
    assert [each.status for each in got] == [200, 404, 200]
    assert json.loads(got[1].body)["error"]["details"] == {"error_code": "thread_not_found"}
    assert len(keyed.upstream.received) == 2


@pytest.mark.parametrize("bypass", [[], [("x-gateway-bypass", "1")]])
async def test_a_tenant_reaches_the_responses_it_made(keyed: Wire, bypass: Pairs) -> None:
    name = f"resp_{len(bypass)}"
    answer = {"id": name, "object": "response", "status": "completed", "output": [{"id": f"msg_{name}"}]}
    keyed.upstream.script = writing(render_answer(json.dumps(answer).encode()))
    mine, other = [("x-api-key", "caller"), *bypass], [("x-api-key", "other"), *bypass]
    assert (await send(keyed.port, "/v1/responses", mine, b'{"model":"m","input":"x"}')).status == 200
    body = json.dumps({"model": "m", "input": "y", "previous_response_id": name}).encode()
    for method, target, data in (("POST", "/v1/responses", body), ("GET", f"/v1/responses/{name}", b"")):
        assert (await send(keyed.port, target, mine, data, method)).status == 200
        assert (await send(keyed.port, target, other, data, method)).status in (400, 404)
    assert len(keyed.upstream.received) == 3


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("evil.test", None),
        ("evil.test:8080", "http://evil.test:8080"),
        ("127.0.0.1", "https://evil.test"),
        ("127.0.0.1", "null"),
        ("127.0.0.1.evil.test", None),
    ],
)
async def test_a_web_page_does_not_spend_the_key_of_a_laptop(
    laptop: Wire, method: str, host: str, origin: str | None
) -> None:
    headers = [("Origin", origin)] if origin is not None else []
    for target in ("/v1/chat/completions", "/v1/files"):
        got = await send(laptop.port, target, headers, WHOLE if method == "POST" else b"", method, host)
        assert got.status == 403 and b"listen.origins" in got.body
    assert laptop.upstream.received == []


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "[::1]:8080", "my.localhost"])
async def test_clients_on_the_laptop_are_served(laptop: Wire, host: str) -> None:
    assert (await send(laptop.port, "/v1/chat/completions", host=host)).status == 200
    origin = [("Origin", f"http://{host}")]
    assert (await send(laptop.port, "/v1/chat/completions", origin, host=host)).status == 200


async def test_the_settings_name_further_hosts_and_pages() -> None:
    listen = "listen: {hosts: [host.docker.internal], origins: ['https://chat.test']}\n"
    async with opening_wire(f'api_key: "{OWN}"', listen) as wire:
        for headers in ([], [("Origin", "https://chat.test")]):
            got = await send(wire.port, "/v1/embeddings", headers, host="host.docker.internal:8080")
            assert got.status == 200
        got = await send(wire.port, "/v1/embeddings", [("Origin", "https://other.test")])
        assert got.status == 403


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1"])
async def test_without_a_key_of_ours_pages_bring_their_own(wire: Wire, host: str) -> None:
    got = await send(wire.port, "/v1/files", [("Origin", "https://chat.test")], b"", "GET", host)
    assert got.status == 200


async def test_tenants_may_call_from_web_pages(keyed: Wire) -> None:
    headers = [("Origin", "https://chat.test"), ("Authorization", "Bearer caller")]
    assert (await send(keyed.port, "/v1/embeddings", headers, host="gateway.test")).status == 200


async def test_a_cookie_for_the_upstreams_key_reaches_no_tenant(keyed: Wire) -> None:
    cookies = [("Set-Cookie", "session=secret"), ("set-cookie2", "x=1"), ("X-Kept", "1")]
    keyed.upstream.script = writing(render_answer(b"{}", cookies))
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        got = await send(keyed.port, path, [("Authorization", "Bearer caller")])
        assert got.head.values("x-kept") == [b"1"]
        assert got.head.values("set-cookie") == got.head.values("set-cookie2") == []


@pytest.mark.parametrize("name", ["other", "null"])
async def test_a_summary_call_carries_nothing_of_the_caller_beside_a_key(name: str) -> None:
    """Neither to an upstream of its own, which has no key here, nor to that of the conversation."""
    async with RawUpstream() as other:
        more = (
            f'  other: {{base_url: "{other.base_url}", discover: false}}\n'
            'models: [{match: "m", context: 3000}]\n'
            f"policies: {{default: {{summary: {{upstream: {name}}}}}}}\n"
        )
        async with opening_wire(f'api_key: "{OWN}"', more) as wire:
            messages = [{"role": ("user", "assistant")[at % 2], "content": "word " * 300} for at in range(11)]
            body = json.dumps({"model": "m", "messages": messages}).encode()
            headers = [("x-goog-api-key", "caller"), ("Authorization", "Bearer caller"), *COOKIES]
            await send(wire.port, "/v1/chat/completions?key=caller", headers, body)
            calls = other.received if name == "other" else wire.upstream.received
            assert any(b"<conversation>" in seen.body for seen in calls)
            for seen in calls:
                head = seen.target + b"".join(b"".join(pair) for pair in seen.head.headers)
                assert b"caller" not in head
                assert (OWN.encode() in head) is (name == "null")
