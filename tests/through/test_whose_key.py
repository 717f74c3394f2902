"""A caller's key goes to its own provider or nowhere, where callers' keys are forwarded to two of them."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.toy.product import serve
from tests.toy.raw import Got, RawUpstream, ask, render_answer, render_request, writing
from tests.toy.running import wait_until
from tests.toy.wire import WHOLE

pytestmark = pytest.mark.asyncio(loop_scope="module")

Pairs = Sequence[tuple[str, str]]
ANTHROPIC, OAUTH = "sk-ant-api03-abc", "sk-ant-oat01-abc"
OPENAI, PROJECT = "sk-abc", "sk-proj-abc"
VERSION = ("anthropic-version", "2023-06-01")
UNDECIDED: Pairs = [("Authorization", "Bearer EMPTY")]


@dataclass(frozen=True)
class Pair:
    """The layout that is built in, with a stand-in for each of the two providers."""

    openai: RawUpstream
    anthropic: RawUpstream
    port: int

    async def ask(self, path: str, headers: Pairs = (), method: str = "GET") -> Got:
        body = WHOLE if method == "POST" else b""
        return await ask(self.port, render_request(path, body, headers, method))

    @property
    def reached(self) -> str:
        """Whom the one request went to."""
        assert len(self.openai.received) + len(self.anthropic.received) <= 1
        return "openai" if self.openai.received else "anthropic" if self.anthropic.received else "none"

    def take(self) -> str:
        """The same, for the next request."""
        reached = self.reached
        self.openai.received.clear()
        self.anthropic.received.clear()
        return reached


@asynccontextmanager
async def opening_pair(
    openai: str = "formats: [chat, responses]", anthropic: str = "formats: [messages]", more: str = ""
) -> AsyncIterator[Pair]:
    async with RawUpstream() as first, RawUpstream() as second:
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  default: {{base_url: "{first.base_url}", discover: false, {openai}}}\n'
            f'  anthropic: {{base_url: "{second.base_url}", discover: false, {anthropic}}}\n{more}'
        )
        async with serve(yaml) as gateway:
            yield Pair(first, second, gateway.port)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_pair() -> AsyncIterator[Pair]:
    async with opening_pair() as pair:
        yield pair


@pytest.fixture
def pair(module_pair: Pair) -> Pair:
    for upstream in (module_pair.openai, module_pair.anthropic):
        upstream.received.clear()
        upstream.script = writing(render_answer())
    return module_pair


ANTHROPICS_CLIENTS: list[Pairs] = [
    [("x-api-key", ANTHROPIC)],
    [("X-Api-Key", ANTHROPIC), VERSION],
    [("Authorization", f"Bearer {OAUTH}"), VERSION],
    [("authorization", f"bearer  {OAUTH}")],
    [("x-api-key", "of-a-proxy")],
    [("Authorization", "Bearer of-a-proxy"), VERSION],
    [VERSION],
]
ANTHROPICS_PATHS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/claude-haiku-4-5?x=1"),
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("DELETE", "/v1/files/file_1"),
    ("POST", "/v1/complete"),
    ("GET", "/v1/skills"),
    ("GET", "/v1/messages/batches"),
    ("POST", "/v1/messages/batches"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/messages?beta=true"),
    ("GET", "/v1/organizations/workspaces"),
    ("POST", "/api/event_logging/batch"),
    ("OPTIONS", "/"),
]


@pytest.mark.parametrize("headers", ANTHROPICS_CLIENTS, ids=str)
async def test_all_of_an_anthropic_client_goes_to_anthropic(pair: Pair, headers: Pairs) -> None:
    for method, path in ANTHROPICS_PATHS:
        assert (await pair.ask(path, headers, method)).status == 200
        assert pair.take() == "anthropic", path


@pytest.mark.parametrize("key", [OPENAI, PROJECT, "sk-svcacct-abc", "sk-admin-abc"])
async def test_all_of_an_openai_client_goes_to_openai(pair: Pair, key: str) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/files"), ("GET", "/v1/x")):
        for name, value in (("Authorization", f"Bearer {key}"), ("api-key", key)):
            await pair.ask(path, [(name, value)], method)
            assert pair.take() == "openai", path


async def test_a_path_that_one_api_has_decides_for_a_key_without_a_form(pair: Pair) -> None:
    for path in (
        "embeddings",
        "completions",
        "audio/speech",
        "images/edits",
        "chat/completions",
        "responses",
    ):
        await pair.ask(f"/v1/{path}", UNDECIDED, "POST")
        assert pair.take() == "openai", path
    await pair.ask("/v1/messages", UNDECIDED, "POST")
    assert pair.take() == "anthropic"


FOREIGN: list[tuple[str, Pairs]] = [
    ("/v1/chat/completions", [("Authorization", f"Bearer {ANTHROPIC}")]),
    ("/v1/responses", [("x-api-key", OAUTH), VERSION]),
    ("/v1/responses", [("Authorization", "Bearer EMPTY"), ("x-api-key", ANTHROPIC)]),
    ("/v1/chat/completions?key=" + ANTHROPIC, []),
    ("/v1/messages", [("x-api-key", PROJECT), VERSION]),
    ("/v1/messages/batches", [("Authorization", f"Bearer {PROJECT}")]),
    ("/v1/messages", [("Authorization", f"Bearer {PROJECT}"), ("x-api-key", ANTHROPIC), VERSION]),
]


@pytest.mark.parametrize(("path", "headers"), FOREIGN)
@pytest.mark.parametrize("bypass", [[], [("x-gateway-bypass", "1")]])
async def test_a_key_of_the_other_provider_goes_nowhere(
    pair: Pair, path: str, headers: Pairs, bypass: Pairs
) -> None:
    got = await pair.ask(path, [*headers, *bypass], "POST")
    error = json.loads(got.body)
    assert (got.status, pair.reached) == (400, "none")
    assert "another provider" in error["error"]["message"] and b"abc" not in got.body
    assert (error.get("type") == "error") is path.startswith("/v1/messages")


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer EMPTY")],
        [("Authorization", "Basic dXNlcjpwYXNz")],
        [("x-goog-api-key", "AIza")],
        [("Cookie", "session=1")],
        [("Authorization", f"Bearer {PROJECT}"), ("x-api-key", ANTHROPIC), VERSION],
        [("Authorization", f"Bearer {OPENAI}"), ("x-api-key", "of-a-proxy")],
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/"])
async def test_a_key_that_could_be_of_either_goes_nowhere(pair: Pair, path: str, headers: Pairs) -> None:
    got = await pair.ask(path, headers)
    error = json.loads(got.body)["error"]
    assert (got.status, error["code"], pair.reached) == (400, "undecided_upstream", "none")
    assert "`api_key`" in error["message"]


async def test_without_a_credential_the_first_upstream_is_asked_and_a_websocket_goes_nowhere(
    pair: Pair,
) -> None:
    assert (await pair.ask("/v1/models")).status == 200
    assert pair.take() == "openai"
    headers = [("Authorization", f"Bearer {OPENAI}"), ("Upgrade", "websocket"), ("Connection", "Upgrade")]
    assert (await pair.ask("/v1/responses", headers)).status == 426
    assert pair.take() == "none"


@pytest.mark.parametrize(
    ("openai", "anthropic", "headers", "reached"),
    [
        # Its own key is sent, and nothing of the caller's.
        ("api_key: own, formats: [chat, responses]", "formats: [messages]", UNDECIDED, "openai"),
        ("api_key: own, formats: [chat, responses]", "formats: [messages]", [VERSION], "anthropic"),
        (
            "api_key: own, formats: [chat, responses]",
            "formats: [messages]",
            [("x-api-key", ANTHROPIC)],
            "anthropic",
        ),
        # Callers have keys of one provider only.
        ("formats: [chat, responses]", "api_key: own, formats: [messages]", UNDECIDED, "openai"),
        (
            "formats: [chat, responses]",
            "api_key: own, formats: [messages]",
            [("x-api-key", ANTHROPIC)],
            "anthropic",
        ),
        # The second has no format of its own: it is for summaries, or for tenants who name it.
        ("formats: [chat, responses, messages]", "formats: [messages]", UNDECIDED, "openai"),
        ("formats: [chat, responses, messages]", "formats: [chat]", [("x-api-key", ANTHROPIC)], "openai"),
        ("formats: [chat]", "formats: [responses]", [("Authorization", f"Bearer {PROJECT}")], "none"),
        ("formats: [chat]", "formats: [responses]", [("x-api-key", ANTHROPIC)], "none"),
    ],
)
async def test_who_gets_a_list_of_models_in_other_layouts(
    openai: str, anthropic: str, headers: Pairs, reached: str
) -> None:
    async with opening_pair(openai, anthropic) as pair:
        request = render_request("/v1/models", b"", headers, "GET")
        await ask(pair.port, request.replace(b"gateway.test", b"127.0.0.1", 1))
        assert pair.reached == reached
        for seen in (*pair.openai.received, *pair.anthropic.received):
            sent = b"".join(b"".join(header) for header in seen.head.headers)
            forwards = "api_key" not in (openai if reached == "openai" else anthropic)
            assert all((value.encode() in sent) is forwards for name, value in headers if name != VERSION[0])


async def test_two_names_for_one_provider_are_one() -> None:
    async with RawUpstream() as raw:
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  a: {{base_url: "{raw.base_url}", discover: false, formats: [chat]}}\n'
            f'  b: {{base_url: "{raw.base_url}/b", discover: false, formats: [messages]}}\n'
        )
        async with serve(yaml) as gateway:
            for headers in (UNDECIDED, [("x-api-key", ANTHROPIC)]):
                await ask(gateway.port, render_request("/v1/models", b"", headers, "GET"))
    assert [seen.target for seen in raw.received] == [b"/v1/models"] * 2


@pytest.mark.parametrize("named", ["default", "anthropic"])
async def test_a_tenants_upstream_gets_all_that_the_tenant_sends(named: str) -> None:
    more = f"tenants: [{{name: a, keys: [{ANTHROPIC}, {PROJECT}, plain], upstream: {named}}}]\n"
    async with opening_pair(more=more) as pair:
        for key in (ANTHROPIC, PROJECT, "plain"):
            for path in ("/v1/models", "/v1/messages", "/v1/chat/completions"):
                await pair.ask(path, [("x-api-key", key)], "POST")
        counts = len(pair.openai.received), len(pair.anthropic.received)
    assert counts == ((9, 0) if named == "default" else (0, 9))


async def test_the_models_of_a_conversation_are_asked_for_where_it_goes() -> None:
    """The list of models that the gateway asks for by itself carries the caller's key, too."""
    async with RawUpstream() as openai, RawUpstream() as anthropic:
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  default: {{base_url: "{openai.base_url}", formats: [chat, responses]}}\n'
            f'  anthropic: {{base_url: "{anthropic.base_url}", formats: [messages]}}\n'
        )
        async with serve(yaml) as gateway:
            for path, key in (("/v1/messages", ANTHROPIC), ("/v1/chat/completions", PROJECT)):
                headers = [("Authorization", f"Bearer {key}"), ("Content-Type", "application/json")]
                await ask(gateway.port, render_request(path, WHOLE, headers))
            await wait_until(lambda: bool(list_askers(openai) and list_askers(anthropic)))
    assert set(list_askers(openai)) == {f"Bearer {PROJECT}".encode()}
    assert set(list_askers(anthropic)) == {f"Bearer {ANTHROPIC}".encode()}


def list_askers(upstream: RawUpstream) -> list[bytes]:
    """The keys that this upstream was asked for its models with; at the start it is asked without one."""
    asked = [seen.head for seen in upstream.received if seen.target.startswith(b"/v1/models")]
    return [key for head in asked for key in head.values("authorization")]
