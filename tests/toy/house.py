"""A caller at a running product: one tenant of it, with a key of its own.

A module of tests shares one product and one toy; each test has a house of its own, and so a tenant.
"""

import asyncio
import io
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.toy.agent import PLAIN, Session, Shape
from tests.toy.dialect import Dialect, Since
from tests.toy.product import Product
from tests.toy.running import Answer, Pace, Run, ask, run_session
from tests.toy.upstream import ToyUpstream

ADMIN_TOKEN = "toy-admin"
# With a token, texts of conversations are shown.
ADMIN = f"admin: {{port: 0, token: {ADMIN_TOKEN}}}\n"
_FREE = "{input: 0, output: 0}"


def make_settings(
    toy: ToyUpstream, *, store: str = "memory:", output_tokens: int = 0, price: str = "", more: str = ""
) -> str:
    """YAML for one toy with a known window; `more` is appended.

    output_tokens 0: its output limit is unknown. price: as `{input: 1, …}`; empty: it costs nothing, so that
    sizes alone decide when to compact.

    The toy is not asked for its model list, so that it only sees the requests of the test.
    """
    output = f", output: {output_tokens}" if output_tokens else ""
    output += f", price: {price or _FREE}"
    return (
        f'store: "{store}"\n'
        f'upstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
        f'models:\n  - {{match: "toy-*", context: {toy.window}{output}}}\n'
        f"{more}"
    )


@dataclass(frozen=True)
class House:
    """key: of the test's own tenant. store: the folder of the product's store, if it is on disk."""

    toy: ToyUpstream = field(repr=False)
    product: Product = field(repr=False)
    key: str
    store: Path | None = None

    async def play(
        self,
        session: Session,
        shape: Shape = PLAIN,
        first: int = 0,
        last: int | None = None,
        *,
        since: Since | None = None,
        **headers: str,
    ) -> Run:
        """Turns of a session, one after the other. The toy must have no other conversation meanwhile."""
        pace = Pace(first=first, last=last, key=self.key, headers=headers, since=since)
        return await run_session(session, self.product.base_url, self.toy, shape, pace)

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        """path: below `/v1`. body: bytes, or JSON."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"} | headers
        async with aiohttp.ClientSession(headers=names) as client:
            return await ask(client, f"{self.product.base_url}{path}", sent)

    async def send(self, dialect: Dialect, body: object, **headers: str) -> Answer:
        """One request in a format, with the kind of credential that its clients have. body: as above."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {**dialect.headers(self.key), "Content-Type": "application/json"} | headers
        async with aiohttp.ClientSession(headers=names) as client:
            return await ask(client, f"{self.product.base_url}{dialect.path}", sent)

    async def admin(
        self, path: str, method: str = "GET", body: bytes = b"", token: str | None = ADMIN_TOKEN
    ) -> tuple[int, Any]:
        """Status and JSON, or the text of what is no JSON. path: below `/api`, or `/metrics`."""
        url = self.product.admin_url + (path if path == "/metrics" else f"/api{path}")
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.request(method, url, data=io.BytesIO(body) if body else None) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if "json" in response.content_type else text

    async def at_rest(self) -> None:
        await self.product.at_rest()

    async def image(self, folder: Path) -> Path:
        """See `copy_store`."""
        await asyncio.to_thread(self.copy_store, folder)
        return folder

    def copy_store(self, folder: Path) -> None:
        """As it is at this moment: what a sudden end leaves. Begun again if a file vanishes."""
        assert self.store is not None
        for left in reversed(range(20)):
            try:
                shutil.copytree(self.store, folder)
            except shutil.Error:
                shutil.rmtree(folder)
                if not left:
                    raise
            else:
                return
