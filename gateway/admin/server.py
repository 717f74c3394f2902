"""The admin port: what operators may see. Not for callers of the data port, nor for web pages.

A page in the operator's browser can send requests to a loopback address, under a name of its own if it owns
the DNS: so Host and Origin are checked, and the token where one is set.
"""

import hmac
import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

from gateway.admin.pages import AdminPages, HistoryPages, Page
from gateway.downstream.library_log import make_library_log
from gateway.settings import Admin, is_loopback

log = logging.getLogger("gateway.admin")

_CLOSE_SECONDS: Final = 0.1


class AdminServer:
    """`port`: the one it listens on, 0 while it does not."""

    def __init__(self, settings: Admin, pages: Sequence[AdminPages | HistoryPages]) -> None:
        self._settings = settings
        self._pages = pages
        self._runner: web.ServerRunner | None = None
        self.port = 0

    async def open(self) -> None:
        """A port that is taken costs the metrics, not the traffic."""
        server = web.Server(
            self._answer, handler_cancellation=True, access_log=None, logger=make_library_log()
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_CLOSE_SECONDS)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        except OSError as error:
            log.warning("no admin port: %s", error.strerror or type(error).__name__)
            return
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if not (self._is_for_us(request) and self._is_same_origin(request)):
            return web.json_response({"error": "wrong host or origin"}, status=403)
        if not self._has_token(request):
            headers = {"WWW-Authenticate": "Bearer"}
            return web.json_response({"error": "token required"}, status=401, headers=headers)
        page = self._find(request.method, request.path)
        if page is None:
            return web.json_response({"error": "no such page"}, status=404)
        return await page(request)

    def _find(self, method: str, path: str) -> Page | None:
        found = (pages.find(method, path) for pages in self._pages)
        return next((page for page in found if page is not None), None)

    def _is_for_us(self, request: web.BaseRequest) -> bool:
        """On a loopback address only its own names; elsewhere the token speaks for the caller."""
        if not is_loopback(self._settings.host):
            return True
        return is_loopback(_host_of(f"//{request.headers.get('Host', '')}"))

    def _is_same_origin(self, request: web.BaseRequest) -> bool:
        origin = request.headers.get("Origin")
        return origin is None or _split(origin).netloc == request.headers.get("Host")

    def _has_token(self, request: web.BaseRequest) -> bool:
        if self._settings.token is None:
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        wanted = self._settings.token.get_secret_value().encode()
        given = token.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, wanted)


def _host_of(url: str) -> str:
    return _split(url).hostname or ""


def _split(url: str) -> SplitResult:
    """Empty where it is no address."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
