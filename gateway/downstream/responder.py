"""What a client has been sent so far, and how it is kept waiting.

Nothing is sent before it must be. The first keep-alive commits status 200; after that a failure can only be
an error event in the stream or a broken connection, never a clean end (docs/design.md, Transparency).
"""

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import hdrs

from gateway.downstream.request import Request
from gateway.downstream.request_note import RequestNote
from gateway.downstream.response import Response
from gateway.headers import ResponseHead, make_fields
from gateway.settings import Keepalive
from gateway.wire.formats.chat import CHAT
from gateway.wire.wire_format import WireFormat

T = TypeVar("T")

# JSON allows white space before the value, so a client that waits for a whole response accepts it.
_SPACE = b" "


class Responder:
    """response: None until its head is known.

    is_committed: a keep-alive has been sent, so status and headers are the gateway's; the body may follow.
    note: what was done to the request, and when.
    """

    def __init__(self, request: Request, keepalive: Keepalive) -> None:
        self._request = request
        self._keepalive = keepalive
        self._format = CHAT
        self._is_streaming = False
        self.response: Response | None = None
        self.is_committed = False
        self.note = RequestNote()

    def set_format(self, wire_format: WireFormat, *, is_streaming: bool) -> None:
        """Both are known once the body has been read."""
        self._format = wire_format
        self._is_streaming = is_streaming

    async def wait_for(
        self, work: "asyncio.Future[T]", headers: dict[str, str], max_seconds: float = math.inf
    ) -> bool:
        """Waits for work without cancelling it, with keep-alives from `after_seconds` on.

        Returns whether the work is done; False after `max_seconds`.
        """
        ends = time.monotonic() + max_seconds
        pause = self._keepalive.every_seconds if self.is_committed else self._keepalive.after_seconds
        while (left := ends - time.monotonic()) > 0:
            done, _ = await asyncio.wait((work,), timeout=min(pause, left))
            if done:
                return True
            if time.monotonic() < ends:
                await self._keep_alive(headers)
            pause = self._keepalive.every_seconds
        return work.done()

    def begin(self, head: ResponseHead) -> None:
        """Sets status and headers, unless a keep-alive has already sent some.

        They leave with the first piece of the body, or by `flush`.
        """
        if self.response is None:
            self.response = Response(head, self._request)

    def take_back(self) -> bool:
        """Forgets a response of which nothing has been sent. False if something has."""
        if self.response is None or self.response.has_left:
            return False
        self.response = None
        return True

    def flush(self) -> None:
        """Sends the head now, for a client that need not wait for the body to see it."""
        self._begun.flush()

    def send(self, chunk: bytes) -> bool:
        """Sends a piece of the body. True if the client does not keep up, so that `drain` should follow."""
        return self._begun.send(chunk)

    async def finish(self, rest: bytes = b"") -> None:
        """Sends the last piece of the body, and its end; waits if the client does not keep up."""
        if self._begun.finish(rest):
            begun_seconds = time.monotonic()
            await self._begun.drain()
            self.note.client_seconds += time.monotonic() - begun_seconds

    def drain(self) -> Awaitable[None]:
        return self._begun.drain()

    async def reply(self, body: bytes, headers: dict[str, str]) -> None:
        """Sends a whole response of the gateway itself."""
        length = {} if self._is_streaming else {str(hdrs.CONTENT_LENGTH): str(len(body))}
        self.begin(self._make_head({**headers, **length}))
        await self.finish(body)

    async def fail(self, upstream_body: bytes, status: int) -> None:
        """Ends a committed response: an error event in a stream, then a broken connection, so that the client
        sees a failure.
        """
        if self._is_streaming and self.response is not None:
            self.response.send(self._format.render_stream_error(upstream_body, status))
            await asyncio.sleep(0)
            self._request.break_off(is_flushed=True)
        else:
            self.abort()

    def abort(self) -> None:
        """Breaks the connection, so that the client cannot take the response for a whole one."""
        self._request.break_off()

    @property
    def _begun(self) -> Response:
        assert self.response is not None, "nothing is sent before `begin`"
        return self.response

    async def _keep_alive(self, headers: dict[str, str]) -> None:
        if self.response is None:
            self.begin(self._make_head(headers))
            self.is_committed = True
        if self.send(self._format.keepalive if self._is_streaming else _SPACE):
            await self.drain()

    def _make_head(self, headers: dict[str, str]) -> ResponseHead:
        content_type = "text/event-stream" if self._is_streaming else "application/json"
        return ResponseHead(200, "OK", make_fields({hdrs.CONTENT_TYPE: content_type, **headers}))
