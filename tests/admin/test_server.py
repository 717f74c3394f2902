"""Who may use the admin port, and what happens if it cannot be opened."""

import asyncio

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream


async def read(port: int, headers: dict[str, str] | None = None, path: str = "/metrics") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status, await response.text()


async def test_compactions_and_refusals_are_counted() -> None:
    toy = ToyUpstream(window=16_000)
    toy.summary_failures = [RawAnswer(status=500, pieces=(b"{}",))] * 2
    settings = (
        'store: "memory:"\nadmin: {{port: 0}}\nupstreams:\n  default: {{base_url: "{}", discover: false}}\n'
    )
    async with toy, running_gateway(settings.format(toy.base_url)) as gateway:
        run = await run_session(make_session(60, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
        status, text = await read(gateway.admin_port)
    assert status == 200 and run.failed == []
    assert 'gateway_overflow_refusals_total{kind="tokens",retried="true"} 1.0' in text
    assert 'gateway_compactions_total{kind="digest",result="done"} 1.0' in text
    assert 'gateway_compactions_total{kind="summary",result="status 500"} 1.0' in text
    assert 'gateway_compactions_total{kind="summary",result="done"}' in text
    assert "gateway_silent_truncations_total 0.0" in text
    # Metrics name no conversation, key or model.
    names = [answer.header("x-gateway-conversation") or "" for answer in run.answers]
    assert not any(name in text for name in (*names, "key:", "toy-model"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer nearly"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "Bearer secret", "Host": "localhost:1"}, 200),
        ({"Authorization": "Bearer secret", "Host": "evil.example"}, 403),
        ({"Authorization": "Bearer secret", "Origin": "http://evil.example"}, 403),
        ({"Authorization": "Bearer secret", "Origin": "null"}, 403),
        ({"Authorization": "Bearer secret", "Origin": "http://["}, 403),
    ],
)
async def test_only_requests_with_the_token_and_the_right_origin_are_served(
    headers: dict[str, str], status: int
) -> None:
    more = "admin: {port: 0, token: secret}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        assert (await read(gateway.admin_port, headers))[0] == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("POST", "/metrics", 405),
        ("HEAD", "/api/events", 405),
        ("GET", "/api/conversations/0123456789abcdef/compact", 405),
        ("GET", "/metrics/", 404),
        ("GET", "/", 200),
    ],
)
async def test_each_page_has_its_methods(method: str, path: str, status: int) -> None:
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
    ):
        url = f"http://127.0.0.1:{gateway.admin_port}{path}"
        async with aiohttp.ClientSession() as client, client.request(method, url) as response:
            assert response.status == status
            if status >= 400 and method != "HEAD":
                assert (await response.json())["status"] == response.status


async def test_an_unknown_page_is_404_and_never_relayed() -> None:
    more = "admin: {port: 0}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        assert (await read(gateway.admin_port, path="/v1/models"))[0] == 404
        assert (await read(gateway.port, path="/metrics"))[0] == 200
    # The data port has no pages of its own: it relays the path to the upstream.
    assert [seen.path for seen in toy.requests] == ["/v1/metrics"]


async def test_an_admin_port_that_is_taken_does_not_stop_the_gateway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ToyUpstream() as toy:
        more = f"admin: {{port: {toy.port}}}\n"
        async with running_gateway(make_settings(toy, more=more)) as gateway:
            assert gateway.admin_port == 0
            assert (await read(gateway.port, path="/healthz"))[0] == 200
    assert "admin port not opened: " in caplog.text and "--admin-port N" in caplog.text


@pytest.mark.parametrize(
    ("line", "status"), [("Authorization: Bearer s\xe9cret", 401), ("Authorization: Bearer secr\x01et", 400)]
)
async def test_a_header_that_cannot_be_read_is_refused_and_not_quoted_in_the_log(
    line: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    more = "admin: {port: 0, token: secret}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.admin_port)
        lines = ("GET /metrics HTTP/1.1", "Host: localhost", line, "Connection: close", "", "")
        writer.write("\r\n".join(lines).encode("latin-1"))
        response = await reader.read()
        writer.close()
    assert response.split(b" ")[1] == str(status).encode()
    assert "secr" not in caplog.text


@pytest.mark.parametrize(
    ("site", "path", "status"),
    [
        ("cross-site", "/api/v1/conversations", 403),
        ("same-site", "/metrics", 403),
        ("cross-site", "/api/v1/events", 403),
        ("same-origin", "/api/v1/conversations", 200),
        ("none", "/metrics", 200),
        # A link to the page, which holds no data.
        ("cross-site", "/", 200),
        ("cross-site", "/healthz", 200),
    ],
)
async def test_another_page_cannot_ask_with_an_image_or_a_script(site: str, path: str, status: int) -> None:
    """Browsers send no Origin with those."""
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
    ):
        assert (await read(gateway.admin_port, {"Sec-Fetch-Site": site}, path))[0] == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/tenants/purge"),
        ("POST", "/api/v1/conversations/0123456789abcdef/compact"),
        ("DELETE", "/api/v1/conversations/0123456789abcdef"),
        ("PUT", "/api/v1/conversations/0123456789abcdef/summaries/ab"),
        ("OPTIONS", "/api/v1/conversations/0123456789abcdef"),
    ],
)
@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://127.0.0.1:1", "https://localhost"])
async def test_another_page_can_change_nothing(method: str, path: str, origin: str) -> None:
    """Also by requests that need no preflight, such as a form's."""
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
        aiohttp.ClientSession() as client,
    ):
        url = f"http://127.0.0.1:{gateway.admin_port}{path}"
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        async with client.request(method, url, headers=headers, data="{}") as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers
