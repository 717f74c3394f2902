"""The files of the operators' page, served at `/`.

They hold no data, so they need no token. A strict policy keeps the page from running or loading anything
that does not come from this port.
"""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

_FOLDER: Final = "page/static"
_INDEX: Final = "index.html"
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


class PageFile:
    def __init__(self, name: str, data: bytes) -> None:
        self._data = data
        tag = hashlib.sha256(data).hexdigest()[:32]
        self._headers = {**PAGE_HEADERS, "Content-Type": _TYPES[_find_ending(name)], "ETag": f'"{tag}"'}

    async def send(self, request: web.Request) -> web.Response:
        if self._headers["ETag"] in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers={"ETag": self._headers["ETag"], **PAGE_HEADERS})
        return web.Response(body=self._data, headers=self._headers)


class PageFiles:
    """Read once. Only what was found then is served, so no path leads out of the folder."""

    def __init__(self) -> None:
        folder = files("gateway").joinpath(_FOLDER)
        self._files = {name: PageFile(name, data) for name, data in _read(folder, "")}
        self.paths = frozenset({"/", *(f"/{name}" for name in self._files)})

    def routes(self) -> list[web.RouteDef]:
        routes = [web.get(f"/{name}", file.send) for name, file in self._files.items()]
        index = self._files.get(_INDEX)
        return [web.get("/", index.send), *routes] if index is not None else routes


def _read(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name) if folder.is_dir() else ():
        if entry.is_dir():
            found += _read(entry, f"{prefix}{entry.name}/")
        elif _find_ending(entry.name) in _TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _find_ending(name: str) -> str:
    return "." + name.rpartition(".")[2]
