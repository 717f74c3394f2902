"""What the gateway says about itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gateway import __version__
from gateway.admin.gateway_page import GatewayFacts
from gateway.settings import load_settings
from tests.toy.admin_port import ADMIN, ADMIN_WITHOUT_TOKEN, get_json
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream


@pytest.mark.parametrize(("more", "has_token"), [(ADMIN_WITHOUT_TOKEN, False), (ADMIN, True)])
async def test_clients_are_told_where_the_data_port_is(more: str, has_token: bool) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        shown = await get_json(gateway, "/v1/gateway")
        root_url = gateway.root_url
    assert shown == {
        "version": __version__,
        "data_url": root_url,
        "clients": [
            {"format": name, "provider": f"127.0.0.1:{toy.port}", "key": "caller"}
            for name in ("chat", "responses", "messages")
        ],
        "token_required": has_token,
        "texts": "token" if has_token else "policy",
    }


@pytest.mark.parametrize(
    ("keys", "more", "expected"),
    [
        ("formats: [messages]", "", [("messages", "caller")]),
        ("formats: [chat], api_key: own", "", [("chat", "none")]),
        (
            "formats: [chat, responses]",
            "tenants: [{name: a, keys: [k]}]\n",
            [("chat", "tenant"), ("responses", "tenant")],
        ),
    ],
)
async def test_clients_are_told_which_formats_and_keys_there_are(
    keys: str, more: str, expected: list[tuple[str, str]]
) -> None:
    async with ToyUpstream() as toy:
        settings = make_settings(toy, more=ADMIN_WITHOUT_TOKEN + more)
        async with running_gateway(
            settings.replace("discover: false", f"discover: false, {keys}")
        ) as gateway:
            shown = await get_json(gateway, "/v1/gateway")
    assert [(each["format"], each["key"]) for each in shown["clients"]] == expected


@asynccontextmanager
async def serving(facts: GatewayFacts) -> AsyncIterator[str]:
    """The URL of a port that shows them."""

    async def show(request: web.Request) -> web.Response:
        return web.json_response({"data_url": facts.show(request).data_url})

    application = web.Application()
    application.add_routes([web.get("/", show)])
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("listens", "port", "asked", "expected"),
    [
        ("127.0.0.1", 8080, "localhost", "http://127.0.0.1:8080"),
        ("gateway.example", 80, "localhost", "http://gateway.example"),
        ("::1", 8080, "localhost", "http://[::1]:8080"),
        ("0.0.0.0", 8080, "gateway.example:81", "http://gateway.example:8080"),
        ("::", 8080, "[::1]:81", "http://[::1]:8080"),
        ("127.0.0.1", 0, "localhost", None),
    ],
)
async def test_a_gateway_that_listens_everywhere_is_where_it_was_found(
    listens: str, port: int, asked: str, expected: str | None
) -> None:
    settings = load_settings(None, {}, upstream="http://127.0.0.1:9/v1", host=listens)
    facts = GatewayFacts(lambda: settings)
    facts.port = port
    async with (
        serving(facts) as url,
        aiohttp.ClientSession() as client,
        client.get(url, headers={"Host": asked}) as response,
    ):
        assert await response.json() == {"data_url": expected}


async def test_a_host_that_is_none_is_no_error_of_ours() -> None:
    settings = load_settings(None, {}, upstream="http://127.0.0.1:9/v1", host="0.0.0.0")
    facts = GatewayFacts(lambda: settings)
    facts.port = 8080
    async with serving(facts) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2].strip("/")))
        writer.write(b"GET / HTTP/1.1\r\nHost: a\xe9.localhost\r\nConnection: close\r\n\r\n")
        response = await reader.read()
        writer.close()
    assert response.startswith(b"HTTP/1.1 200 ") and response.endswith(b'{"data_url": null}')
