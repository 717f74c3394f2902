"""Asks one worker for one of its admin pages. Never raises: a worker may be busy, or gone, at any time."""

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeVar

import aiohttp
import msgspec
from aiohttp import UnixConnector
from yarl import URL

T = TypeVar("T")

# Which conversations have changed in a worker since it was asked before.
CHANGED_PATH: Final = "/api/activity/changed"
# The name of its last event. Its data is a JSON string in Prometheus' text format.
FAREWELL: Final = "farewell"
# For a page that needs memory alone. A worker that takes longer is left out.
PATIENCE_SECONDS: Final = 1.0
# The host is never looked up: the connector knows the socket.
_URL: Final = "http://worker"
# So many questions wait at the socket that it takes no more: as uvloop and as asyncio say it.
_CROWDED: Final = (errno.EAGAIN, errno.ENOTCONN)
# What a page says about itself, beside its length.
_KEPT_HEADERS: Final = ("Content-Type", "Cache-Control", "X-Content-Type-Options", "Retry-After")
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class WorkerPage:
    """The response of a worker."""

    status: int
    body: bytes
    headers: dict[str, str]

    def parse(self, kind: type[T]) -> T | None:
        """Its JSON; None if it is of another shape, or none."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


# silent: no response came in time, so what the worker knows is unknown. gone: nothing listens at the socket;
# the process has ended, or has not come so far that it knows anything.
WorkerAnswer = WorkerPage | Literal["silent", "gone"]


async def ask(
    socket: Path,
    path: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    seconds: float = PATIENCE_SECONDS,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> WorkerAnswer:
    """Opens a connection for this request alone: a kept one might be closed by a worker that lives."""
    url = URL(_URL + path, encoded=True)
    try:
        async with (
            asyncio.timeout(seconds),
            open_session(socket) as session,
            session.request(method, url, data=body or None, headers=headers) as response,
        ):
            kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
            return WorkerPage(response.status, await response.read(), kept)
    except TimeoutError:
        return "silent"
    except OSError as error:
        return "silent" if error.errno in _CROWDED else "gone"
    except aiohttp.ClientError:
        return "gone"


async def ask_all(sockets: tuple[Path, ...], path: str) -> list[WorkerAnswer]:
    """The answers in the order of the sockets, after a second at most."""
    return await asyncio.gather(*(ask(socket, path) for socket in sockets))


def open_session(socket: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=UnixConnector(str(socket), force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )
