"""An upstream with a key of its own: what replaces the caller's credentials, and what is closed to callers.

Keys are the upstream's own, or a tenant's for it. Which of two providers gets a caller's key is said in
test_whose_key.py.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from tests.toy.raw import Got, render_answer, render_request, writing
from tests.toy.wire import (
    CHAT_PATH,
    FRAMING,
    JSON_HEADERS,
    MESSAGES_PATH,
    RESPONSES_PATH,
    WHOLE,
    Wire,
    opening_wire,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN, SECOND = "sk-of-the-upstream", "sk-of-the-tenant"
WIRE_UPSTREAM = f'api_key: "{OWN}", allow: [batches, "GET files/*"]'
WIRE_MORE = f"""\
tenants:
  - {{name: a, keys: [caller]}}
  - {{name: b, keys: [other]}}
  - {{name: c, keys: [third], upstream: default, api_key: {SECOND}}}
"""
Pairs = Sequence[tuple[str, str]]
# Every form in which a program may send a key, and what else tells an account.
FORMS: list[tuple[Pairs, str]] = [
    ([("Authorization", "Bearer caller")], ""),
    ([("AUTHORIZATION", "bearer  caller")], ""),
    ([("x-api-key", "caller")], ""),
    ([("Api-Key", "caller")], ""),
    ([("x-goog-api-key", "caller")], ""),
    ([("ocp-apim-subscription-key", "caller")], ""),
    ([("cf-aig-authorization", "Bearer caller")], ""),
    ([], "?key=caller"),
    ([("Authorization", "Bearer caller"), ("X-API-Key", "unknown"), ("api-key", "third-form")], ""),
    ([("Authorization", "Bearer unknown"), ("x-api-key", "caller")], ""),
]
ACCOUNT: Pairs = [
    ("Cookie", "caller=1"),
    ("cookie", "caller=2"),
    ("OpenAI-Organization", "caller"),
    ("openai-project", "caller"),
    ("X-Goog-User-Project", "caller"),
    ("ChatGPT-Account-Id", "caller"),
]
BYPASSED = [("x-gateway-bypass", "1")]


async def send(
    wire: Wire,
    target: str,
    headers: Pairs = (("Authorization", "Bearer caller"),),
    body: bytes = b"",
    method: str = "POST",
    host: str = "gateway.test",
) -> Got:
    return await wire.ask(
        render_request(target, body, headers, method).replace(b"gateway.test", host.encode(), 1)
    )


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/embeddings"])
@pytest.mark.parametrize(("pairs", "query"), FORMS, ids=str)
async def test_it_replaces_every_form_of_the_callers(wire: Wire, path: str, pairs: Pairs, query: str) -> None:
    for more in ([], BYPASSED):
        got = await send(wire, path + query, [*pairs, *ACCOUNT, ("X-Stays", "1"), *more], WHOLE)
        assert got.status == 200
    for seen in wire.upstream.received:
        assert seen.target == path.encode()
        credential = (b"Authorization", f"Bearer {OWN}".encode())
        assert seen.head.without(*FRAMING) == ((b"X-Stays", b"1"), credential)


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("?key=caller", ""),
        ("?", ""),
        ("?a=%2f&key=caller&&b", "?a=%2f&&b"),
        ("?key=caller&key=l&x=key", "?x=key"),
        ("?%6Bey=caller&Key=1", "?Key=1"),
        ("?subscription-key=caller&", ""),
        ("?keys=1", "?keys=1"),
    ],
)
async def test_a_credential_leaves_the_query_and_every_other_byte_stays(
    wire: Wire, query: str, left: str
) -> None:
    assert (await send(wire, f"/v1/models{query}", method="GET")).status == 200
    assert wire.upstream.received[0].target == f"/v1/models{left}".encode()


async def test_messages_get_it_in_their_own_form(wire: Wire) -> None:
    for key, own in (("caller", OWN), ("third", SECOND)):
        await send(wire, MESSAGES_PATH, [("Authorization", f"Bearer {key}")], WHOLE)
        head = wire.upstream.received[-1].head
        assert (head.values("x-api-key"), head.values("authorization")) == ([own.encode()], [])


async def test_a_tenants_own_credential_takes_the_place_of_both(wire: Wire) -> None:
    await send(wire, f"{CHAT_PATH}?key=third", [("Authorization", "Bearer third"), *ACCOUNT], WHOLE)
    await send(wire, CHAT_PATH, [("Authorization", "Bearer other")], WHOLE)
    first, second = (seen.head.values("authorization") for seen in wire.upstream.received)
    assert (first, second) == ([f"Bearer {SECOND}".encode()], [f"Bearer {OWN}".encode()])
    assert wire.upstream.received[0].target == CHAT_PATH.encode()
    assert not wire.upstream.received[0].head.values("cookie")


async def test_a_cookie_for_the_upstreams_key_reaches_no_caller(wire: Wire) -> None:
    cookies = [("Set-Cookie", "session=secret"), ("set-cookie2", "x=1"), ("X-Kept", "1")]
    wire.upstream.script = writing(render_answer(b"{}", cookies))
    for path in (CHAT_PATH, "/v1/embeddings"):
        for key in ("caller", "third"):
            got = await send(wire, path, [("Authorization", f"Bearer {key}")], WHOLE)
            assert got.end_to_end == ((b"X-Kept", b"1"),)


OPEN = [
    ("POST", "/chat/completions?x=1"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages?beta=true"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/meta-llama/Llama-3.1"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/rerank"),
    ("POST", "/deployments/gpt/chat/completions?api-version=1"),
    ("HEAD", "/"),
    ("HEAD", "/v1/models"),
    ("OPTIONS", CHAT_PATH),
    # By the settings, with what lies below.
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches/b1/cancel"),
    ("GET", "/v1/files/file-1/content"),
]
CLOSED = [
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("DELETE", "/v1/files/file-1"),
    ("POST", "/v1/files/file-1"),
    ("GET", "/v1/organization/admin_api_keys"),
    ("POST", "/v1/messages/batches"),
    ("GET", CHAT_PATH),
    ("GET", "/v1/chat/completions/chatcmpl-1/messages"),
    ("DELETE", "/v1/models/ft:gpt"),
    ("GET", "/v1/responses"),
    ("GET", "/v1/conversations/conv_1"),
    ("GET", "/v1/%66ine_tuning/jobs"),
    ("GET", "/v1//vector_stores"),
    ("GET", "/v1/models/..;/files"),
    ("GET", "/v1/models/%252e%252e%252ffiles"),
    ("GET", "/v1/models//files"),
    ("GET", "/v1/responses/resp_1/else"),
    ("GET", "/v1/files%20chat/completions"),
    ("GET", "/v1/x%20batches"),
    ("POST", "/v1/anything"),
    # Stored, but by somebody else.
    ("GET", "/v1/responses/resp_x"),
    ("DELETE", "/v1/responses/resp_x"),
    ("POST", "/v1/responses/r%65sp/cancel"),
]


async def test_what_runs_a_model_is_open_and_what_the_settings_open(wire: Wire) -> None:
    wire.upstream.script = writing(render_answer(b""))
    for method, target in OPEN:
        body = b"{}" if method == "POST" else b""
        assert (await send(wire, target, body=body, method=method)).status == 200, target
        assert wire.upstream.received[-1].head.line.startswith(f"{method} ".encode())
    assert len(wire.upstream.received) == len(OPEN)


async def test_everything_else_is_closed_by_whatever_way(wire: Wire) -> None:
    for key in ("caller", "third"):
        for more in ([], BYPASSED):
            for method, target in CLOSED:
                got = await send(wire, target, [("x-api-key", key), *more], method=method)
                assert got.status in (403, 404), target
                assert b"allow" in got.body and OWN.encode() not in got.body
    assert wire.upstream.received == []


NAMES: list[dict[str, Any]] = [
    {"previous_response_id": "resp_a"},
    {"input": [{"type": "item_reference", "id": "msg_a"}]},
]
HIDDEN = [
    b'{"model":"m","input":"x","conversation":"conv_a"}',
    b'{"model":"m","input":"x","conversation":{"id":"../files/x"}}',
    # What an upstream may read in another way than we.
    b'{"input": "x", "previous_response_id": "r",}',
    b'{"model":"m","input":"x","previous_respons\\u0065_id":"resp_z"}',
]


@pytest.mark.parametrize("more", [[], BYPASSED], ids=["read", "bypassed"])
@pytest.mark.parametrize("size", [0, 100_000])
async def test_only_the_tenant_who_made_a_response_may_name_it(wire: Wire, more: Pairs, size: int) -> None:
    """Large bodies are read in a thread."""
    mine, others = [("x-api-key", "caller"), *more], [("x-api-key", "other"), *more]
    name = f"{size}{len(more)}"
    answer: dict[str, Any] = {"id": f"resp_{name}", "object": "response", "status": "completed"}
    answer |= {"output": [{"id": f"msg_{name}", "type": "message", "role": "assistant", "content": []}]}
    wire.upstream.script = writing(render_answer(json.dumps(answer).encode()))
    assert (await send(wire, RESPONSES_PATH, mine, b'{"model":"m","input":"x"}')).status == 200
    for names in NAMES:
        text = json.dumps({"model": "m", "input": "y", "instructions": "x" * size} | names)
        body = text.replace("_a", f"_{name}").encode()
        assert (await send(wire, RESPONSES_PATH, mine, body)).status == 200
        got = await send(wire, RESPONSES_PATH, others, body)
        assert (got.status, json.loads(got.body)["error"]["code"]) == (400, "previous_response_not_found")
    path = f"{RESPONSES_PATH}/resp_{name}"
    assert (await send(wire, path, mine, method="GET")).status == 200
    assert (await send(wire, path, others, method="GET")).status == 404
    for body in HIDDEN:
        assert (await send(wire, RESPONSES_PATH, mine, body)).status == 400
    assert len(wire.upstream.received) == 4


@pytest.mark.parametrize("key", ["thread", "THREAD", "thre\\u0061d"])
async def test_only_the_tenant_who_began_a_thread_may_continue_it(wire: Wire, key: str) -> None:
    answer: dict[str, Any] = {
        "type": "message",
        "id": f"msg_{len(key)}{key[0]}",
        "role": "assistant",
        "content": [],
    }
    wire.upstream.script = writing(render_answer(json.dumps(answer).encode()))
    fields: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "on"}]}
    created = json.dumps(fields | {"thread": {"type": "create"}}).encode()
    thread = {"type": "continue", "previous_message_id": answer["id"]}
    continued = json.dumps(fields | {"thread": thread}).encode().replace(b'"thread"', b'"%s"' % key.encode())
    for path in (MESSAGES_PATH, f"{MESSAGES_PATH}/count_tokens"):
        tries = [("caller", created), ("other", continued), ("caller", continued)]
        got = [await send(wire, path, [("x-api-key", who)], body) for who, body in tries]
        assert [each.status for each in got] == [200, 404, 200]
        assert json.loads(got[1].body)["error"]["details"] == {"error_code": "thread_not_found"}
    assert len(wire.upstream.received) == 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def laptop() -> AsyncIterator[Wire]:
    """Without tenants, on loopback."""
    more = "listen: {hosts: [host.docker.internal], origins: ['https://chat.test']}\n"
    async with opening_wire(f'api_key: "{OWN}"', more) as wire:
        yield wire


FOREIGN = [
    ("evil.test", None),
    ("evil.test:8080", "http://evil.test:8080"),
    ("127.0.0.1", "https://evil.test"),
    ("127.0.0.1", "null"),
    ("127.0.0.1:8080", "http://127.0.0.1:3000"),
    ("127.0.0.1.evil.test", None),
]
AT_HOME = [
    ("127.0.0.1:1", None),
    ("localhost", "http://localhost"),
    ("[::1]:8080", "http://[::1]:8080"),
    ("my.localhost", None),
    ("Host.Docker.Internal:8080", None),
    ("127.0.0.1", "https://chat.test"),
]


async def test_a_web_page_does_not_spend_the_key_of_a_laptop(laptop: Wire) -> None:
    laptop.reset()
    for host, origin in FOREIGN:
        headers = [("Origin", origin)] if origin is not None else []
        for method, target in (("POST", CHAT_PATH), ("GET", "/v1/models"), ("OPTIONS", CHAT_PATH)):
            body = WHOLE if method == "POST" else b""
            got = await send(laptop, target, headers, body, method, host)
            assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "foreign_origin"), host
            assert b"listen.origins" in got.body
    assert laptop.upstream.received == []


async def test_programs_on_the_laptop_and_what_the_settings_name_are_served(laptop: Wire) -> None:
    laptop.reset()
    for host, origin in AT_HOME:
        headers = [("Origin", origin)] if origin is not None else []
        assert (await send(laptop, CHAT_PATH, headers, WHOLE, host=host)).status == 200, host
    assert len(laptop.upstream.received) == len(AT_HOME)


async def test_tenants_and_callers_with_keys_of_their_own_may_call_from_web_pages(wire: Wire) -> None:
    page = [("Origin", "https://evil.test"), *JSON_HEADERS]
    assert (await send(wire, CHAT_PATH, [("x-api-key", "caller"), *page], WHOLE)).status == 200
    async with opening_wire() as open_wire:
        assert (await send(open_wire, "/v1/files", page, method="GET", host="evil.test")).status == 200
