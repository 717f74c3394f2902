"""The admin port, for operators: not for clients of the data port, and not for web pages.

A page in the operator's browser can send requests to a loopback address, under a host name of its own if it
controls the DNS. So `Host` and `Origin` are checked, and the token if one is set.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from gateway.admin.routing import respond_problem
from gateway.headers import has_same_origin, is_from_other_page, names_loopback
from gateway.http.guard import Gate, Guard, PortBounds
from gateway.http.ports import describe_bind_error
from gateway.http.server import find_guard, make_library_options
from gateway.settings import Admin, is_loopback

_FOLDER: Final = Path(__file__).parents[1] / "page" / "static"
_INDEX: Final = "/index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
# A strict policy keeps the page from running or loading anything that does not come from this port.
PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Asked for again each time; the tag below says if it has changed.
    "Cache-Control": "no-cache",
}


def load_page() -> dict[str, "Page"]:
    """Of the operators' page, by their paths. They hold no data, so they need no token.

    Read once. Only what was found then is served, so no path leads out of the folder.
    """
    pages = {
        f"/{path.relative_to(_FOLDER).as_posix()}": _make_file_page(path)
        for path in sorted(_FOLDER.rglob("*"))
        if path.suffix in _TYPES and path.is_file()
    }
    return pages | ({"/": pages[_INDEX]} if _INDEX in pages else {})


def _make_file_page(path: Path) -> "Page":
    data = path.read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {**PAGE_HEADERS, "Content-Type": _TYPES[path.suffix], "ETag": tag}

    async def send(request: web.Request) -> web.Response:
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers={"ETag": tag, **PAGE_HEADERS})
        return web.Response(body=data, headers=headers)

    return send


log = logging.getLogger("gateway.admin")

_CLOSE_SECONDS: Final = 0.1
# Operators' programs send small requests on a few connections.
_BOUNDS: Final = PortBounds(
    connections=64, connections_per_address=128, head_bytes=1 << 15, head_seconds=10.0, stall_seconds=60.0
)
# A summary that a person has edited, in JSON.
_MAX_BODY_BYTES: Final = 1 << 19
_HEALTH: Final = "/healthz"

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages(Protocol):
    """What the port shows: of this process, or of all workers."""

    def routes(self) -> list[web.RouteDef]: ...


class AdminServer:
    """port: the one it listens on, 0 while it does not."""

    def __init__(self, settings: Admin, pages: Pages, bounds: PortBounds = _BOUNDS) -> None:
        self._settings = settings
        # Until it is closed: aiohttp remembers the routes of applications with a middleware for good.
        self._pages: Pages | None = pages
        self._handlers: list[Page] = []
        self._files = load_page()
        # They hold no data. Container platforms ask for the health, and have no token.
        self._open_paths = {_HEALTH, "/", *self._files}
        self._gate = Gate(bounds)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self.port = 0

    def use(self, settings: Admin) -> None:
        """From now on with this token. The address stays that of the start."""
        self._settings = settings

    async def open(self) -> None:
        """Logs a port that is taken and serves without one: traffic matters more than metrics."""
        application = web.Application(middlewares=[self._serve], client_max_size=_MAX_BODY_BYTES)
        routes = self._pages.routes() if self._pages is not None else []
        own = {**self._files, _HEALTH: _show_health}
        application.add_routes([*map(self._detach, routes), *(web.get(*each) for each in own.items())])
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            shutdown_timeout=_CLOSE_SECONDS,
            **make_library_options(self._gate.bounds),
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        loop, settings = asyncio.get_running_loop(), self._settings
        make_guard = partial(Guard, server, self._gate)
        try:
            self._listener = await loop.create_server(make_guard, settings.host, settings.port)
        except OSError as error:
            reason = describe_bind_error(self._settings.host, self._settings.port, error, "--admin-port")
            log.warning("admin port not opened: %s", reason)
            return
        self._gate.sweep()
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._gate.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._pages = None
        self._handlers.clear()

    def _detach(self, route: web.RouteDef) -> web.RouteDef:
        """The same route, which does not lead to the pages once the port is closed."""
        number = len(self._handlers)
        self._handlers.append(route.handler)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handlers[number](request)

        return web.RouteDef(route.method, route.path, handle, route.kwargs)

    @web.middleware
    async def _serve(self, request: web.Request, handler: Page) -> web.StreamResponse:
        """Tells the connection what of its bytes is a body."""
        guard = find_guard(request)
        if guard is None:
            return respond_problem(400, "the client has gone")
        content = request.content if request.body_exists else None
        guard.begin(content, request.content_length, lambda _: guard.close())
        try:
            response = await self._guard(request, handler)
            if guard.closes:
                response.force_close()
            return response
        finally:
            guard.end(is_last=False)

    async def _guard(self, request: web.Request, handler: Page) -> web.StreamResponse:
        # On a loopback address only loopback names are allowed; elsewhere the token is the protection.
        has_own_host = not is_loopback(self._settings.host) or names_loopback(request.headers)
        if not (has_own_host and has_same_origin(request.headers)):
            return respond_problem(403, "wrong host or origin")
        if request.path not in self._open_paths and is_from_other_page(request.headers):
            return respond_problem(403, "not for pages of another address")
        if request.path not in self._open_paths and not self._has_token(request):
            headers = {"WWW-Authenticate": "Bearer"}
            return respond_problem(401, "this needs the admin.token, as Authorization: Bearer TOKEN", headers)
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            return respond_problem(405, "not with this method", {"Allow": error.headers["Allow"]})
        except web.HTTPNotFound:
            return respond_problem(404, "no such page")

    def _has_token(self, request: web.Request) -> bool:
        if self._settings.token is None:
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        wanted = self._settings.token.get_secret_value().encode()
        given = token.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, wanted)


async def _show_health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})
