"""Bytes that an upstream might answer: whole answers with odd heads, odd chunks, or bytes changed."""

import gzip
from collections.abc import Sequence
from typing import Final, Literal, TypeVar

from hypothesis import strategies as st

from tests.hostile.spoiling import pick, spoil

T = TypeVar("T")
# stay: the connection waits for its next request · close: FIN · reset: RST
Ending = Literal["stay", "close", "reset"]


class OddAnswer:
    """sent: all bytes. cuts: where they are parted on their way."""

    def __init__(self, sent: bytes, cuts: Sequence[int], ending: Ending) -> None:
        self.sent = sent
        self.cuts = cuts
        self.ending = ending

    def __repr__(self) -> str:
        """Short enough to be read."""
        return f"OddAnswer({self.sent[:400]!r} … {self.sent[-100:]!r}, {self.cuts}, {self.ending})"


_JSON: Final = (
    b'{"id":"a","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
_EVENTS: Final = (
    b'data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"Yes."}}]}\n\n: ping\n\n'
    b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\n\n'
)
_BODIES: Final = (
    _JSON,
    _JSON,
    _EVENTS,
    _EVENTS,
    b"",
    b"{}",
    b"null",
    b'{"usage":{"prompt_tokens":1e400}}',
    b'{"usage":[]}',
    b"[" * 20_000,
    b"\xff\xfe\x00",
    b"data: {\n\n" * 200,
    b"event: error\ndata: " + b"x" * 70_000 + b"\n\n",
    b"data\n" * 300,
    b"\n" * 500,
    b'{"error":{"message":"maximum context length is 9 tokens","code":"context_length_exceeded"}}',
    gzip.compress(_JSON),
    gzip.compress(_EVENTS)[:-9],
)
_STARTS: Final = (
    *((b"HTTP/1.1 200 OK",) * 8),
    b"HTTP/1.1 400 Bad Request",
    b"HTTP/1.1 413 Too Large",
    b"HTTP/1.1 500 Oh",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 304 Not Modified",
    b"HTTP/1.1 101 Switching Protocols",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
    b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK",
    b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 200",
    b"HTTP/1.1 000 None",
    b"HTTP/1.1 999 Most",
    b"HTTP/1.1 1000 More",
    b"HTTP/1.1 +200 OK",
    b"HTTP/1.1 -1 No",
    b"HTTP/2.0 200 OK",
    b"HTTP/0.9 200 OK",
    b"HTTP/1.1  200 OK",
    b"HTTP/1.1 200 \xff\x00",
    b"ICY 200 OK",
    b"",
)
_LINES: Final = (
    b"Content-Type: text/event-stream",
    b"Content-Type: application/json",
    b"Content-Encoding: gzip",
    b"Content-Encoding: br",
    b"Content-Encoding: x-odd",
    b"Content-Length: 5",
    b"Content-Length: 5, 5",
    b"Content-Length: -1",
    b"Content-Length: +5",
    b"Content-Length : 5",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: xchunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Set-Cookie: a=b",
    b"Location: http://127.0.0.1:1/",
    b"X-Fold: a\r\n b",
    b"X-Bare: a\rb",
    b"X-Bare: a\nX-Split: b",
    b"X-Nul: a\x00b",
    b"X Space: a",
    b"X-Odd\xff: a",
    b"no colon",
    b": no name",
    b"Retry-After: 99999999999",
    b"X-Huge: " + b"x" * 70_000,
    b"Trailer: X-Late",
)
_BYTES: Final = (
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"\x00",
    b"0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
)
_ENDINGS: Final[tuple[Ending, ...]] = ("stay", "close", "reset")


@st.composite
def odd_answers(draw: st.DrawFn) -> OddAnswer:
    sent = bytearray(_draw_answer(draw))
    if draw(st.integers(0, 7)) == 0:
        sent += _draw_answer(draw)
    for _ in range(max(0, draw(st.integers(-1, 2)))):
        spoil(draw, sent, _BYTES)
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return OddAnswer(bytes(sent), cuts, pick(draw, _ENDINGS))


def _draw_answer(draw: st.DrawFn) -> bytes:
    body = pick(draw, _BODIES)
    lines = [b"X-Own: a"]
    match draw(st.integers(0, 3)):
        case 0:
            pass
        case 1:
            lines.append(b"Transfer-Encoding: chunked")
            half = len(body) // 2
            body = b"".join(
                b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part
            )
            body += b"0\r\n\r\n"
        case _:
            lines.append(b"Content-Length: %d" % len(body))
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(0, len(lines))), pick(draw, _LINES))
    ending = pick(draw, (b"\r\n",) * 8 + (b"\n",))
    return b"".join([ending.join([pick(draw, _STARTS), *lines]), ending * 2, body])
