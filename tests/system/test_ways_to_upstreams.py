"""How an upstream is reached: with headers, a query, certificates and proxies of its own, none of which is
shown to anybody else.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.toy.certificates import Certificates, make_certificates
from tests.toy.product import command, serve, serve_process
from tests.toy.raw import Got, RawUpstream, ask, render_answer, render_request, writing
from tests.toy.running import wait_until
from tests.toy.wire import JSON_HEADERS, WHOLE, Wire, make_chat, opening_wire

CHAT = "/v1/chat/completions"
NOWHERE = "http://model.invalid/v1"
HOSTS = "listen: {hosts: [gateway.test]}\n"
COMPLETION = json.dumps(
    {"choices": [{"message": {"role": "assistant", "content": "So it was."}, "finish_reason": "stop"}]}
).encode()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def send(wire: Wire, target: str = "/v1/other", **headers: str) -> Got:
    return await wire.ask(render_request(target, WHOLE, [*headers.items()]))


# Headers, query, credential


async def test_the_settings_headers_take_the_place_of_the_callers() -> None:
    async with opening_wire('headers: {x-team: "a b", X-New: n}') as wire:
        assert (await send(wire, **{"X-Team": "mine", "X-Other": "o"})).status == 200
        head = wire.upstream.received[0].head
    assert (head.values("x-team"), head.values("x-new"), head.values("x-other")) == ([b"a b"], [b"n"], [b"o"])


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("/v1/other", b"/v1/other?api-version=1&q=a+b%26"),
        ("/v1/other?a=1&api-version=9&a=2", b"/v1/other?a=1&a=2&api-version=1&q=a+b%26"),
        ("/v1/other?api%2Dversion=9", b"/v1/other?api-version=1&q=a+b%26"),
    ],
)
async def test_the_settings_query_takes_the_place_of_the_callers(sent: str, received: bytes) -> None:
    async with opening_wire('query: {api-version: "1", q: "a b&"}') as wire:
        assert (await send(wire, sent)).status == 200
        assert wire.upstream.received[0].target == received


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ("bearer", "authorization", b"Bearer sk-up"),
        ("api-key", "api-key", b"sk-up"),
        ("x-api-key", "x-api-key", b"sk-up"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models"])
async def test_the_key_is_sent_as_the_settings_say(auth: str, name: str, value: bytes, path: str) -> None:
    async with opening_wire(f"api_key: sk-up, auth: {auth}", HOSTS) as wire:
        method = "GET" if path == "/v1/models" else "POST"
        body = WHOLE if method == "POST" else b""
        callers = [(form, "sk-caller") for form in ("Authorization", "X-Api-Key", "Api-Key")]
        assert (await wire.ask(render_request(path, body, callers, method))).status == 200
        head = wire.upstream.received[0].head
    assert head.values(name) == [value]
    assert b"sk-caller" not in b"".join(value for _, value in head.headers)


async def test_values_of_headers_query_and_proxy_are_shown_nowhere(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keys = 'headers: {X-Team: s3cret-h}, query: {code: s3cret-q}, proxy: "http://me:s3cret-p@127.0.0.1:9"'
    shown: list[str] = []
    async with opening_wire(keys, "admin: {port: 0}\nlog: {level: debug}\n") as wire:
        caplog.set_level(logging.DEBUG)
        for _ in range(2):
            got = await wire.ask(render_request(CHAT, WHOLE, JSON_HEADERS))
            assert got.status == 502
            shown.append(got.body.decode())
        for page in ("/api/v1/gateway", "/metrics", "/api/v1/conversations"):
            answer = await ask(wire.product.admin_port, render_request(page, method="GET"))
            shown.append(answer.body.decode())
        shown.append(caplog.text)
        path = tmp_path / "gateway.yaml"
        path.write_text(f'store: "memory:"\nupstreams: {{default: {{base_url: "{NOWHERE}", {keys}}}}}\n')
    for arguments in (("check",), ("check", "--json"), ("doctor", "--config")):
        result = await asyncio.to_thread(command, *arguments, str(path))
        assert "default" in result.out
        shown += [result.out, result.err]
    assert [text for text in shown if "s3cret" in text] == []


@pytest.mark.parametrize(
    "keys",
    [
        *("headers: {Authorization: s3cret}", "query: {key: s3cret}", 'headers: {"a b": s3cret}'),
        *("headers: {Host: s3cret}", "headers: {x-gateway-plan: s3cret}", 'headers: {X-A: "s3cret\\n"}'),
        *('proxy: "socks5://s3cret@h:1"', "auth: basic", "ca_file: /nowhere.pem", "client_cert: /etc/passwd"),
    ],
)
async def test_what_cannot_be_sent_is_refused_at_the_start(keys: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(f'upstreams: {{default: {{base_url: "{NOWHERE}", {keys}}}}}\n')
    result = await asyncio.to_thread(command, "check", str(path))
    assert result.status != 0
    assert keys.partition(":")[0] in result.err + result.out
    assert "s3cret" not in result.err + result.out


# Certificates


def make_long_history() -> list[dict[str, str]]:
    text = "many words about nothing at all " * 40
    turns = [{"role": role, "content": text} for _ in range(8) for role in ("user", "assistant")]
    return [*turns, {"role": "user", "content": "And now?"}]


async def test_ssl_cert_file_is_for_every_call(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For summaries and model lists as for what clients send."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    async with RawUpstream(tls=certificates.make_server_context()) as upstream:
        upstream.script = writing(render_answer(COMPLETION))
        yaml = (
            f'store: "memory:"\nlisten: {{port: 0}}\nadmin: {{port: 0}}\n'
            f'upstreams: {{default: {{base_url: "{upstream.base_url}"}}}}\n'
            f"models: [{{match: m, context: 3000}}]\n"
        )
        async with serve_process(yaml, tmp_path) as process:
            await wait_until(lambda: any(each.target == b"/v1/models" for each in upstream.received), 20)
            upstream.received.clear()
            body = make_chat(messages=make_long_history())
            port = int(process.base_url.partition("127.0.0.1:")[2].partition("/")[0])
            got = await ask(port, render_request(CHAT, body, JSON_HEADERS))
            assert got.status == 200
            assert len([each for each in upstream.received if each.target == CHAT.encode()]) > 1
            assert "certificate" not in process.log


async def test_an_upstream_is_trusted_by_its_own_authority_alone(certificates: Certificates) -> None:
    async with reaching_tls(certificates.make_server_context(), f'ca_file: "{certificates.ca}"') as port:
        assert (await ask(port, render_request("/v1/other", WHOLE))).status == 200
    async with reaching_tls(certificates.make_server_context(), "") as port:
        got = await ask(port, render_request("/v1/other", WHOLE))
        assert got.status == 502 and b"TLS certificate not accepted" in got.body


@pytest.mark.parametrize("shows", [True, False])
async def test_an_upstream_may_ask_for_a_certificate(certificates: Certificates, shows: bool) -> None:
    own = certificates.join_client()
    keys = f'ca_file: "{certificates.ca}"' + (f', client_cert: "{own}"' if shows else "")
    async with reaching_tls(certificates.make_server_context(asks=True), keys) as port:
        assert (await ask(port, render_request("/v1/other", WHOLE))).status == (200 if shows else 502)


@asynccontextmanager
async def reaching_tls(tls: ssl.SSLContext, keys: str) -> AsyncIterator[int]:
    async with RawUpstream(tls=tls) as upstream:
        yaml = f'store: "memory:"\nupstreams:\n  default: {{base_url: "{upstream.base_url}", discover: false'
        async with serve(yaml + (f", {keys}" if keys else "") + "}\n") as product:
            yield product.port


# Proxies


@asynccontextmanager
async def behind(base_url: str, keys: str = "") -> AsyncIterator[int]:
    keys = f", {keys}" if keys else ""
    async with serve(
        f'store: "memory:"\nupstreams:\n  default: {{base_url: "{base_url}", discover: false{keys}}}\n'
    ) as product:
        yield product.port


@pytest.mark.parametrize("by", ["environment", "settings"])
async def test_a_proxy_takes_what_goes_to_an_upstream(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawUpstream() as proxy:
        url = f"http://me:s3cret@127.0.0.1:{proxy.port}"
        if by == "environment":
            monkeypatch.setenv("HTTP_PROXY", url)
        async with behind(NOWHERE, f'proxy: "{url}"' if by == "settings" else "") as port:
            got = await ask(port, render_request("/v1/other?a=1", WHOLE, [("Authorization", "Bearer sk-me")]))
        assert got.status == 200
        (received,) = proxy.received
    assert received.target == b"http://model.invalid/v1/other?a=1" and received.body == WHOLE
    assert received.head.values("authorization") == [b"Bearer sk-me"]
    assert received.head.values("proxy-authorization") == [b"Basic bWU6czNjcmV0"]


@pytest.mark.parametrize(
    ("environment", "keys", "is_proxied"),
    [
        ({"NO_PROXY": "model.invalid"}, "", False),
        ({"NO_PROXY": ".invalid, other"}, "", False),
        ({"NO_PROXY": "other.invalid"}, "", True),
        ({}, "proxy: off", False),
    ],
)
async def test_no_proxy_and_off_go_straight(
    environment: dict[str, str], keys: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RawUpstream() as proxy:
        for name, value in {"HTTP_PROXY": f"127.0.0.1:{proxy.port}", **environment}.items():
            monkeypatch.setenv(name, value)
        async with behind(NOWHERE, keys) as port:
            got = await ask(port, render_request("/v1/other", WHOLE))
        assert (got.status, len(proxy.received)) == ((200, 1) if is_proxied else (502, 0))


async def test_an_address_of_this_machine_is_never_reached_through_the_environments_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with opening_wire() as wire:
        assert (await send(wire)).status == 200


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            writing(render_answer(b"", line="HTTP/1.1 407 Authenticate")),
            b"refused the connection (status 407)",
        ),
        (writing(then="close"), b"closed the connection"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_told(
    script: object, says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RawUpstream(script=script) as proxy:  # type: ignore[arg-type]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with behind("https://model.invalid/v1") as port:
            got = await ask(port, render_request("/v1/other", WHOLE))
        assert got.status == 502 and says in got.body
        assert proxy.received[0].head.line == b"CONNECT model.invalid:443 HTTP/1.1"
    async with behind("https://model.invalid/v1", 'proxy: "http://127.0.0.1:9"') as port:
        got = await ask(port, render_request("/v1/other", WHOLE))
        assert got.status == 502 and b"could not connect to the proxy on the way" in got.body


# Redirects


async def test_the_query_of_a_redirect_is_not_shown(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    moved = ("Location", "https://me:s3cret@there.test/v1/models?key=s3cret#s3cret")
    async with RawUpstream(
        script=writing(render_answer(b"", [moved], "HTTP/1.1 308 Permanent Redirect"))
    ) as upstream:
        yaml = f'store: "memory:"\nupstreams: {{default: {{base_url: "{upstream.base_url}"}}}}\n'
        async with serve(yaml):
            await wait_until(lambda: "which is not followed" in caplog.text)
        path = tmp_path / "gateway.yaml"
        path.write_text(yaml)
        result = await asyncio.to_thread(command, "doctor", "--config", str(path))
    assert "https://there.test/v1/models" in caplog.text
    assert "https://there.test/v1" in result.out
    assert "s3cret" not in caplog.text + result.out + result.err
