"""Requests to the admin port of a running gateway."""

import json
from typing import Any

import aiohttp

from tests.toy.gateway import RunningGateway

TOKEN = "toy-admin"
# Settings that serve it. With a token, texts of conversations are shown.
ADMIN = f"admin: {{port: 0, token: {TOKEN}}}\n"
ADMIN_WITHOUT_TOKEN = "admin: {port: 0}\n"
_HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def get(gateway: RunningGateway, path: str, token: str | None = TOKEN) -> tuple[int, bytes]:
    """Status and body of `/api/…`."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    url = f"http://127.0.0.1:{gateway.admin_port}/api{path}"
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as response:
        return response.status, await response.read()


async def get_json(gateway: RunningGateway, path: str) -> Any:
    status, body = await get(gateway, path)
    assert status == 200, body
    return json.loads(body)


async def ask_to_compact(
    gateway: RunningGateway,
    conversation: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and JSON of the response, which comes before the compaction is done."""
    url = f"http://127.0.0.1:{gateway.admin_port}/api/conversations/{conversation}/compact"
    async with (
        aiohttp.ClientSession(headers=_HEADERS) as client,
        client.post(url, data=body, headers=headers) as response,
    ):
        return response.status, await response.json()
