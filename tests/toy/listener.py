"""A hook's other end on a real socket, and a product that asks it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.toy.admin_calls import ask_to_compact
from tests.toy.agent import make_session
from tests.toy.house import ADMIN
from tests.toy.product import Product
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

Responding = Callable[[web.BaseRequest], web.Response]


def responding(**fields: object) -> Responding:
    return lambda _: web.json_response(fields)


class Listener:
    """Records what it is sent."""

    def __init__(self, respond: Responding, delay_seconds: float = 0.0) -> None:
        self.respond = respond
        self.delay_seconds = delay_seconds
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    async def serve(self, request: web.BaseRequest) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.delay_seconds)
        return self.respond(request)


@asynccontextmanager
async def listening(respond: Responding, delay_seconds: float = 0.0) -> AsyncIterator[Listener]:
    listener = Listener(respond, delay_seconds)
    runner = web.ServerRunner(web.Server(listener.serve), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listener.port = runner.addresses[0][1]
    try:
        yield listener
    finally:
        await runner.cleanup()


def hook_settings(*ports: int, timeout: float = 5, name: str = "pre_compact") -> str:
    targets = [
        f'{{url: "http://127.0.0.1:{port}/hook?key=1", secret: s3cret, timeout_seconds: {timeout}}}'
        for port in ports
    ]
    return f"{ADMIN}hooks: {{{name}: [{', '.join(targets)}]}}\n"


async def compact_manually(product: Product, toy: ToyUpstream, instructions: str = "") -> list[str]:
    """Returns the plans of the two requests after the compaction."""
    session = make_session(14, 3)
    before = await run_session(session, product.base_url, toy, pace=Pace(first=0, last=12))
    body = json.dumps({"instructions": instructions}).encode()
    assert (await ask_to_compact(product, before.conversation, body))[0] == 202
    await product.at_rest()
    after = await run_session(session, product.base_url, toy, pace=Pace(first=12, last=14))
    return [answer.header("x-gateway-plan") or "" for answer in after.answers]
