"""A client's connection: bytes in, requests out, one answered after the other.

The library parses heads and chunks. A body that tells its length is counted here, and a head that comes again
is not parsed again (`downstream/repeated_head.py`).
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

from aiohttp import HttpVersion11, StreamReader, hdrs
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.tcp_helpers import tcp_keepalive

from gateway.core.errors import RequestRefused
from gateway.downstream.head_parser import MOST_AHEAD, READ_BYTES, make_parser, parse
from gateway.downstream.local_response import make_own_head
from gateway.downstream.repeated_head import RepeatedHead, learn_head
from gateway.downstream.request import Request, RequestHead
from gateway.downstream.response import Response
from gateway.wire.formats.registry import render_error

# Up to here a body is taken in before the request is looked at, where that would wait for all of it anyway.
_WHOLE_BYTES: Final = 1 << 20
# What may come ahead of the answer to the request before.
_AHEAD_BYTES: Final = 1 << 18
# RFC 9112 §9.6: if closed at once, what the client still sends would reset the answer on its way.
_LINGER_SECONDS: Final = 10.0
_HEAD_END: Final = b"\r\n\r\n"
_RESET: Final = struct.pack("ii", 1, 0)

Handler = Callable[[Request], Awaitable[Response | None]]
# What the library's parser made of a request, or of what is none.
Parsed = tuple[RawRequestMessage, StreamReader] | RequestRefused


class Keeper(Protocol):
    """Who listens. is_draining: no connection carries another request."""

    is_draining: bool

    def admit(self, connection: "DownstreamConnection") -> None: ...

    def dismiss(self, connection: "DownstreamConnection") -> None: ...

    def count(self, requests: int) -> None:
        """So many more are under way."""


class DownstreamConnection(BaseProtocol):
    """is_open: a request is under way, from its head to the end of its answer.

    idle_since: when the last one ended, `time.monotonic`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: Handler, keeper: Keeper) -> None:
        super().__init__(loop)
        self._handler = handler
        self._keeper = keeper
        # What becomes of the bytes that come next.
        self._take: Callable[[bytes], None] = self._begin
        self._known: RepeatedHead | None = None
        # The request under way; its body, as far as it has come, if it is to be whole.
        self._line: RequestHead | None = None
        self._pieces: list[bytes] = []
        self._missing_bytes = 0
        # One that is passed on as it comes.
        self._content: StreamReader | None = None
        self._ahead = b""
        self._parsed: deque[Parsed] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_open = False
        self._is_late = False
        self.idle_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        tcp_keepalive(self.transport)
        self._keeper.admit(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        gone = ConnectionResetError("downstream has gone")
        super().connection_lost(exc or gone)
        self._take = _ignore
        self._parser = None
        if self._task is None:
            self._keeper.dismiss(self)
        else:
            # Known until what it holds has been given back.
            self._task.add_done_callback(lambda _: self._keeper.dismiss(self))
            self._cancel()
        if self._content is not None and not self._content.is_eof():
            self._content.set_exception(gone)
        self._content = None
        self._close_request()

    def data_received(self, data: bytes) -> None:
        # Windows' event loop gives a bytearray.
        self._take(data if type(data) is bytes else bytes(data))

    def pause_reading(self) -> None:
        """Whoever reads the body does not keep up."""
        if self._parser is not None:
            super().pause_reading()
        else:
            self._reading_paused = True
            self._pause_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._parser is not None:
            super().resume_reading(resume_parser)
        elif self._reading_paused:
            self._reading_paused = False
            if not self._buffer_paused:
                self._resume_transport_reading()

    @property
    def is_last(self) -> bool:
        """Is there to be no request behind the one under way?"""
        return self._keeper.is_draining

    async def drain(self) -> None:
        """Waits until the client keeps up. Raises ConnectionError where it has gone."""
        await self._drain_helper()

    def close(self) -> None:
        """At once, unless a request is under way; then behind its answer."""
        if not self.is_open and self.transport is not None:
            self.transport.close()

    def abort(self) -> "asyncio.Task[None] | None":
        """At once, unless all that is left is to reach the client. The task that ends now, if one does."""
        if self.is_open:
            self._cancel()
            self.break_off()
        return self._task

    def break_off(self, *, is_flushed: bool = False) -> None:
        """No clean end for an answer that has none. is_flushed: behind what has been sent."""
        transport = self.transport
        if transport is None:
            return
        if self._line is not None and self._line.version < HttpVersion11:
            # Without chunks a FIN would be the clean end of any answer: break with a RST.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if is_flushed:
            transport.close()
        else:
            transport.abort()

    def _cancel(self) -> None:
        """Once: whatever cleans up is not to be disturbed."""
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    # What becomes of bytes, by what came before them.

    def _begin(self, data: bytes) -> None:
        """Between two requests."""
        known = self._known
        found = known.match(data) if known is not None else None
        if known is None or found is None:
            self._read_head(data)
        else:
            length, start = found
            self._begin_body(known.line, length, data[start:])

    def _collect(self, data: bytes) -> None:
        """A body that comes in whole."""
        own, rest = self._cut_body(data)
        self._pieces.append(own)
        if self._missing_bytes:
            return
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        assert self._line is not None
        self._take = self._hold
        self._answer(self._line, len(body), body)
        self._hold(rest)

    def _pass_on(self, data: bytes) -> None:
        """A body that is read while it comes."""
        assert self._content is not None
        own, rest = self._cut_body(data)
        self._content.feed_data(own)
        if not self._missing_bytes:
            self._take = self._hold
            self._content.feed_eof()
            self._hold(rest)

    def _cut_body(self, data: bytes) -> tuple[bytes, bytes]:
        """What is still the body's, and what comes behind it."""
        missing = self._missing_bytes
        self._missing_bytes = max(missing - len(data), 0)
        return data[:missing], data[missing:]

    def _hold(self, data: bytes) -> None:
        """Ahead of the answer that the client has to wait for."""
        if not data:
            return
        self._ahead += data
        if len(self._ahead) > _AHEAD_BYTES and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _parse(self, data: bytes) -> None:
        """Everything from here on, where only the parser can tell what ends where."""
        assert self._parser is not None
        try:
            messages, is_upgraded = parse(self._parser, data)
        except RequestRefused as error:
            self._take = _ignore
            waiting = [parsed[1] for parsed in self._parsed if not isinstance(parsed, RequestRefused)]
            for content in (self._content, *waiting):
                if content is not None and not content.is_eof():
                    content.set_exception(error)
            self._parsed.append(error)
            self._answer_parsed()
        else:
            self._queue(messages, is_upgraded=is_upgraded)

    def _queue(self, messages: list[tuple[RawRequestMessage, StreamReader]], *, is_upgraded: bool) -> None:
        self._parsed.extend(messages)
        if is_upgraded:
            # What follows is another protocol, and not spoken here.
            self._take = _ignore
        if len(self._parsed) >= MOST_AHEAD and not self._buffer_paused:
            self._pause_reading_for_buffer()
        self._answer_parsed()

    # A request, from its head to the end of its answer.

    def _read_head(self, data: bytes) -> None:
        """A new one. What tells its length, or has no body, is understood here; the parser has the others."""
        parser = make_parser(self, self._loop)
        head, end, rest = data.partition(_HEAD_END)
        head += end
        try:
            messages, is_upgraded = parse(parser, head)
        except RequestRefused as error:
            self._refuse(error)
            return
        if end and len(messages) == 1 and not is_upgraded and not messages[0][0].chunked:
            line = RequestHead(messages[0][0])
            self._known = learn_head(line, head)
            self._begin_body(line, _read_length(line), rest)
            return
        self._parser, self._take = parser, self._parse
        self._queue(messages, is_upgraded=is_upgraded)
        if rest:
            self._take(rest)

    def _begin_body(self, line: RequestHead, length: int | None, data: bytes) -> None:
        """data: what came behind the head."""
        self._open_request()
        if not length:
            self._take = self._hold
            self._answer(line, length)
            self._hold(data)
            return
        self._missing_bytes = length
        is_read_whole = line.is_read_whole and length <= _WHOLE_BYTES and not line.asks_first
        if is_read_whole or length <= len(data):
            self._take, self._line = self._collect, line
        else:
            self._take = self._pass_on
            content = StreamReader(self, READ_BYTES, loop=self._loop)
            self._answer(line, length, content=content)
        if data:
            self._take(data)

    def _answer_parsed(self) -> None:
        """The next of those that the parser read, once the one before has its answer."""
        if self._task is not None or not self._parsed:
            return
        parsed = self._parsed.popleft()
        if isinstance(parsed, RequestRefused):
            self._refuse(parsed)
            return
        message, content = parsed
        assert self._parser is not None
        self._parser.message_consumed()
        line = RequestHead(message)
        if message.upgrade or (self._take is _ignore and not self._parsed):
            # Behind an offer of another protocol the parser loses its place.
            line.keeps_alive = False
        body = content if content is not EMPTY_PAYLOAD else None
        self._open_request()
        self._answer(line, _read_length(line), content=body)

    def _answer(
        self,
        line: RequestHead,
        length: int | None,
        body: bytes | None = None,
        content: StreamReader | None = None,
    ) -> None:
        self._line, self._content = line, content
        request = Request(line, self, length, body, content, self._is_late)
        request.task = self._task = self._loop.create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        answer, content, is_read = None, request.content, False
        try:
            answer = await self._handler(request)
            self._close_request()
            if answer is not None and answer.is_whole:
                is_read = content is None or content.is_eof() or await _read_out(content)
        except ConnectionError:
            # Downstream has gone.
            answer = None
        finally:
            # An error holds the frame that it passed through, and all that is in it.
            request.task = None
            self._close_request()
            self._go_on(answer, is_read=is_read)

    def _go_on(self, answer: Response | None, *, is_read: bool) -> None:
        """To the next request, if there may be one."""
        self._task = self._content = None
        if self.transport is None or self.transport.is_closing():
            return
        if answer is None or not answer.is_whole:
            self.break_off()
        elif not answer.keeps_alive or not is_read or (self._take is _ignore and not self._parsed):
            self.transport.close()
        elif self._parser is not None:
            if self._buffer_paused and len(self._parsed) < MOST_AHEAD // 2:
                # Still paused while it reads what it has kept.
                self._take(b"")
                if len(self._parsed) < MOST_AHEAD:
                    self._resume_reading_for_buffer()
            self._answer_parsed()
        else:
            self._take = self._begin
            if self._ahead:
                data, self._ahead = self._ahead, b""
                self._begin(data)
            if self._buffer_paused and len(self._ahead) <= _AHEAD_BYTES:
                self._resume_reading_for_buffer()

    def _refuse(self, error: RequestRefused) -> None:
        """Of what is no HTTP nobody knows where the next request begins."""
        self._take = _ignore
        if self.transport is not None and not self.transport.is_closing():
            body = render_error("", error)
            head = make_own_head(error.status, len(body), {hdrs.CONNECTION: "close"})
            self.transport.write(head.render(HttpVersion11) + body)
            self.transport.close()

    def _open_request(self) -> None:
        self.is_open = True
        self._is_late = self._keeper.is_draining
        self._keeper.count(1)

    def _close_request(self) -> None:
        if self.is_open:
            self.is_open = False
            self.idle_since = time.monotonic()
            self._keeper.count(-1)


def _ignore(data: bytes) -> None:
    """Nothing that comes now is a request of ours."""


def _read_length(line: RequestHead) -> int | None:
    """The parser has seen to it that there is one at most, and that it is a number."""
    length = line.headers.get(hdrs.CONTENT_LENGTH)
    return None if length is None else int(length)


async def _read_out(content: StreamReader) -> bool:
    """What the answer did not wait for, so that the client reads it before the connection breaks."""
    # An upload that has just been given up still waits for the next piece.
    await asyncio.sleep(0)
    with suppress(Exception):
        async with asyncio.timeout(_LINGER_SECONDS):
            while not content.at_eof():
                await content.readany()
    return content.at_eof()
