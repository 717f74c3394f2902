"""Keys, upstreams and cookies: nothing crosses between callers, or leaves base_url."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.toy.product import serve
from tests.toy.raw import (
    Connection,
    Got,
    RawUpstream,
    ask,
    connecting,
    render_answer,
    render_request,
    writing,
)
from tests.toy.running import wait_until
from tests.toy.wire import WHOLE, Wire, make_chat, opening_wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS = ["/v1/chat/completions", "/v1/embeddings"]
OWN = "sk-of-the-upstream"


@dataclass(frozen=True)
class Tenants:
    """Two upstreams, the first with a key of its own; tenants a (first), b (second), c (either)."""

    first: RawUpstream
    second: RawUpstream
    port: int

    async def ask(self, path: str, *headers: tuple[str, str], body: bytes = WHOLE) -> Got:
        return await ask(self.port, render_request(path, body, headers))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_house() -> AsyncIterator[Tenants]:
    async with RawUpstream() as first, RawUpstream() as second:
        first_keys = f'api_key: "{OWN}", formats: [chat, responses], discover: false'
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  first: {{base_url: "{first.base_url}", {first_keys}}}\n'
            f'  second: {{base_url: "{second.base_url}", formats: [chat, messages], discover: false}}\n'
            f"tenants:\n  - {{name: a, keys: [sk-a, sk-a2], upstream: first}}\n"
            f"  - {{name: b, keys: [sk-b], upstream: second}}\n  - {{name: c, keys: [sk-c]}}\n"
            f"  - {{name: d, keys: ['sha256:{hashlib.sha256(b'sk-d').hexdigest()}'], upstream: second}}\n"
        )
        async with serve(yaml) as gateway:
            yield Tenants(first, second, gateway.port)


@pytest.fixture
def house(module_house: Tenants) -> Tenants:
    for upstream in (module_house.first, module_house.second):
        upstream.received.clear()
        upstream.script = writing(render_answer())
    return module_house


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_key_of_its_own_the_upstream_gets_the_callers(house: Tenants, path: str) -> None:
    await house.ask(path, ("Authorization", "Bearer sk-b"), ("x-api-key", "y"))
    [seen] = house.second.received
    assert seen.head.values("authorization") == [b"Bearer sk-b"]
    assert seen.head.values("x-api-key") == [b"y"]
    assert house.first.received == []


STRANGERS: list[list[tuple[str, str]]] = [
    [],
    [("Authorization", "Bearer sk-nobody")],
    [("Authorization", "Bearer ")],
    [("Authorization", "Basic sk-a")],
    [("Authorization", "Bearer sk-")],
    [("Authorization", "Bearer SK-B")],
    [("Authorization", f"Bearer {hashlib.sha256(b'sk-b').hexdigest()}")],
    [("Authorization", f"Bearer sha256:{hashlib.sha256(b'sk-d').hexdigest()}")],
    [("Authorization", "Bearer sk-b"), ("x-api-key", "sk-a")],
    [("x-api-key", "sk-A")],
    [("Authorization", f"Bearer {OWN}")],
]


@pytest.mark.parametrize("path", [*PATHS, "/", "/v1/models?key=sk-A"])
@pytest.mark.parametrize("credential", STRANGERS, ids=str)
async def test_an_unknown_key_gets_401(house: Tenants, path: str, credential: list[tuple[str, str]]) -> None:
    got = await house.ask(path, *credential, ("x-gateway-bypass", "1"))
    error = json.loads(got.body)["error"]
    assert (got.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert error["message"].startswith("The gateway does not know this key")
    assert house.first.received == house.second.received == []
    assert not any(value and value.split()[-1] in error["message"] for _, value in credential)


async def test_an_unknown_key_gets_an_error_of_its_format(house: Tenants) -> None:
    got = await house.ask("/v1/messages", ("x-api-key", "sk-nobody"))
    assert (got.status, json.loads(got.body)["type"]) == (401, "error")


async def test_a_tenant_without_an_upstream_uses_one_that_has_its_format(house: Tenants) -> None:
    for path in ("/v1/responses", "/v1/messages/batches", "/v1/chat/completions", "/v1/embeddings"):
        await house.ask(path, ("Authorization", "Bearer sk-c"))
    assert [seen.target for seen in house.second.received] == [b"/v1/messages/batches"]
    assert len(house.first.received) == 3


async def test_a_tenant_with_an_upstream_never_leaves_it(house: Tenants) -> None:
    """A key of another tenant is not sent to it, whatever the format."""
    for path in ("/v1/messages", "/v1/responses", "/v1/chat/completions", "/v1/embeddings"):
        await house.ask(path, ("Authorization", "Bearer sk-a"))
        await house.ask(path, ("Authorization", "Bearer sk-b"))
    assert (len(house.first.received), len(house.second.received)) == (4, 4)
    assert all(seen.head.values("authorization") == [b"Bearer sk-b"] for seen in house.second.received)


async def test_equal_conversations_of_two_tenants_are_two(house: Tenants) -> None:
    keys = ("sk-a", "sk-a2", "sk-b")
    answers = [await house.ask(PATHS[0], ("Authorization", f"Bearer {key}")) for key in keys]
    first, same, other = (got.own("conversation") for got in answers)
    assert first == same != other


async def test_a_key_of_which_only_the_hash_is_configured_is_accepted(house: Tenants) -> None:
    assert (await house.ask(PATHS[0], ("x-api-key", "sk-d"))).status == 200


FORMS: list[tuple[list[tuple[str, str]], str]] = [
    ([("x-api-key", "sk-a")], ""),
    ([("API-Key", "sk-a")], ""),
    ([("x-goog-api-key", "sk-a")], ""),
    ([("Ocp-Apim-Subscription-Key", "sk-a")], ""),
    ([("cf-aig-authorization", "bearer sk-a")], ""),
    ([], "?key=sk-a"),
    ([("Authorization", "Bearer none"), ("Authorization", "Bearer sk-a")], ""),
    ([("Authorization", "Bearer sk-a"), ("x-api-key", "sk-a2")], "?key=none"),
]


async def test_a_key_is_found_in_every_form_and_names_one_tenant(house: Tenants) -> None:
    found = {(await house.ask(PATHS[0] + query, *pairs)).own("conversation") for pairs, query in FORMS}
    assert len(found) == 1 and None not in found
    assert len(house.first.received) == len(FORMS)


async def test_a_tenant_stays_the_same_while_its_keys_change() -> None:
    """State is kept under its name, so a rotation of keys loses nothing."""
    async with RawUpstream() as raw:
        yaml = f'store: "memory:"\nupstreams:\n  default: {{base_url: "{raw.base_url}", discover: false}}\n'
        found = []
        async with serve(yaml + "tenants: [{name: a, keys: [old]}]\n") as product:
            for keys, key in (("[old]", "old"), ("[old, new]", "new"), ("[new]", "new"), ("[new]", "old")):
                await product.reload(yaml + f"tenants: [{{name: a, keys: {keys}}}]\n")
                request = render_request(PATHS[0], WHOLE, [("Authorization", f"Bearer {key}")])
                got = await ask(product.port, request)
                found.append(got.own("conversation") if got.status == 200 else str(got.status))
    assert len(set(found[:3])) == 1 and found[3] == "401"


async def test_one_connection_may_serve_two_callers(house: Tenants) -> None:
    """A proxy in front of us reuses its connections: the key counts, not the connection."""
    async with connecting(house.port) as connection:
        for key, status in (("sk-a", 200), ("sk-nobody", 401), ("sk-b", 200)):
            assert await status_for(connection, key) == status
    assert (len(house.first.received), len(house.second.received)) == (1, 1)


async def status_for(connection: Connection, key: str) -> int:
    headers = [("Authorization", f"Bearer {key}")]
    return (await connection.ask(render_request(PATHS[0], WHOLE, headers))).status


# Callers who differ in one of these are not the same.
DIFFERENCES: list[tuple[list[tuple[str, str]], str]] = [
    ([("x-goog-api-key", "1")], ""),
    ([("ocp-apim-subscription-key", "1")], ""),
    ([("ocp-apim-subscription-key", "2")], ""),
    ([("cf-aig-authorization", "Bearer 1")], ""),
    ([("openai-organization", "1")], ""),
    ([("OpenAI-Project", "1")], ""),
    ([("OpenAI-Project", "1"), ("openai-organization", "1")], ""),
    ([("x-goog-user-project", "1")], ""),
    ([("chatgpt-account-id", "1")], ""),
    ([], "?key=1"),
    ([], "?a=b&key=%2f"),
    ([], "?subscription-key=1"),
    ([("Authorization", "Bearer other")], ""),
    ([], ""),
]


@pytest.mark.parametrize("known", [[], [("Authorization", "Bearer k")]], ids=["no key", "a key"])
async def test_without_tenants_callers_who_differ_in_any_form_are_apart(
    wire: Wire, known: list[tuple[str, str]]
) -> None:
    found = []
    for pairs, query in (*DIFFERENCES, *DIFFERENCES):
        got = await wire.ask(render_request(PATHS[0] + query, WHOLE, [*known, *pairs]))
        found.append(got.own("conversation"))
        sent = [(name.decode(), value.decode()) for name, value in wire.upstream.received[-1].head.headers]
        assert [pair for pair in sent if pair in (*known, *pairs)] == [*known, *pairs]
    half = len(DIFFERENCES)
    assert len(set(found)) == half and found[:half] == found[half:]


async def test_a_cookie_tells_callers_apart_only_where_there_is_no_key(wire: Wire) -> None:
    """Cookies of load balancers change with every response."""
    for known, count in (([], 2), ([("x-api-key", "k")], 1)):
        found = set()
        for number in (1, 2):
            headers = [*known, ("Cookie", f"session={number}")]
            found.add((await wire.ask(render_request(PATHS[0], WHOLE, headers))).own("conversation"))
        assert len(found) == count


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


async def test_no_path_leads_out_of_base_url(wire: Wire) -> None:
    for target in ESCAPES:
        for method, body in (("GET", b""), ("POST", WHOLE)):
            assert (await wire.ask(render_request(target, body, method=method))).status == 400, target
    for line in ("CONNECT evil.test:443", "OPTIONS *"):
        got = await wire.ask(f"{line} HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode())
        assert got.status in (400, 501)
    assert wire.upstream.received == []


async def test_the_host_header_does_not_choose_the_upstream(wire: Wire) -> None:
    for target in ("/v1/other", "//evil.test/v1/other"):
        request = render_request(target, WHOLE).replace(b"gateway.test", b"evil.test", 1)
        assert (await wire.ask(request)).status == 200
        assert wire.upstream.received[-1].head.values("host") == [f"127.0.0.1:{wire.upstream.port}".encode()]


LIMITED = """\
tenants:
  - {name: a, keys: [sk-a], requests_per_minute: 4, concurrent_requests: 2}
  - {name: b, keys: [sk-b]}
"""


def render_for(key: str, path: str = PATHS[0], *more: tuple[str, str]) -> bytes:
    return render_request(path, WHOLE, [("Authorization", f"Bearer {key}"), *more])


async def test_beyond_its_requests_a_minute_a_tenant_gets_429_in_its_format() -> None:
    """Before its body has come. Every request that would go upstream counts, and others go on."""
    async with opening_wire(more=LIMITED) as wire:
        paths = [PATHS[0], "/v1/messages/count_tokens", "/v1/embeddings", "/v1/responses"]
        got = [await wire.ask(render_for("sk-a", path, ("x-gateway-bypass", "1"))) for path in paths]
        # A minute that begins in between has room for as many again.
        while len(wire.upstream.received) < 9 and got[-1].status == 200:
            got.append(await wire.ask(render_for("sk-a")))
        assert {each.status for each in got[:4]} == {200} and got[-1].status == 429
        sent = len(wire.upstream.received)
        for path in (*paths, "/v1/messages"):
            async with connecting(wire.port) as connection:
                await connection.send(render_for("sk-a", path).removesuffix(WHOLE))
                refused = await connection.receive()
            assert (refused.status, len(refused.head.values("retry-after"))) == (429, 1)
            assert 1 <= int(refused.head.values("retry-after")[0]) <= 61
            told = json.loads(refused.body)
            assert told["error"]["type"] == "rate_limit_error"
            assert (told.get("type") == "error") is path.startswith("/v1/messages")
        assert len(wire.upstream.received) == sent
        assert (await wire.ask(render_for("sk-b"))).status == 200


@pytest.mark.parametrize("ending", ["the client hangs up", "the upstream hangs up"])
async def test_beyond_its_requests_at_once_a_tenant_gets_429_until_one_ends(ending: str) -> None:
    more = LIMITED.replace("requests_per_minute: 4, ", "")
    async with opening_wire(more=more) as wire, AsyncExitStack() as exits:
        wire.upstream.script = writing(then="hang")
        clients = [await exits.enter_async_context(connecting(wire.port)) for _ in range(2)]
        for client in clients:
            await client.send(render_for("sk-a"))
        await wait_until(lambda: len(wire.upstream.received) == 2)
        refused = await wire.ask(render_for("sk-a"))
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused.head.values("retry-after")[0]) <= 61
        wire.upstream.script = writing(render_answer())
        assert (await wire.ask(render_for("sk-b"))).status == 200
        if ending == "the upstream hangs up":
            await wire.upstream.hang_up()
            assert (await clients[0].receive()).status == 502
        clients[1].writer.transport.abort()
        async with asyncio.timeout(30):
            while (await wire.ask(render_for("sk-a"))).status != 200:
                await asyncio.sleep(0.01)


POLICIES = """\
  another: {base_url: "http://127.0.0.1:1/v1", discover: false}
policies: {default: {summary: {method: digest}}, by_hand: {compaction: {auto: false}}}
models:
  - {match: "gpt*", context: 3000}
  - {match: "qwen*", upstream: another, policy: by_hand}
  - {match: "qwen*", context: 3000, policy: default}
  - {match: "qwen-max", policy: by_hand}
tenants:
  - {name: a, keys: [sk-a], models: [{match: "qwen-m*", policy: by_hand}]}
  - {name: b, keys: [sk-b]}
  - {name: c, keys: [sk-c], policy: by_hand}
"""


@pytest.mark.system(9)
async def test_the_first_rule_that_fits_chooses_the_policy_and_a_tenants_own_come_first() -> None:
    """By hand nothing is summarized, however long it is."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"{at} word " * 300} for at in range(11)]
    async with opening_wire(more=POLICIES) as wire:
        plans = {}
        for key, model in (
            ("a", "qwen-max"),
            ("a", "qwen-plus"),
            ("b", "qwen-max"),
            ("b", "gpt"),
            ("c", "gpt"),
        ):
            body = make_chat(model=model, messages=messages)
            request = render_request(PATHS[0], body, [("Authorization", f"Bearer sk-{key}")])
            plans[key, model] = (await wire.ask(request)).own("plan")
    assert plans == {
        ("a", "qwen-max"): "passthrough",
        ("a", "qwen-plus"): "digest",
        ("b", "qwen-max"): "digest",
        ("b", "gpt"): "digest",
        ("c", "gpt"): "passthrough",
    }
