"""The files of the page come without a token, with a strict policy, and nothing else comes with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

import gateway
from gateway.admin.page_files import PageFiles
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

_STATIC = Path(gateway.__file__).parent / "page" / "static"
_TOKEN = "admin: {port: 0, token: secret}\n"
_MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def find_script() -> str:
    """The path of one of its scripts."""
    return sorted(path for path in PageFiles().paths if path.endswith(".js"))[0]


@asynccontextmanager
async def open_client() -> AsyncIterator[aiohttp.ClientSession]:
    """Of the admin port of a gateway with a token, which it does not send."""
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more=_TOKEN)) as running,
        aiohttp.ClientSession(f"http://127.0.0.1:{running.admin_port}") as client,
    ):
        yield client


async def test_every_file_is_served_as_it_is_without_a_token() -> None:
    paths = PageFiles().paths
    assert {"/", find_script()} < paths
    async with open_client() as client:
        for path in paths:
            response = await client.get(path)
            name = "index.html" if path == "/" else path.removeprefix("/")
            assert (response.status, await response.read()) == (200, (_STATIC / name).read_bytes())
            assert response.content_type == _MEDIA.get(name.rpartition(".")[2], "text/plain")
            assert response.headers.items() >= _HEADERS.items()


async def test_a_file_that_has_not_changed_is_not_sent_again() -> None:
    async with open_client() as client:
        tag = (await client.get("/")).headers["ETag"]
        again = await client.get("/", headers={"If-None-Match": tag})
        changed = await client.get("/", headers={"If-None-Match": '"other"'})
        assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)
        assert again.headers.items() >= _HEADERS.items()
        assert changed.status == 200 and tag != (await client.get(find_script())).headers["ETag"]


async def test_a_page_under_a_foreign_name_is_not_served() -> None:
    """Its scripts would run in that name's origin."""
    async with open_client() as client:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert (await client.get("/", headers=headers)).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/app/../../pages.py",
        "/%2e%2e/%2e%2e/pyproject.toml",
        "/..%2f..%2fpyproject.toml",
        "/app%2f..%2f..%2f__init__.py",
        "/app/%00",
        "/app/\\..\\index.html",
        "//etc/passwd",
        "/etc/passwd",
        "/app",
        "/app/",
        "/.",
        "/index.html/",
        "/index.html/../api/v1/conversations",
        "/index.html%2f..%2fapi%2fv1%2fconversations",
        "/%2e%2e/api/v1/conversations",
        "//api/v1/conversations",
        "/./api/v1/conversations",
        "/healthz/../api/v1/conversations",
        "http://127.0.0.1/api/v1/conversations",
    ],
)
async def test_no_path_leads_out_of_the_folder_or_around_the_token(path: str) -> None:
    """As the bytes of the request have it: a client would make it shorter."""
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_TOKEN)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.admin_port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(60):
            response = await reader.read()
        writer.close()
    assert response.split(b" ")[1] in (b"400", b"401", b"404"), response[:300]
    assert b'conversations":' not in response and b"root:" not in response
