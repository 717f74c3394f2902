"""The admin port, for operators: not for clients of the data port, and not for web pages.

A page in the operator's browser can send requests to a loopback address, under a host name of its own if it
controls the DNS. So `Host` and `Origin` are checked, and the token if one is set.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from gateway.admin.pages import AdminPages
from gateway.downstream.bind_errors import describe_bind_error
from gateway.downstream.library_log import make_library_log
from gateway.headers import has_same_origin, names_loopback
from gateway.settings import Admin, is_loopback

log = logging.getLogger("gateway.admin")

_CLOSE_SECONDS: Final = 0.1

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer:
    """port: the one it listens on, 0 while it does not."""

    def __init__(self, settings: Admin, pages: AdminPages) -> None:
        self._settings = settings
        self._pages = pages
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def open(self) -> None:
        """Logs a port that is taken and serves without one: traffic matters more than metrics."""
        application = web.Application(middlewares=[self._guard])
        application.add_routes(self._pages.routes())
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            shutdown_timeout=_CLOSE_SECONDS,
            handler_cancellation=True,
            access_log=None,
            logger=make_library_log(),
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        except OSError as error:
            reason = describe_bind_error(self._settings.host, self._settings.port, error, "--admin-port")
            log.warning("admin port not opened: %s", reason)
            return
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Page) -> web.StreamResponse:
        if not (self._has_own_host(request) and has_same_origin(request.headers)):
            return web.json_response({"error": "wrong host or origin"}, status=403)
        if not self._has_token(request):
            headers = {"WWW-Authenticate": "Bearer"}
            return web.json_response({"error": "token required"}, status=401, headers=headers)
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
            return web.json_response({"error": "no such page"}, status=404)

    def _has_own_host(self, request: web.Request) -> bool:
        """On a loopback address only loopback names are allowed; elsewhere the token is the protection."""
        if not is_loopback(self._settings.host):
            return True
        return names_loopback(request.headers)

    def _has_token(self, request: web.Request) -> bool:
        if self._settings.token is None:
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        wanted = self._settings.token.get_secret_value().encode()
        given = token.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, wanted)
