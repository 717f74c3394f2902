"""Headers in both directions: end-to-end ones pass unchanged, hop-by-hop and own ones do not pass."""

import pytest

from tests.toy.raw import Headers, render_answer, render_request, writing
from tests.toy.wire import FRAMING, PATHS, STREAMED, WHOLE, Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")


def encoded(headers: list[tuple[str, str]]) -> Headers:
    return tuple((name.encode(), value.encode()) for name, value in headers)


ODD_HEADERS = [
    ("x-lower", "1"),
    ("X-UPPER", "2"),
    ("x-MiXeD-cAsE", "3"),
    ("X-Twice", "a"),
    ("x-other", "between"),
    ("X-Twice", "b"),
    ("X-Empty", ""),
    ("X-Utf8", "é 你好"),
    ("X-Json", '{"a": "b, c"; d=e}'),
    ("Cookie", "a=1; b=2"),
    ("Cookie", "c=3"),
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("Accept-Encoding", "gzip;q=0.5, br"),
    ("Accept", "*/*"),
    ("OpenAI-Beta", "a=v1"),
    ("User-Agent", "some client/1.0"),
    ("Range", "bytes=0-1"),
    ("Date", "Tue, 15 Nov 1994 08:12:31 GMT"),
    ("Via", "1.1 somebody"),
    ("Forwarded", "for=1.2.3.4"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_request_headers_pass_unchanged(wire: Wire, path: str) -> None:
    await wire.ask(render_request(path, WHOLE, ODD_HEADERS))
    assert wire.upstream.received[0].head.without(*FRAMING) == encoded(ODD_HEADERS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_no_request_header_is_added(wire: Wire, path: str, method: str) -> None:
    await wire.ask(render_request(path, WHOLE if method == "POST" else b"", method=method))
    head = wire.upstream.received[0].head
    assert head.without("content-length", "connection") == (
        (b"Host", f"127.0.0.1:{wire.upstream.port}".encode()),
    )


@pytest.mark.parametrize("path", PATHS)
async def test_response_headers_pass_unchanged(wire: Wire, path: str) -> None:
    headers = [
        *ODD_HEADERS,
        ("Content-Type", "text/Event-Stream; Charset=UTF-8"),
        ("Set-Cookie", "a=1; Path=/; HttpOnly"),
        ("set-cookie", "b=2"),
        ("Set-Cookie", "a=3"),
        ("Server", "theirs"),
        ("x-request-id", "req_1"),
        ("x-ratelimit-remaining-tokens", "99"),
        ("WWW-Authenticate", "Bearer"),
    ]
    raw = b"".join(b"%s: %s\r\n" % pair for pair in encoded(headers))
    wire.upstream.script = writing(b"HTTP/1.1 200 OK\r\n" + raw + b"Content-Length: 2\r\n\r\n{}")
    got = await wire.ask(render_request(path, WHOLE))
    assert got.end_to_end == encoded(headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_no_response_header_is_added(wire: Wire, path: str, method: str) -> None:
    """Not even Date, Server or Content-Type: an upstream sends those that it wants to."""
    wire.upstream.script = writing(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    got = await wire.ask(render_request(path, WHOLE if method == "POST" else b"", method=method))
    assert (got.status, got.end_to_end) == (200, ())


@pytest.mark.parametrize("path", PATHS)
async def test_values_that_are_not_utf_8_are_read_as_latin_1(wire: Wire, path: str) -> None:
    """RFC 9110 §5.5 calls them obs-text; old servers send them, and they pass unchanged to clients."""
    wire.upstream.script = writing(b"HTTP/1.1 200 OK\r\nX-Old: caf\xe9\r\nContent-Length: 0\r\n\r\n")
    request = render_request(path, WHOLE).replace(b"Host:", b"X-Old: caf\xe9\r\nHost:", 1)
    got = await wire.ask(request)
    assert (got.status, got.head.values("x-old")) == (200, [b"caf\xe9"])
    assert wire.upstream.received[0].head.values("x-old") == ["café".encode()]


HOP_BY_HOP = [
    ("Connection", "keep-alive, X-Hop"),
    ("X-Hop", "1"),
    ("Keep-Alive", "timeout=5"),
    ("Proxy-Authorization", "Basic x"),
    ("Proxy-Authenticate", "Basic"),
    ("Proxy-Connection", "keep-alive"),
    ("TE", "trailers"),
    ("Trailer", "X-Sum"),
    ("X-Stays", "1"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_hop_by_hop_headers_do_not_pass(wire: Wire, path: str) -> None:
    wire.upstream.script = writing(render_answer(b"{}", HOP_BY_HOP))
    got = await wire.ask(render_request(path, WHOLE, HOP_BY_HOP))
    head = wire.upstream.received[0].head
    assert head.without("host", "content-length") == ((b"X-Stays", b"1"),)
    assert got.end_to_end == ((b"X-Stays", b"1"),)


@pytest.mark.parametrize("path", PATHS)
async def test_an_offer_to_upgrade_is_ignored(wire: Wire, path: str) -> None:
    """Java's client offers h2c with every first request and accepts a response in HTTP/1.1."""
    offer = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")]
    got = await wire.ask(render_request(path, WHOLE, offer))
    assert got.status == 200
    [seen] = wire.upstream.received
    assert (seen.body, seen.head.values("upgrade"), seen.head.values("http2-settings")) == (WHOLE, [], [])


async def test_a_websocket_is_refused_so_that_the_client_falls_back(wire: Wire) -> None:
    offer = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")]
    got = await wire.ask(render_request("/v1/responses", headers=offer, method="GET"))
    assert got.status == 426
    assert wire.upstream.received == []


@pytest.mark.parametrize("path", PATHS)
async def test_long_and_many_headers_pass(wire: Wire, path: str) -> None:
    """Codex sends the metadata of its turn; proxies in companies send long tickets."""
    headers = [("X-Long", "x" * 50_000), *((f"X-Many-{number}", "y" * 20) for number in range(200))]
    wire.upstream.script = writing(render_answer(b"{}", headers))
    got = await wire.ask(render_request(path, WHOLE, headers))
    assert wire.upstream.received[0].head.without(*FRAMING) == encoded(headers)
    assert got.end_to_end == encoded(headers)


OURS = [("x-gateway-session", "s"), ("X-Gateway-Bypass", "0"), ("X-GATEWAY-odd", "1"), ("X-Gate", "stays")]


@pytest.mark.parametrize("path", PATHS)
async def test_the_gateways_own_request_headers_are_removed(wire: Wire, path: str) -> None:
    await wire.ask(render_request(path, WHOLE, OURS))
    assert wire.upstream.received[0].head.without(*FRAMING) == ((b"X-Gate", b"stays"),)


async def test_a_bypass_is_a_pure_relay(wire: Wire) -> None:
    """Nothing is injected or removed, and no header is added."""
    body = STREAMED.replace(b',"stream_options":{"include_usage":true}', b"")
    events = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    wire.upstream.script = writing(render_answer(events, [("Content-Type", "text/event-stream")]))
    headers = [("x-gateway-bypass", "1"), ("Accept-Encoding", "gzip")]
    got = await wire.ask(render_request(body=body, headers=headers))
    [seen] = wire.upstream.received
    assert (seen.body, got.body) == (body, events)
    assert seen.head.without(*FRAMING) == ((b"Accept-Encoding", b"gzip"),)
    assert not any(name.lower().startswith(b"x-gateway") for name, _ in got.head.headers)


async def test_an_upstreams_header_cannot_become_two(wire: Wire) -> None:
    """A value with a line break is refused or has a space in its place."""
    for odd in (b"a\rSet-Cookie: b=1", b"a\x00b", b"a\x7fb"):
        wire.upstream.script = writing(
            b"HTTP/1.1 200 OK\r\nX-Odd: " + odd + b"\r\nContent-Length: 2\r\n\r\n{}"
        )
        async with wire.connecting() as connection:
            await connection.send(render_request("/v1/other", WHOLE, [("Connection", "close")]))
            raw = await connection.reader.read()
        assert odd not in raw and raw.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 502 "))
