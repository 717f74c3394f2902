"""The side that asked: what it has been sent so far, and how it is kept waiting.

Nothing is sent before it must be. A keep-alive commits a 200; after that a failure can only be an error event
in the stream, or a broken connection, never a clean end (DESIGN §7).
"""

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import hdrs

from gateway.downstream.request import Request
from gateway.downstream.response import Response
from gateway.headers import ResponseHead, make_fields
from gateway.settings import Keepalive
from gateway.wire.formats.registry import CHAT, WireFormat

T = TypeVar("T")

_SPACE = b" "


class Responder:
    def __init__(self, request: Request, keepalive: Keepalive) -> None:
        self._request = request
        self._keepalive = keepalive
        self._form = CHAT
        self._is_streaming = False
        self.answer: Response | None = None
        # A keep-alive has gone out: status and headers are ours, the body is still to come.
        self.is_committed = False

    @property
    def task(self) -> "asyncio.Task[None]":
        """The handler's own task: what a watchdog wakes."""
        task = asyncio.current_task()
        assert task is not None
        return task

    def speak(self, form: WireFormat, *, is_streaming: bool) -> None:
        """Known only once the body has been read."""
        self._form = form
        self._is_streaming = is_streaming

    async def wait_for(
        self, work: "asyncio.Future[T]", headers: dict[str, str], most_seconds: float = math.inf
    ) -> bool:
        """Waits for work that goes on even if nobody does; keep-alives from `after_seconds` on.

        Is it done? False after `most_seconds`.
        """
        ends = time.monotonic() + most_seconds
        patience = self._keepalive.after_seconds if not self.is_committed else self._keepalive.every_seconds
        while (left := ends - time.monotonic()) > 0:
            done, _ = await asyncio.wait((work,), timeout=min(patience, left))
            if done:
                return True
            if time.monotonic() < ends:
                await self._keep_alive(headers)
            patience = self._keepalive.every_seconds
        return work.done()

    def begin(self, head: ResponseHead) -> None:
        """Status and headers, unless a keep-alive already sent some. They leave with the first piece of the
        body, or by `flush`.
        """
        if self.answer is None:
            self.answer = Response(head, self._request)

    def flush(self) -> None:
        """Nothing of the body is there yet; a client need not wait for it to see the head."""
        assert self.answer is not None
        self.answer.flush()

    def send(self, chunk: bytes) -> bool:
        """A piece of the body. Does the client not keep up, so that more should wait for `drain`?"""
        assert self.answer is not None
        return self.answer.send(chunk)

    async def finish(self, rest: bytes = b"") -> None:
        """What is left of the body, and its end. Waits until it is on its way."""
        assert self.answer is not None
        if self.answer.finish(rest):
            await self.answer.drain()

    def drain(self) -> Awaitable[None]:
        assert self.answer is not None
        return self.answer.drain()

    async def reply(self, body: bytes, headers: dict[str, str]) -> None:
        """A whole answer of our own."""
        length = {} if self._is_streaming else {str(hdrs.CONTENT_LENGTH): str(len(body))}
        self.begin(ResponseHead(200, "OK", make_fields({**self._kind(), **headers, **length})))
        await self.finish(body)

    async def fail(self, upstream_body: bytes, status: int) -> None:
        """After a commit: the error as an event of the stream, then a connection that breaks, so that it
        counts.
        """
        if self._is_streaming and self.answer is not None:
            self.answer.send(self._form.render_stream_error(upstream_body, status))
            await asyncio.sleep(0)
            self._request.break_off(is_flushed=True)
        else:
            self.abort()

    def abort(self) -> None:
        """No clean end for an answer that had none."""
        self._request.break_off()

    async def _keep_alive(self, headers: dict[str, str]) -> None:
        if self.answer is None:
            self.begin(ResponseHead(200, "OK", make_fields({**self._kind(), **headers})))
            self.is_committed = True
        if self.send(self._form.keepalive if self._is_streaming else _SPACE):
            await self.drain()

    def _kind(self) -> dict[str, str]:
        return {hdrs.CONTENT_TYPE: "text/event-stream" if self._is_streaming else "application/json"}
