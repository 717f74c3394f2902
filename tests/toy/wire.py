"""A product in front of a raw upstream, and the requests that most tests send through it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.toy.product import Product, serve
from tests.toy.raw import (
    Connection,
    Got,
    RawUpstream,
    ask,
    connecting,
    render_answer,
    render_request,
    writing,
)

KEY = "sk-caller"
JSON_HEADERS = (("Content-Type", "application/json"), ("Authorization", f"Bearer {KEY}"))
CHAT_PATH, RESPONSES_PATH, MESSAGES_PATH = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# One that is read and one that is only relayed.
PATHS = (CHAT_PATH, "/v1/other")
FRAMING = ("host", "content-length", "connection", "transfer-encoding")


@dataclass(frozen=True)
class Wire:
    upstream: RawUpstream
    product: Product

    @property
    def port(self) -> int:
        return self.product.port

    async def ask(self, request: bytes) -> Got:
        return await ask(self.port, request)

    async def chat(self, body: bytes) -> Got:
        return await self.ask(render_chat(body))

    @asynccontextmanager
    async def connecting(self) -> AsyncIterator[Connection]:
        async with connecting(self.port) as connection:
            yield connection

    def reset(self) -> None:
        """For the next test at the same product."""
        self.upstream.received.clear()
        self.upstream.reads_bodies = True
        self.upstream.script = writing(render_answer())


@asynccontextmanager
async def opening_wire(upstream_keys: str = "", more: str = "") -> AsyncIterator[Wire]:
    """upstream_keys: further keys of the one upstream, e.g. `idle_seconds: 0.3`. more: further YAML.

    The upstream is not asked for its model list, so that it only sees the requests of the test.
    """
    async with RawUpstream() as upstream:
        keys = f", {upstream_keys}" if upstream_keys else ""
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  default: {{base_url: "{upstream.base_url}", discover: false{keys}}}\n{more}'
        )
        async with serve(yaml) as product:
            yield Wire(upstream, product)


def render_chat(body: bytes) -> bytes:
    return render_request(body=body, headers=JSON_HEADERS)


def make_chat(**fields: object) -> bytes:
    """A small valid chat request, compact as the SDKs write it."""
    messages = [{"role": "user", "content": "Hello."}]
    return json.dumps({"model": "m", "messages": messages} | fields, separators=(",", ":")).encode()


STREAMED = make_chat(stream=True, stream_options={"include_usage": True})
WHOLE = make_chat()
