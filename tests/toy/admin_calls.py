"""Requests to the admin port of a running product, and the events that it tells."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.toy.house import ADMIN, ADMIN_TOKEN
from tests.toy.product import Product

__all__ = ["ADMIN", "Events", "ask", "ask_to_compact", "get", "get_json", "listening", "read_metrics"]
_HEADERS = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


async def ask(
    product: Product,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    token: str | None = ADMIN_TOKEN,
) -> tuple[int, bytes]:
    """Status and body of `/api/…`."""
    sent = ({"Authorization": f"Bearer {token}"} if token is not None else {}) | (headers or {})
    url = f"{product.admin_url}/api{path}"
    async with (
        aiohttp.ClientSession(headers=sent) as client,
        client.request(method, url, data=body or None) as response,
    ):
        return response.status, await response.read()


async def get(product: Product, path: str, token: str | None = ADMIN_TOKEN) -> tuple[int, bytes]:
    return await ask(product, "GET", path, token=token)


async def get_json(product: Product, path: str) -> Any:
    status, body = await get(product, path)
    assert status == 200, body
    return json.loads(body)


async def ask_to_compact(
    product: Product, conversation: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of the response, which comes before the compaction is done."""
    path = f"/conversations/{conversation}/compact"
    status, told = await ask(product, "POST", path, body, headers)
    return status, json.loads(told)


async def read_metrics(product: Product, beginning: str = "") -> dict[str, float]:
    """By name and labels, as they are written; those that begin so."""
    async with (
        aiohttp.ClientSession(headers=_HEADERS) as client,
        client.get(f"{product.admin_url}/metrics") as response,
    ):
        assert response.status == 200
        lines = (await response.text()).splitlines()
    rows = (line.rpartition(" ") for line in lines if not line.startswith("#") and line.startswith(beginning))
    return {name: float(value) for name, _, value in rows}


@dataclass(frozen=True)
class Events:
    """Each with its name and what it says, in order."""

    response: aiohttp.ClientResponse

    async def next(self, *names: str) -> dict[str, Any]:
        """The next one with one of these names. All others are skipped."""
        while True:
            block = (await self.response.content.readuntil(b"\n\n")).decode()
            name, _, data = block.partition("\ndata: ")
            if name.removeprefix("event: ") in names:
                found: dict[str, Any] = json.loads(data)
                return found


@asynccontextmanager
async def listening(product: Product) -> AsyncIterator[Events]:
    """What happens from now on."""
    async with (
        aiohttp.ClientSession(headers=_HEADERS) as client,
        client.get(f"{product.admin_url}/api/events") as response,
    ):
        assert response.status == 200
        yield Events(response)
