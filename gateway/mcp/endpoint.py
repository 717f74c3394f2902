"""Answers `/mcp` of the data port: who asks, what may be asked, and how much of it.

The tenant is found as for every other request. Web pages are turned away: a browser would let a page that
controls the DNS reach the endpoint under a name of its own (MCP, Streamable HTTP, Security Warning).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from aiohttp import hdrs

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget
from gateway.bounds.process import import_for_good
from gateway.core.errors import RequestRefused
from gateway.headers import has_same_origin, is_from_other_page, names_loopback
from gateway.http.reply import Reply
from gateway.http.request import Request, RequestHead, read_body
from gateway.mcp.tools import CallTool, HistoryTools
from gateway.reporting.metrics import Metrics
from gateway.settings import Settings
from gateway.tenants import Tenancy, Tenant
from gateway.tenants.quota import QuotaGate

log = logging.getLogger("gateway.mcp")

_PATHS: Final = frozenset({"/mcp", "/mcp/"})
# A call is some hundred bytes, a handshake some thousand. What the library makes of this much takes the event
# loop 10 ms at most.
_MAX_BODY_BYTES: Final = 1 << 15
_FOREIGN_PAGE: Final = (
    "Web pages must not use this endpoint. `listen.origins` in the settings can allow the origin of one."
)
_PROTOCOL: Final = "gateway.mcp.protocol"
_MISSING: Final = (
    "This gateway cannot speak MCP, because a package is missing. Its operator can install it, "
    "pip install 'refold[mcp]', or write `mcp: false` to relay this path."
)


class McpResponse(NamedTuple):
    """content_type: empty if there is none."""

    status: int
    content_type: str
    body: bytes


# See `protocol.respond`.
Respond = Callable[[CallTool, RequestHead, bytes, int], Awaitable[McpResponse]]


class McpLibrary:
    """The package that speaks the protocol. It is brought in with the first request, and outside the event
    loop: it takes a second and 27 MB, which gateways without such clients do not pay.
    """

    def __init__(self) -> None:
        # None inside: it cannot be imported.
        self._loading: asyncio.Task[Respond | None] | None = None

    async def load(self) -> Respond:
        """Raises RequestRefused (501) if the extra is not installed."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._import())
        # A client that hangs up does not stop it for others.
        respond = await asyncio.shield(self._loading)
        if respond is None:
            raise RequestRefused(501, _MISSING, kind="server_error", code="mcp_not_installed")
        return respond

    async def _import(self) -> Respond | None:
        try:
            module = await asyncio.to_thread(import_for_good, _PROTOCOL)
        except ImportError as error:
            log.warning("requests to /mcp get 501: %s is missing: pip install 'refold[mcp]'", error.name)
            return None
        module.quiet()
        respond: Respond = module.respond
        return respond


def is_mcp(target: str) -> bool:
    """target: path and query."""
    return target.partition("?")[0] in _PATHS


@dataclass(frozen=True, kw_only=True, slots=True)
class McpEndpoint:
    settings: Settings
    tenancy: Tenancy
    gate: QuotaGate
    # Of all bodies under way.
    memory: MemoryBudget
    lanes: Lanes
    metrics: Metrics
    tools: HistoryTools
    library: McpLibrary

    async def respond(self, request: Request, reply: Reply) -> None:
        """Raises only ConnectionError, if the client hung up."""
        reply.answered.format = "mcp"
        try:
            await self._serve(request, reply)
        except RequestRefused as error:
            await reply.refuse(error)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: it must end in a response, not in a silence
            # The library's error may quote the request.
            log.error("an MCP request failed inside the gateway: %s", type(error).__name__)
            failure = RequestRefused(500, "The gateway failed on this request.", kind="server_error")
            await reply.refuse(failure)
        finally:
            self.metrics.note_end(reply.end())

    async def _serve(self, request: Request, reply: Reply) -> None:
        self._check_page(request.head)
        tenant = self.tenancy.identify(request.head.headers, request.head.target)
        if request.head.method != hdrs.METH_POST:
            # Without sessions there is no stream to open and no session to delete.
            await reply.answer(405, b"", {hdrs.ALLOW: hdrs.METH_POST})
            return
        async with self.gate.admit(tenant):
            await self._answer(request, tenant, reply)

    def _check_page(self, head: RequestHead) -> None:
        """Raises RequestRefused (403). Programs that are no browser send no `Origin`."""
        listen = self.settings.listen
        origin = head.headers.get(hdrs.ORIGIN)
        if origin in listen.origins:
            return
        # A page of the same address passes only where its name cannot have been given to it for this.
        is_own = has_same_origin(head.headers) and names_loopback(head.headers, listen.hosts)
        if (origin is not None and not is_own) or is_from_other_page(head.headers):
            raise RequestRefused(403, _FOREIGN_PAGE, kind="permission_error", code="foreign_origin")

    async def _answer(self, request: Request, tenant: Tenant, reply: Reply) -> None:
        respond = await self.library.load()
        with self.memory.open(tenant.id) as share:
            max_bytes = min(_MAX_BODY_BYTES, self.settings.listen.max_body_bytes)
            body = await read_body(request, max_bytes, share, self.lanes)
            if body.beyond is not None:
                raise RequestRefused(413, f"The request body is too large: {body.beyond}.")
            call = partial(self.tools.call, tenant)
            whole = await respond(call, request.head, body.plain, max_bytes)
            await share.grow(len(whole.body))
            headers = {str(hdrs.CONTENT_TYPE): whole.content_type} if whole.content_type else {}
            await reply.answer(whole.status, whole.body, headers)
