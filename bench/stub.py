"""The upstream of the bench: fixed responses at the lowest cost that a Python server can have.

It counts the bytes of a body without keeping them, four to a token. It has three responses: one JSON value;
a stream of `x-bench-events` deltas, each written apart, a millisecond or `x-bench-pace-ms` after the one
before; and a short summary if the end of the body asks for one. A paced delta says when it was due, on the
clock that all processes of the machine share. Run as `python -m bench.stub PORT`.
"""

import asyncio
import sys
import time
from typing import Final, cast

# Options, and the instruction of a summary call, come after the messages or at their end.
_TAIL_BYTES: Final = 2_048
_SUMMARY_SIGN: Final = b"No file contents and no long outputs"
_USAGE_SIGN: Final = b'"include_usage":true'
_BYTES_PER_TOKEN: Final = 4
_EVENT_SPACING_SECONDS: Final = 0.001
_DELTA: Final = (b"the quick brown fox jumps over the lazy dog " * 3)[:100]
_CHUNK: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":%s,"finish_reason":%s}]%s}\n\n'
)
_SUMMARY: Final = b"The task is under way: the parser is done, its tests pass, the printer comes next."
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class StubProtocol(asyncio.Protocol):
    """One connection. Requests arrive one after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._head = b""
        self._tail = b""
        self._size = 0
        self._left = -1  # bytes of body to come; -1: the head is not complete
        self._events = 0
        self._pace_seconds = 0.0  # 0: one delta a millisecond after the other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head = b""
            self._read_head(data[:end].lower())
            data = data[end + 4 :]
        self._left -= len(data)
        self._tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        if self._left <= 0:
            self._left = -1
            self._answer()

    def _read_head(self, head: bytes) -> None:
        self._size = self._left = int(_read_field(head, b"\r\ncontent-length:") or 0)
        self._events = int(_read_field(head, b"\r\nx-bench-events:") or 0)
        self._pace_seconds = int(_read_field(head, b"\r\nx-bench-pace-ms:") or 0) / 1_000
        self._tail = b""

    def _answer(self) -> None:
        assert self._transport is not None
        has_usage = _USAGE_SIGN in self._tail
        if _SUMMARY_SIGN in self._tail:
            text = _CHUNK % (b'{"content":"%s"}' % _SUMMARY, b"null", b"")
            self._transport.write(_STREAM_HEAD + _chunked(text + self._render_end(has_usage)))
        elif self._pace_seconds:
            self._transport.write(_STREAM_HEAD)
            self._send_paced(time.monotonic(), self._events, self._render_end(has_usage))
        elif self._events:
            self._transport.write(_STREAM_HEAD)
            nothing = b',"usage":null' if has_usage else b""
            event = _chunked(_CHUNK % (b'{"content":"%s"}' % _DELTA, b"null", nothing))
            self._send_events(self._events, event, self._render_end(has_usage))
        else:
            self._transport.write(self._render_plain())

    def _send_events(self, count: int, event: bytes, end: bytes) -> None:
        if self._transport is None:
            return
        if not count:
            self._transport.write(_chunked(end))
            return
        self._transport.write(event)
        loop = asyncio.get_running_loop()
        loop.call_later(_EVENT_SPACING_SECONDS, self._send_events, count - 1, event, end)

    def _send_paced(self, due: float, count: int, end: bytes) -> None:
        """due: when this delta should leave. The next one is due a pace later, however late this one is."""
        if self._transport is None:
            return
        if not count:
            self._transport.write(_chunked(end))
            return
        content = b'{"content":"due=%d;"}' % int(due * 1_000_000)
        self._transport.write(_chunked(_CHUNK % (content, b"null", b"")))
        due += self._pace_seconds
        asyncio.get_running_loop().call_at(due, self._send_paced, due, count - 1, end)

    def _render_plain(self) -> bytes:
        body = (
            b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench","choices":'
            b'[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],"usage":%s}'
        ) % (_DELTA, self._render_usage())
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % len(body) + body

    def _render_end(self, has_usage: bool) -> bytes:
        """The finish reason, usage if it was requested, and the end of the stream."""
        stop = _CHUNK % (b"{}", b'"stop"', b',"usage":null' if has_usage else b"")
        usage = b""
        if has_usage:
            usage = b'data: {"id":"chatcmpl-1","choices":[],"usage":%s}\n\n' % self._render_usage()
        return stop + usage + b"data: [DONE]\n\n"

    def _render_usage(self) -> bytes:
        prompt = max(1, self._size // _BYTES_PER_TOKEN)
        return b'{"prompt_tokens":%d,"completion_tokens":25,"total_tokens":%d}' % (prompt, prompt + 25)


def _read_field(head: bytes, name: bytes) -> bytes:
    start = head.find(name)
    return head[start + len(name) :].partition(b"\r\n")[0].strip() if start >= 0 else b""


def _chunked(data: bytes) -> bytes:
    """One HTTP chunk, followed by the last chunk if the data ends the stream."""
    end = b"0\r\n\r\n" if data.endswith(b"[DONE]\n\n") else b""
    return b"%x\r\n%s\r\n%s" % (len(data), data, end)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(StubProtocol, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(int(sys.argv[1])))
    else:
        uvloop.run(serve(int(sys.argv[1])))
