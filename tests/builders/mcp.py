"""Requests to `/mcp` as clients of both generations send them, and an endpoint over a shelf of originals."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.downstream.gate import PortBounds
from gateway.downstream.request import RequestHead
from gateway.downstream.server import Server
from gateway.mcp.endpoint import McpEndpoint
from gateway.mcp.library import McpLibrary
from gateway.mcp.tools import HistoryTools
from gateway.quotas.gate import QuotaGate
from gateway.quotas.ledger import Ledger
from gateway.reporting.metrics import Metrics
from gateway.tenants import Tenancy
from tests.builders.pipeline import load_text
from tests.builders.shelf import Shelf

HANDSHAKE: Final = "2025-06-18"
MODERN: Final = "2026-07-28"
_META: Final = "io.modelcontextprotocol"
JSON_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


def render_call(tool: str, version: str = HANDSHAKE, **arguments: object) -> bytes:
    return render_request("tools/call", version, name=tool, arguments=arguments)


def render_request(method: str, version: str = HANDSHAKE, **params: object) -> bytes:
    if version == MODERN:
        params["_meta"] = {f"{_META}/protocolVersion": version, f"{_META}/clientCapabilities": {}}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()


def render_initialize() -> bytes:
    info = {"name": "toy", "version": "1"}
    return render_request("initialize", protocolVersion=HANDSHAKE, capabilities={}, clientInfo=info)


def make_headers(body: bytes, version: str = HANDSHAKE) -> dict[str, str]:
    """The modern generation repeats in headers what a proxy may route by."""
    headers = {**JSON_HEADERS, "MCP-Protocol-Version": version}
    if version == MODERN:
        asked = json.loads(body)
        headers["Mcp-Method"] = asked["method"]
        headers |= {"Mcp-Name": asked["params"]["name"]} if "name" in asked["params"] else {}
    return headers


def make_mcp_head(headers: dict[str, str], target: str = "/mcp") -> RequestHead:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return RequestHead("POST", target, CIMultiDictProxy(CIMultiDict(headers)), raw)


def read_text(body: bytes) -> str:
    """The answer of a tool."""
    result: Any = json.loads(body)["result"]
    (content,) = result["content"]
    return str(content["text"])


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """On a port of its own."""

    server: Server
    metrics: Metrics
    memory: MemoryBudget

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/mcp"


@asynccontextmanager
async def running_endpoint(
    shelf: Shelf, more: str = "", library: McpLibrary | None = None
) -> AsyncIterator[Endpoint]:
    """more: settings beside an upstream that is never asked."""
    settings = load_text(f"store: 'memory:'\nupstreams: {{a: {{base_url: 'http://127.0.0.1:1'}}}}\n{more}")
    metrics, memory, lanes = Metrics(), MemoryBudget(settings.bounds.bodies_bytes), Lanes()
    endpoint = McpEndpoint(
        settings=settings,
        tenancy=Tenancy(settings),
        gate=QuotaGate(Ledger(), metrics),
        memory=memory,
        lanes=lanes,
        metrics=metrics,
        tools=HistoryTools(shelf, shelf.has_originals, metrics),
        library=library or McpLibrary(),
    )
    server = Server(endpoint.respond, PortBounds())
    await server.open("127.0.0.1", 0)
    try:
        yield Endpoint(server=server, metrics=metrics, memory=memory)
    finally:
        await server.close()
        lanes.close()
