"""Brings in the package that speaks the protocol: with the first request, and outside the event loop.

It takes a second and 27 MB, which gateways without such clients do not pay.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.bounds.process import import_for_good
from gateway.core.errors import RequestRefused
from gateway.http.request import RequestHead
from gateway.mcp.exchange import AsgiResponse
from gateway.mcp.tools import CallTool

log = logging.getLogger("gateway.mcp")

# See `protocol.respond`.
Respond = Callable[[CallTool, RequestHead, bytes, int], Awaitable[AsgiResponse]]

PROTOCOL: Final = "gateway.mcp.protocol"
_MISSING: Final = (
    "This gateway cannot speak MCP, because a package is missing. Its operator can install it, "
    "pip install 'refold[mcp]', or write `mcp: false` to relay this path."
)


class McpLibrary:
    """module: that has `quiet` and `respond`."""

    def __init__(self, module: str = PROTOCOL) -> None:
        self._module = module
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
            module = await asyncio.to_thread(import_for_good, self._module)
        except ImportError as error:
            log.warning("requests to /mcp get 501: %s is missing: pip install 'refold[mcp]'", error.name)
            return None
        module.quiet()
        respond: Respond = module.respond
        return respond
