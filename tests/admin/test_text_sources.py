"""A conversation that no page knows is 404, wherever its words are asked for."""

import aiohttp
import pytest
from yarl import URL

from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

_WORDS = [
    ("GET", "messages"),
    ("GET", "summaries"),
    ("PUT", "summaries/ab"),
    ("POST", "summaries/ab/restore"),
    ("DELETE", ""),
]


async def ask(method: str, url: str) -> tuple[int, str]:
    """Status and content type."""
    headers = {"Authorization": "Bearer sesame"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.request(method, URL(url, encoded=True), json={"text": "x"}) as response,
    ):
        return response.status, response.content_type


@pytest.mark.parametrize("identity", ["0123456789abcdef", "x%7By%7D%0A", "%F0%9F%98%80"])
async def test_an_unknown_conversation_has_no_words(identity: str) -> None:
    settings = "admin: {port: 0, token: sesame}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=settings)) as gateway:
        base = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{identity}"
        for method, path in _WORDS:
            status, kind = await ask(method, f"{base}/{path}".rstrip("/"))
            assert (status, kind) == (404, "application/problem+json")
