"""A proxy between a client and the gateway that passes every byte on and keeps what both sent.

A client's own summaries and the refusals it got are visible only here, because the gateway rewrites the
history.
"""

import io
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

_HOP_BY_HOP = ("Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive")
_UNLIMITED = aiohttp.ClientTimeout(total=None)


@dataclass(kw_only=True)
class Tapped:
    """One exchange. plan: the gateway's header; status 0: no response. broken: the gateway broke its
    response off (a client that has read enough may hang up).
    """

    method: str
    path: str
    headers: CIMultiDict[str]
    body: bytes
    status: int = 0
    plan: str | None = None
    broken: bool = False


class Tap:
    """`async with Tap(gateway.root_url) as tap:` then point a client at `tap.root_url`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.exchanges: list[Tapped] = []
        self.port = 0

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            timeout=_UNLIMITED, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        server = web.Server(self._pass_on, handler_cancellation=True, auto_decompress=False)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def repeat(self, tapped: Tapped) -> None:
        """The same bytes once more, as if the client had sent them."""
        async with self._ask(self.root_url, tapped) as answer:
            await answer.read()

    def _ask(self, root_url: str, tapped: Tapped) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Forwards a request without added headers or followed redirects."""
        return self._client.request(
            tapped.method,
            URL(root_url + tapped.path, encoded=True),
            headers=tapped.headers,
            data=io.BytesIO(tapped.body) if tapped.body else None,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Content-Type"),
        )

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        headers, body = _end_to_end(request.headers), await request.content.read()
        tapped = Tapped(method=request.method, path=request.raw_path, headers=headers, body=body)
        self.exchanges.append(tapped)
        async with self._ask(self.target, tapped) as answer:
            tapped.status, tapped.plan = answer.status, answer.headers.get("x-gateway-plan")
            response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
            await response.prepare(request)
            while piece := await _read(answer, tapped):
                await response.write(piece)
            await response.write_eof()
        return response


async def _read(answer: aiohttp.ClientResponse, tapped: Tapped) -> bytes:
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError):
        tapped.broken = True
        raise


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in _HOP_BY_HOP:
        kept.popall(name, None)
    return kept
