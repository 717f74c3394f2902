"""The process that the gateway is compared with: a bare aiohttp pass-through.

It reads a request, sends it on and streams the response back. It is short and does not read what passes
through. Run as `python -m bench.bare PORT UPSTREAM_URL`.
"""

import asyncio
import sys
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

_MAX_BYTES: Final = 1 << 26
_HOP_BY_HOP: Final = ("Host", "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length")


async def serve(port: int, upstream: str) -> None:
    """Runs until it is cancelled or killed."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            body = await request.content.read()
            async with session.request(
                request.method,
                URL(upstream + request.raw_path, encoded=True),
                headers=_end_to_end(request.headers),
                data=body,
                allow_redirects=False,
            ) as received:
                response = web.StreamResponse(status=received.status, headers=_end_to_end(received.headers))
                await response.prepare(request)
                async for chunk in received.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, auto_decompress=False, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        await asyncio.Event().wait()


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in _HOP_BY_HOP:
        kept.popall(name, None)
    return kept


def main() -> None:
    port, upstream = sys.argv[1:]
    work = serve(int(port), upstream)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main()
