"""A client in memory for which a test exchanges something with an upstream."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.downstream.request import Request
from gateway.downstream.responder import Responder
from gateway.downstream.response import Response
from gateway.settings import Keepalive
from gateway.wire.formats.chat import CHAT
from tests.builders.downstream import open_line, render_get

T = TypeVar("T")

_SECONDS = 0.01
_KEEPALIVE = Keepalive(after_seconds=_SECONDS, every_seconds=_SECONDS)


@dataclass(frozen=True)
class Sent(Generic[T]):
    """result: what the work returned. head, body: as the client got them; a keep-alive is part of the body.

    is_whole: the response ended as its framing promised.
    """

    result: T
    head: bytes
    body: bytes
    is_whole: bool


async def serve(work: Callable[[Responder], Awaitable[T]], *, is_committed: bool = False) -> Sent[T]:
    """is_committed: a keep-alive of a stream goes out before the work begins. Raises what the work raises."""
    tasks: list[asyncio.Future[T]] = []

    async def handle(request: Request) -> Response | None:
        client = Responder(request, _KEEPALIVE)
        client.set_format(CHAT, is_streaming=True)
        # On a busy machine the first wait may end before the keep-alive is due.
        while is_committed and not client.is_committed:
            await client.wait_for(asyncio.get_running_loop().create_future(), {}, 1.5 * _SECONDS)
        task = asyncio.ensure_future(work(client))
        tasks.append(task)
        await asyncio.wait((task,))
        return client.response

    async with open_line(handle) as line:
        await line.send(render_get())
        while not tasks:
            await asyncio.sleep(_SECONDS / 10)
        result = await tasks[0]
        for _ in range(5):
            await asyncio.sleep(0)
        head, _, body = line.written.partition(b"\r\n\r\n")
        if b"chunked" not in head:
            return Sent(result, head, body, not line.is_closed)
        plain, is_whole = _take_out_of_chunks(body)
        return Sent(result, head, plain, is_whole)


def _take_out_of_chunks(body: bytes) -> tuple[bytes, bool]:
    """The bytes of the chunks, and whether the last chunk came."""
    plain = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        if size == b"0":
            return plain, True
        plain += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return plain, False
