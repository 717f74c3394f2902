"""Bytes that a client might send, and bytes that an upstream might answer: heads, framing and bodies that are
odd, and whole messages with bytes changed.
"""

import copy
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """Not `sampled_from`, which would show all options in every message."""
    return options[draw(st.integers(0, len(options) - 1))]


def spoil(draw: st.DrawFn, sent: bytearray, added: Sequence[bytes]) -> None:
    """Adds, removes, repeats or changes bytes at one place."""
    at = draw(st.integers(0, len(sent)))
    match draw(st.integers(0, 3)):
        case 0:
            sent[at:at] = pick(draw, added)
        case 1:
            del sent[at : at + pick(draw, (1, 2, 30, 1 << 20))]
        case 2:
            sent[at:at] = sent[at : at + pick(draw, (1, 20, 200))]
        case _:
            sent[at : at + 1] = bytes([draw(st.integers(0, 255))])


# What a client sends

# JSON as Python's values, except that bytes stand as they are.
Json = Any


class Object(list[list[Json]]):
    """A JSON object as pairs of key and value, so that a key may repeat."""


class Odd:
    """sent: all bytes. body: of the one request that they are, if its framing is in order. cuts: where
    `sent` is parted on its way. leaves: the client hangs up at the last cut.
    """

    def __init__(self, sent: bytes, body: bytes | None, cuts: tuple[int, ...], *, leaves: bool) -> None:
        self.sent = sent
        self.body = body
        self.cuts = cuts
        self.leaves = leaves

    def __repr__(self) -> str:
        """Short enough to be read."""
        return f"Odd({self.sent[:400]!r} … {self.sent[-100:]!r}, {self.cuts}, {self.leaves})"


def dump(value: Json) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Object):
        return b"{%s}" % b",".join(dump(key) + b":" + dump(item) for key, item in value)
    if isinstance(value, list):
        return b"[%s]" % b",".join(map(dump, value))
    return json.dumps(value).encode()


def _read(text: str) -> Json:
    return json.loads(text, object_pairs_hook=lambda pairs: Object(map(list, pairs)))


_CHAT: Final = _read("""{"model":"m","messages":[{"role":"system","content":"Be brief."},
    {"role":"user","content":[{"type":"text","text":"So?"},{"type":"image_url","image_url":{"url":"data:,"}}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":
        {"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"done"},{"role":"user","content":"Go on."}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"max_tokens":9,"stream":false}""")
_RESPONSES: Final = _read("""{"model":"m","instructions":"Be brief.","input":[{"role":"user","content":"So?"},
    {"type":"reasoning","id":"r1","summary":[],"encrypted_content":"x"},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"done"},{"type":"item_reference","id":"i1"}],
    "previous_response_id":"p1","store":true,"max_output_tokens":9,"stream":false}""")
_MESSAGES: Final = _read("""{"model":"m","max_tokens":9,"system":[{"type":"text","text":"Be brief."}],
    "messages":[{"role":"user","content":"So?"},{"role":"assistant","content":[{"type":"thinking","thinking":"h",
        "signature":"s"},{"type":"tool_use","id":"c1","name":"f","input":{"a":[1]}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text",
        "text":"done","cache_control":{"type":"ephemeral"}}]}]}],"stream":false}""")
_THREAD: Final = _read("""{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[
    {"type":"tool_result","tool_use_id":"c1","content":"done","cache_control":{"type":"ephemeral"}}]}],
    "thread":{"type":"continue","previous_message_id":"m1"},"stream":false}""")
_PLACES: Final[tuple[tuple[bytes, Json], ...]] = (
    (b"/v1/chat/completions", _CHAT),
    (b"/v1/responses", _RESPONSES),
    (b"/v1/messages", _MESSAGES),
    (b"/v1/messages", _THREAD),
    (b"/v1/messages/count_tokens", _MESSAGES),
    (b"/v1/files", _CHAT),
)
_ODD_VALUES: Final[tuple[Json, ...]] = (
    *(None, True, 0, -1, b"-0", b"1e400", b"9" * 5_000, b"0." + b"1" * 400, 1 << 64, "", "user"),
    *("assistant", "developer", "nobody", "c1", "/compact", b'"\\ud800"', b'"\\u0000"', b'"\xed\xa0\x80"'),
    *(b'"\xff"', b'"\xc3"', b'"a\nb"', b"'a'", b"NaN", b"nul", b"", b"[" * 5_000),
    *(b"[" * 2_000 + b"]" * 2_000, b'{"a":' * 2_000 + b"0" + b"}" * 2_000, b'"' + b"x" * 3_000 + b'"', []),
    *(Object(), [None], [[]], Object([["type", "text"]]), Object([["type", "nothing"], ["text", 1]])),
    Object([["role", "tool"], ["tool_call_id", "c9"], ["content", []]]),
    Object([["role", "assistant"], ["tool_calls", Object()]]),
)
_KEYS: Final = ("model", "messages", "input", "stream", "role", "content", "type", "id", "", "stream_options")


def _draw_body(draw: st.DrawFn, plain: Json) -> bytes:
    """The body with up to three parts of it replaced, repeated, added or removed."""
    value = copy.deepcopy(plain)
    for _ in range(draw(st.integers(0, 3))):
        slots = list(_find_slots(value))
        change, container, at = pick(draw, _CHANGES), *pick(draw, slots)
        change(draw, container, at)
    body = dump(value)
    return pick(draw, _WRAPPINGS)(body)


_WRAPPINGS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    *((lambda body: body,) * 4),
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: b" \r\n\t" + body + b"\n",
    lambda body: body[: len(body) // 2],
    lambda body: body + b"}",
    lambda body: body * 2,
    lambda body: b"[" + body + b"]",
    lambda body: body.decode("latin-1").encode("utf-16"),
    lambda body: body.replace(b"e", b"\\u0065"),
)


def _find_slots(value: Json) -> Iterator[tuple[Json, int]]:
    """Every place of a value: its container and its position there."""
    if not isinstance(value, list):
        return
    for at, item in enumerate(value):
        yield value, at
        yield from _find_slots(item[1] if isinstance(value, Object) else item)


Change = Callable[[st.DrawFn, Json, int], None]


def _replace(draw: st.DrawFn, container: Json, at: int) -> None:
    odd = copy.deepcopy(pick(draw, _ODD_VALUES))
    if isinstance(container, Object):
        container[at] = [container[at][0], odd]
    else:
        container[at] = odd


def _repeat(draw: st.DrawFn, container: Json, at: int) -> None:
    container[at:at] = [copy.deepcopy(container[at])] * pick(draw, (1, 2, 300))


def _remove(_: st.DrawFn, container: Json, at: int) -> None:
    del container[at]


def _add(draw: st.DrawFn, container: Json, at: int) -> None:
    odd = copy.deepcopy(pick(draw, _ODD_VALUES))
    is_object = isinstance(container, Object)
    container.insert(at, [pick(draw, _KEYS), odd] if is_object else odd)


def _swap(_: st.DrawFn, container: Json, at: int) -> None:
    container[0], container[at] = container[at], container[0]


_CHANGES: Final[tuple[Change, ...]] = (_replace, _replace, _replace, _repeat, _remove, _add, _swap)

# Each names the caller, so that a request which arrives can be found among those that were sent.
_HEAD: Final = (b"Host: gateway.test", b"Content-Type: application/json", b"Authorization: Bearer sk-fuzz")
# Valid, if unusual, and without an effect on the framing.
_FREE_LINES: Final = (
    *(b"Accept-Encoding: gzip, br", b"Content-Encoding: gzip", b"Content-Encoding: br, zstd"),
    *(b"Content-Encoding: x-odd", b"Cookie: a=b; c=d", b"X-Empty:", b"X-Latin: caf\xe9", b"X-Tab:\ta\tb"),
    *(b"x-gateway-session: s", b"x-gateway-bypass: 1", b"x-gateway-policy: none"),
    *(b"anthropic-version: 2023-06-01", b"X-Long: " + b"x" * 20_000, b"Via: 1.0 fred, 1.1 p.example.net"),
    *(b"Max-Forwards: 0", b"TE: trailers", b"Range: bytes=0-1"),
)
_ODD_LINES: Final = (
    *(b"Transfer-Encoding: chunked", b"transfer-encoding: CHUNKED", b"Transfer-Encoding : chunked"),
    *(b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, chunked"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: xchunked"),
    *(b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: \tchunked", b"Transfer\xadEncoding: chunked"),
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 5, 5", b"Content-Length: +5"),
    *(b"Content-Length: 0x5", b"Content-Length: 5 5", b"Content-Length: 05", b"Content-Length: -1"),
    *(b"Content-Length:", b"Content-Length: 99999999999999999999", b"Content-Length: 60000000"),
    *(b"Content-Length : 5", b"Content_Length: 5", b"Host: other.test", b"Host:", b"Host: a b"),
    *(b"Host: a/b", b"Host: gateway.test\x00", b" folded: yes", b"\tfolded", b"X-Fold: a\r\n b"),
    *(b"X-Bare: a\rb", b"X-Bare: a\nX-Other: b", b"X-Nul: a\x00b", b"X-Delete: a\x7fb", b"no colon"),
    *(b": no name", b"X Space: a", b"X-Odd\xff: a", b"(comment): a", b"", b"\r", b"Connection: close"),
    *(b"Connection: keep-alive, host", b"Connection: content-length", b"Connection: authorization, x-case"),
    *(b"Connection: Upgrade\r\nUpgrade: websocket", b"Connection: Upgrade\r\nUpgrade: h2c"),
    *(b"Upgrade: h2c", b"Expect: 100-continue", b"Expect: 200-ok", b"Proxy-Connection: keep-alive"),
    *(b"Trailer: X-Case", b"X-Huge: " + b"x" * 70_000),
    *(b"X-Many-%d: a" % at for at in (1, 2)),
)
_ODD_STARTS: Final = (
    *(b"GET /v1/models HTTP/1.1", b"HEAD /v1/models HTTP/1.1", b"DELETE /v1/files/a HTTP/1.1"),
    *(b"OPTIONS * HTTP/1.1", b"TRACE /v1/models HTTP/1.1", b"CONNECT a:80 HTTP/1.1", b"PRI * HTTP/2.0"),
    *(b"POST /v1/chat/completions HTTP/1.0", b"POST /v1/chat/completions HTTP/0.9"),
    *(b"POST /v1/chat/completions HTTP/2.0", b"POST /v1/chat/completions HTTP/1.2"),
    *(b"POST /v1/chat/completions", b"POST  /v1/chat/completions  HTTP/1.1"),
    *(b"POST /v1/chat completions HTTP/1.1", b"POST\t/v1/chat/completions\tHTTP/1.1"),
    *(b"POST /v1/chat/completions HTTP/1.1 ", b"post /v1/chat/completions HTTP/1.1"),
    *(b"P@ST /v1/chat/completions HTTP/1.1", b"POST http://other.test/v1/chat/completions HTTP/1.1"),
    *(b"POST //v1//chat/completions HTTP/1.1", b"POST /v1/../v1/chat/completions HTTP/1.1"),
    *(b"POST /v1/%2e%2e/admin HTTP/1.1", b"POST /v1/chat%2fcompletions?key=a&key=%00 HTTP/1.1"),
    *(b"POST /v1/chat/completions#fragment HTTP/1.1", b"POST /v1/caf\xc3\xa9 HTTP/1.1"),
    *(b"POST /v1/\x01 HTTP/1.1", b"POST /" + b"x" * 70_000 + b" HTTP/1.1", b"POST ? HTTP/1.1"),
    *(b"POST v1/models HTTP/1.1", b"\x16\x03\x01\x02\x00\x01\x00", b""),
)
_ODD_CHUNKS: Final = (
    *(b"5\r\nhello\r\n", b"5;a=b\r\nhello\r\n", b'5;a="\r\n"\r\nhello\r\n', b"5 \r\nhello\r\n"),
    *(b" 5\r\nhello\r\n", b"05\r\nhello\r\n", b"0x5\r\nhello\r\n", b"+5\r\nhello\r\n", b"-1\r\nhello\r\n"),
    *(b"5\nhello\n", b"5\r\nhelloX\r\n", b"5\r\nhello", b"ffffffffffffffffff\r\nhello\r\n"),
    *(b"\r\nhello\r\n", b"0\r\nX-Case: 9\r\n\r\n", b"0\r\nHost: a\r\n\r\n", b"0\r\n\r\n", b"0\n\n"),
)
_ODD_BYTES: Final = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\xff", b":", b"0\r\n\r\n"),
    b"GET / HTTP/1.1\r\n\r\n",
)


@st.composite
def framed(draw: st.DrawFn, case: int) -> Odd:
    """A request whose framing is in order, with any body; it may come in chunks."""
    path, plain = pick(draw, _PLACES)
    body = _draw_body(draw, plain)
    lines = [b"POST %s HTTP/1.1" % path, *_HEAD, b"X-Case: %d;" % case]
    lines += {pick(draw, _FREE_LINES) for _ in range(draw(st.integers(0, 2)))}
    size = pick(draw, (0, 0, 1, 300))
    if size and len(body) < 300 * size:
        framing, sent = b"Transfer-Encoding: chunked", b"".join(_cut_into_chunks(body, size))
    else:
        framing, sent = b"Content-Length: %d" % len(body), body
    return _draw_way(draw, b"\r\n".join([*lines, framing]) + b"\r\n\r\n" + sent, body)


def _cut_into_chunks(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


@st.composite
def misframed(draw: st.DrawFn, case: int) -> Odd:
    """Odd lines and chunks, bytes added, removed, repeated or changed, and requests behind one another."""
    parts = [_draw_misshapen(draw, case) for _ in range(pick(draw, (1, 1, 2)))]
    sent = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 2))):
        spoil(draw, sent, _ODD_BYTES)
    return _draw_way(draw, bytes(sent), None)


def _draw_misshapen(draw: st.DrawFn, case: int) -> bytes:
    path, plain = pick(draw, _PLACES)
    start = pick(draw, (b"POST %s HTTP/1.1" % path, *_ODD_STARTS))
    lines = [*_HEAD, b"X-Case: %d;" % case]
    is_chunked = draw(st.booleans())
    if is_chunked:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"".join(pick(draw, _ODD_CHUNKS) for _ in range(draw(st.integers(0, 3)))) + b"0\r\n\r\n"
    else:
        body = dump(plain)
        lines.append(b"Content-Length: %d" % len(body))
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(0, len(lines))), pick(draw, _ODD_LINES))
    if draw(st.integers(0, 5)) == 0:
        del lines[draw(st.integers(0, len(lines) - 1))]
    ending = pick(draw, (b"\r\n",) * 6 + (b"\n", b"\r", b"\r\r\n"))
    return b"".join([ending.join([start, *lines]), ending * 2, body])


def _draw_way(draw: st.DrawFn, sent: bytes, body: bytes | None) -> Odd:
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return Odd(sent, body, tuple(cuts), leaves=bool(cuts) and draw(st.integers(0, 9)) == 0)


# What an upstream answers

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


_JSON_ANSWER: Final = (
    b'{"id":"a","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
_EVENTS: Final = (
    b'data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"Yes."}}]}\n\n: ping\n\n'
    b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\n\n'
)
_ANSWER_BODIES: Final = (
    _JSON_ANSWER,
    _JSON_ANSWER,
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
    gzip.compress(_JSON_ANSWER),
    gzip.compress(_EVENTS)[:-9],
)
_STATUS_LINES: Final = (
    *((b"HTTP/1.1 200 OK",) * 8),
    *(b"HTTP/1.1 400 Bad Request", b"HTTP/1.1 413 Too Large", b"HTTP/1.1 500 Oh", b"HTTP/1.0 200 OK"),
    *(b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 101 Switching Protocols"),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
    *(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK", b"HTTP/1.1 100 Continue"),
    *(b"HTTP/1.1 200", b"HTTP/1.1 000 None", b"HTTP/1.1 999 Most", b"HTTP/1.1 1000 More"),
    *(b"HTTP/1.1 +200 OK", b"HTTP/1.1 -1 No", b"HTTP/2.0 200 OK", b"HTTP/0.9 200 OK", b"HTTP/1.1  200 OK"),
    *(b"HTTP/1.1 200 \xff\x00", b"ICY 200 OK", b""),
)
_ANSWER_LINES: Final = (
    *(b"Content-Type: text/event-stream", b"Content-Type: application/json", b"Content-Encoding: gzip"),
    *(b"Content-Encoding: br", b"Content-Encoding: x-odd", b"Content-Length: 5", b"Content-Length: 5, 5"),
    *(b"Content-Length: -1", b"Content-Length: +5", b"Content-Length : 5"),
    *(b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding : chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity"),
    *(b"Transfer-Encoding: xchunked", b"Connection: close", b"Connection: keep-alive"),
    *(b"Connection: Upgrade\r\nUpgrade: websocket", b"Set-Cookie: a=b", b"Location: http://127.0.0.1:1/"),
    *(b"X-Fold: a\r\n b", b"X-Bare: a\rb", b"X-Bare: a\nX-Split: b", b"X-Nul: a\x00b", b"X Space: a"),
    *(b"X-Odd\xff: a", b"no colon", b": no name", b"Retry-After: 99999999999", b"X-Huge: " + b"x" * 70_000),
    b"Trailer: X-Late",
)
_ANSWER_BYTES: Final = (
    *(b"\r\n", b"\n", b"\r\n\r\n", b"\x00", b"0\r\n\r\n"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
)
_ENDINGS: Final[tuple[Ending, ...]] = ("stay", "close", "reset")


@st.composite
def odd_answers(draw: st.DrawFn) -> OddAnswer:
    sent = bytearray(_draw_answer(draw))
    if draw(st.integers(0, 7)) == 0:
        sent += _draw_answer(draw)
    for _ in range(max(0, draw(st.integers(-1, 2)))):
        spoil(draw, sent, _ANSWER_BYTES)
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return OddAnswer(bytes(sent), cuts, pick(draw, _ENDINGS))


def _draw_answer(draw: st.DrawFn) -> bytes:
    body = pick(draw, _ANSWER_BODIES)
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
        lines.insert(draw(st.integers(0, len(lines))), pick(draw, _ANSWER_LINES))
    ending = pick(draw, (b"\r\n",) * 8 + (b"\n",))
    return b"".join([ending.join([pick(draw, _STATUS_LINES), *lines]), ending * 2, body])
