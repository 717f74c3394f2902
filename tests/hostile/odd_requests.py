"""Bytes that a client might send: requests of all formats with odd bodies and heads, or bytes changed."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from tests.hostile.spoiling import pick, spoil

T = TypeVar("T")
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
    None,
    True,
    0,
    -1,
    b"-0",
    b"1e400",
    b"9" * 5_000,
    b"0." + b"1" * 400,
    1 << 64,
    "",
    "user",
    "assistant",
    "developer",
    "nobody",
    "c1",
    "/compact",
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xed\xa0\x80"',
    b'"\xff"',
    b'"\xc3"',
    b'"a\nb"',
    b"'a'",
    b"NaN",
    b"nul",
    b"",
    b"[" * 5_000,
    b"[" * 2_000 + b"]" * 2_000,
    b'{"a":' * 2_000 + b"0" + b"}" * 2_000,
    b'"' + b"x" * 3_000 + b'"',
    [],
    Object(),
    [None],
    [[]],
    Object([["type", "text"]]),
    Object([["type", "nothing"], ["text", 1]]),
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
    b"Accept-Encoding: gzip, br",
    b"Content-Encoding: gzip",
    b"Content-Encoding: br, zstd",
    b"Content-Encoding: x-odd",
    b"Cookie: a=b; c=d",
    b"X-Empty:",
    b"X-Latin: caf\xe9",
    b"X-Tab:\ta\tb",
    b"x-gateway-session: s",
    b"x-gateway-bypass: 1",
    b"x-gateway-policy: none",
    b"anthropic-version: 2023-06-01",
    b"X-Long: " + b"x" * 20_000,
    b"Via: 1.0 fred, 1.1 p.example.net",
    b"Max-Forwards: 0",
    b"TE: trailers",
    b"Range: bytes=0-1",
)
_ODD_LINES: Final = (
    b"Transfer-Encoding: chunked",
    b"transfer-encoding: CHUNKED",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: \tchunked",
    b"Transfer\xadEncoding: chunked",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: 5, 5",
    b"Content-Length: +5",
    b"Content-Length: 0x5",
    b"Content-Length: 5 5",
    b"Content-Length: 05",
    b"Content-Length: -1",
    b"Content-Length:",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 60000000",
    b"Content-Length : 5",
    b"Content_Length: 5",
    b"Host: other.test",
    b"Host:",
    b"Host: a b",
    b"Host: a/b",
    b"Host: gateway.test\x00",
    b" folded: yes",
    b"\tfolded",
    b"X-Fold: a\r\n b",
    b"X-Bare: a\rb",
    b"X-Bare: a\nX-Other: b",
    b"X-Nul: a\x00b",
    b"X-Delete: a\x7fb",
    b"no colon",
    b": no name",
    b"X Space: a",
    b"X-Odd\xff: a",
    b"(comment): a",
    b"",
    b"\r",
    b"Connection: close",
    b"Connection: keep-alive, host",
    b"Connection: content-length",
    b"Connection: authorization, x-case",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Proxy-Connection: keep-alive",
    b"Trailer: X-Case",
    b"X-Huge: " + b"x" * 70_000,
    *(b"X-Many-%d: a" % at for at in (1, 2)),
)
_ODD_STARTS: Final = (
    b"GET /v1/models HTTP/1.1",
    b"HEAD /v1/models HTTP/1.1",
    b"DELETE /v1/files/a HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"TRACE /v1/models HTTP/1.1",
    b"CONNECT a:80 HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"POST /v1/chat/completions HTTP/1.0",
    b"POST /v1/chat/completions HTTP/0.9",
    b"POST /v1/chat/completions HTTP/2.0",
    b"POST /v1/chat/completions HTTP/1.2",
    b"POST /v1/chat/completions",
    b"POST  /v1/chat/completions  HTTP/1.1",
    b"POST /v1/chat completions HTTP/1.1",
    b"POST\t/v1/chat/completions\tHTTP/1.1",
    b"POST /v1/chat/completions HTTP/1.1 ",
    b"post /v1/chat/completions HTTP/1.1",
    b"P@ST /v1/chat/completions HTTP/1.1",
    b"POST http://other.test/v1/chat/completions HTTP/1.1",
    b"POST //v1//chat/completions HTTP/1.1",
    b"POST /v1/../v1/chat/completions HTTP/1.1",
    b"POST /v1/%2e%2e/admin HTTP/1.1",
    b"POST /v1/chat%2fcompletions?key=a&key=%00 HTTP/1.1",
    b"POST /v1/chat/completions#fragment HTTP/1.1",
    b"POST /v1/caf\xc3\xa9 HTTP/1.1",
    b"POST /v1/\x01 HTTP/1.1",
    b"POST /" + b"x" * 70_000 + b" HTTP/1.1",
    b"POST ? HTTP/1.1",
    b"POST v1/models HTTP/1.1",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"",
)
_ODD_CHUNKS: Final = (
    b"5\r\nhello\r\n",
    b"5;a=b\r\nhello\r\n",
    b'5;a="\r\n"\r\nhello\r\n',
    b"5 \r\nhello\r\n",
    b" 5\r\nhello\r\n",
    b"05\r\nhello\r\n",
    b"0x5\r\nhello\r\n",
    b"+5\r\nhello\r\n",
    b"-1\r\nhello\r\n",
    b"5\nhello\n",
    b"5\r\nhelloX\r\n",
    b"5\r\nhello",
    b"ffffffffffffffffff\r\nhello\r\n",
    b"\r\nhello\r\n",
    b"0\r\nX-Case: 9\r\n\r\n",
    b"0\r\nHost: a\r\n\r\n",
    b"0\r\n\r\n",
    b"0\n\n",
)
_ODD_BYTES: Final = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\x00",
    b" ",
    b"\xff",
    b":",
    b"0\r\n\r\n",
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
