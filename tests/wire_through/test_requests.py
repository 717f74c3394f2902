"""Requests reach the upstream byte for byte: bodies, paths, methods."""

import asyncio
import base64
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.shared_data import SHARED
from tests.wire_through.raw import ask, render_answer, render_request, writing
from tests.wire_through.shared_cases import JSON_CASES, requires_cases
from tests.wire_through.wiring import (
    JSON_HEADERS,
    STREAMED,
    WHOLE,
    Wire,
    make_chat,
    opening_wire,
    render_chat,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"


def load_json_cases() -> list[tuple[str, bytes]]:
    document = json.loads((SHARED / "data" / "jsontestsuite.json").read_text("utf-8"))
    return [(case["name"], base64.b64decode(case["b64"])) for case in document["cases"]]


async def sees(wire: Wire, bodies: Iterator[tuple[str, bytes]]) -> None:
    """Every body reaches the upstream as it is, and its answer comes back."""
    async with wire.connecting() as connection:
        for name, body in bodies:
            got = await connection.ask(render_chat(body))
            assert (got.status, got.body) == (200, b"{}"), (name, got)
            assert wire.upstream.received[-1].body == body, name


@requires_cases(JSON_CASES, "JSON cases")
async def test_every_json_case_passes_as_a_body(wire: Wire) -> None:
    cases = load_json_cases()
    assert len(cases) == JSON_CASES
    await sees(wire, iter(cases))


@requires_cases(JSON_CASES, "JSON cases")
@pytest.mark.parametrize(
    "template",
    [
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"odd":@}',
        b'{"odd":@,"model":"m","messages":[{"role":"user","content":"a"}]}',
        b'{"model":"m","messages":[{"role":"user","content":@}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a","odd":@}],"max_tokens":9}',
        b'{"model":"m","messages":@}',
        b'{"model":@,"messages":[{"role":"user","content":"a"}]}',
        b'{"model":"m","messages":[{"role":"tool","tool_call_id":@,"content":"a"}]}',
        b'{"model":"m","messages":[{"role":"assistant","tool_calls":@}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":@}',
        b'{"model":"m","messages":[],"stream":@,"max_tokens":@,"stream_options":{"include_usage":true}}',
    ],
    ids=lambda template: template.decode().replace('"', ""),
)
async def test_every_json_case_passes_inside_a_body(wire: Wire, template: bytes) -> None:
    """Puts the value in every place of a chat request that a client fills."""
    await sees(wire, ((name, template.replace(b"@", case)) for name, case in load_json_cases()))


def wrap(text: str) -> bytes:
    return (
        b'{"model":"m","messages":[{"role":"user","content":' + text.encode("utf-8", "surrogatepass") + b"}]}"
    )


ODD_BODIES = {
    "empty": b"",
    "nothing of ours": b"null",
    "duplicate keys": b'{"model":"m","model":"n","messages":[],"messages":[{"role":"user","content":"a"}]}',
    "duplicate keys of a message": b'{"model":"m","messages":[{"role":"user","role":"tool","content":""}]}',
    "NaN": b'{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"a"}]}',
    "infinity": wrap("[Infinity,-Infinity]"),
    "lone surrogate": wrap('"\\ud800"'),
    "raw surrogate": wrap('"\ud800"'),
    "big numbers": wrap("[1e999,123456789012345678901234567890,1.10,-0]"),
    "escapes": wrap('"\\u0041\\/\\u2028\\ud83d\\ude00"'),
    "byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "latin-1": '{"model":"m","messages":[{"role":"user","content":"é"}]}'.encode("latin-1"),
    "spaces": b' \r\n\t{ "model" : "m" ,\n "messages" : [ { "role" : "user" , "content" : "a" } ] } \n',
    "something behind": WHOLE + b"garbage",
    "two documents": WHOLE + b"\n" + WHOLE,
    "unknown roles": b'{"model":"m","messages":[{"role":"critic","content":[{"type":"odd"}]},{"role":7}]}',
    "form": b"model=m&messages=none",
    "binary": bytes(range(256)) * 10,
    "deep": wrap("[" * 5_000 + "]" * 5_000),
    "deep envelope": b'{"model":"m","messages":[],"x":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_000 + b"}",
    "stream is not a flag": make_chat(stream="yes", stream_options=[]),
    "escaped keys": b'{"m\\u006fdel":"m","mess\\u0061ges":[{"role":"user","content":"a"}]}',
}


@pytest.mark.parametrize("name", ODD_BODIES)
async def test_a_body_that_we_cannot_or_need_not_read_passes(wire: Wire, name: str) -> None:
    await sees(wire, iter([(name, ODD_BODIES[name])]))


@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 20 << 20])
async def test_large_bodies_pass(wire: Wire, size: int) -> None:
    message = {"role": "user", "content": "word " * (size // 5)}
    await sees(wire, iter([("large", make_chat(model="unknown", messages=[message]))]))


TARGETS = [
    "/v1/models",
    "/v1/models?a=1&b=%20c&a=2&&=",
    "/v1/models/gpt%2F4o",
    "/v1/models/a%00b",
    "/v1/models/%E4%BD%A0%2e.txt",
    "/v1/a/~user/b;c=d,e/@:!$&'()*+",
    "/v1/a//b///c",
    "/v1/a%20b+c%2Bd",
    "/v1/x?redirect=http://evil.test/../../a",
    "/v1/x?q=..%2f..",
    "/v1/a%zz",
    '/v1/"<>|{}^`',
    "/v1/a...b/..c/d..",
    "/v1/%252e%252e/x",
    "/v1/files/a.b/content",
    "/v1/" + "long/" * 3_000,
    "/v1/x?" + "y" * 20_000,
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:40])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_unknown_paths_reach_the_upstream_as_they_are(wire: Wire, target: str, method: str) -> None:
    got = await wire.ask(render_request(target, method=method))
    assert got.status == 200
    assert [seen.target for seen in wire.upstream.received] == [target.encode()]


PLACES = [
    ("/models", "/v1/models"),
    ("/v1", "/v1"),
    ("/v1?a", "/v1?a"),
    ("/v1/", "/v1/"),
    ("/", "/v1/"),
    ("/v10/x", "/v1/v10/x"),
    ("/v1x", "/v1/v1x"),
    ("/v1/v1/x", "/v1/v1/x"),
    ("/v2/x", "/v1/v2/x"),
    ("//v1/x", "/v1//v1/x"),
    ("/chat/completions", "/v1/chat/completions"),
]


@pytest.mark.parametrize(("target", "expected"), PLACES)
async def test_the_path_goes_behind_the_base_url(wire: Wire, target: str, expected: str) -> None:
    got = await wire.ask(render_request(target, method="GET"))
    assert got.status == 200
    assert [seen.target for seen in wire.upstream.received] == [expected.encode()]


async def test_the_question_mark_of_an_empty_query_passes(wire: Wire) -> None:
    await wire.ask(render_request("/v1/models?", method="GET"))
    assert [seen.target for seen in wire.upstream.received] == [b"/v1/models?"]


async def test_bytes_that_no_url_may_hold_pass_or_are_refused(wire: Wire) -> None:
    """Never changed on the way."""
    target = "/v1/caf\xe9".encode("latin-1")
    got = await wire.ask(render_request(target, method="GET"))
    assert got.status == 400 or [seen.target for seen in wire.upstream.received] == [target]


METHODS = [
    "GET",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "PROPFIND",
    "MKCOL",
    "REPORT",
    "SEARCH",
    "PURGE",
    "TRACE",
]


@pytest.mark.parametrize("path", ["/v1/files/1", CHAT])
@pytest.mark.parametrize("method", METHODS)
async def test_other_methods_are_relayed(wire: Wire, method: str, path: str) -> None:
    has_body = method in ("PUT", "PATCH", "DELETE")
    body = b"\x00\xffbody" if has_body else b""
    got = await wire.ask(render_request(path, body, method=method))
    assert got.status == 200
    [seen] = wire.upstream.received
    assert (seen.head.line.split(b" ")[0], seen.body) == (method.encode(), body)
    assert seen.head.values("content-type") == []


async def test_no_body_stays_no_body(wire: Wire) -> None:
    await wire.ask(b"DELETE /v1/files/1 HTTP/1.1\r\nHost: a\r\n\r\n")
    await wire.ask(b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    assert [seen.body for seen in wire.upstream.received] == [b"", b""]
    assert wire.upstream.received[1].head.values("content-length") == [b"0"]


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
async def test_unknown_paths_keep_the_length_of_their_body(wire: Wire, method: str) -> None:
    body = b"x" * 100_000
    await wire.ask(render_request("/v1/files", body, method=method))
    [seen] = wire.upstream.received
    assert seen.body == body
    assert seen.head.values("content-length") == [b"100000"]
    assert seen.head.values("transfer-encoding") == []


CODINGS = {"gzip": gzip.compress, "deflate": zlib.compress, "exotic": lambda data: data[::-1]}


@pytest.mark.parametrize("coding", CODINGS)
async def test_compressed_requests_pass_as_they_are(wire: Wire, coding: str) -> None:
    body = CODINGS[coding](make_chat(stream=True, stream_options={"include_usage": True}))
    got = await wire.ask(render_request(CHAT, body, [("Content-Encoding", coding)]))
    [seen] = wire.upstream.received
    assert (got.status, seen.body) == (200, body)
    assert seen.head.values("content-encoding") == [coding.encode()]


async def test_compressed_requests_are_understood(wire: Wire) -> None:
    """The response has a plan, so the body was read. A large body is unpacked outside of the event loop."""
    for words in (1, 50_000):
        body = gzip.compress(make_chat(messages=[{"role": "user", "content": "word " * words}]))
        got = await wire.ask(render_request(CHAT, body, [("Content-Encoding", "gzip")]))
        assert got.own("plan") == "passthrough"


async def test_a_body_that_does_not_match_its_content_encoding_passes(wire: Wire) -> None:
    got = await wire.ask(render_request(CHAT, WHOLE, [("Content-Encoding", "gzip")]))
    assert (got.status, wire.upstream.received[0].body) == (200, WHOLE)


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_a_client_may_ask_before_it_sends(wire: Wire, path: str) -> None:
    request = render_request(path, WHOLE, [("Expect", "100-continue"), *JSON_HEADERS])
    head, _, body = request.partition(b"\r\n\r\n")
    async with wire.connecting() as connection:
        await connection.send(head + b"\r\n\r\n")
        line = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 30)
        assert line == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(body)
        got = await connection.receive()
    assert (got.status, got.body) == (200, b"{}")
    [seen] = wire.upstream.received
    assert (seen.body, seen.head.values("expect")) == (WHOLE, [])


def render_chunked(path: str, body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_chunked_requests_pass(wire: Wire, path: str, size: int) -> None:
    got = await wire.ask(render_chunked(path, STREAMED, size))
    assert got.status == 200
    assert [seen.body for seen in wire.upstream.received] == [STREAMED]


async def test_a_request_that_breaks_off_is_not_sent_as_if_it_were_whole(wire: Wire) -> None:
    for request in (render_chat(WHOLE)[:-5], render_chunked("/v1/files", WHOLE, 7)[:-9]):
        async with wire.connecting() as connection:
            await connection.send(request)
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    assert not any(seen.is_whole for seen in wire.upstream.received)


async def test_several_requests_share_one_connection(wire: Wire) -> None:
    async with wire.connecting() as connection:
        for number in range(30):
            body = make_chat(user=str(number))
            wire.upstream.script = writing(render_answer(b'{"n":%d}' % number))
            assert (await connection.ask(render_chat(body))).body == b'{"n":%d}' % number
            assert (await connection.ask(render_request("/v1/models", method="GET"))).status == 200
            assert wire.upstream.received[-2].body == body


async def test_fifty_at_a_time_do_not_get_mixed_up(wire: Wire) -> None:
    async def echo(received: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(render_answer(received.body))

    wire.upstream.script = echo
    before = wire.upstream.connections
    bodies = [make_chat(user=str(number), messages=[]) for number in range(50)]
    answers = await asyncio.gather(*(wire.chat(body) for body in bodies))
    assert [got.body for got in answers] == bodies
    assert wire.upstream.connections - before <= 50


async def test_a_body_over_the_limit_is_refused_in_openais_shape() -> None:
    async with opening_wire(more="listen: {max_body_bytes: 1000}\n") as wire:
        long = make_chat(messages=[{"role": "user", "content": "x" * 5_000_000}])
        for request in (render_chat(long), render_chunked(CHAT, long, 50_000)):
            got = await ask(wire.port, request)
            assert (got.status, json.loads(got.body)["error"]["type"]) == (413, "invalid_request_error")
        assert wire.upstream.received == []
        # A relayed body is not held in memory, so it has no limit. A small body is below the limit.
        assert (await ask(wire.port, render_request("/v1/files", long))).status == 200
        assert (await ask(wire.port, render_chat(WHOLE))).status == 200


async def test_a_bomb_is_not_unpacked(caplog: pytest.LogCaptureFixture) -> None:
    async with opening_wire(more="listen: {max_body_bytes: 100000}\n") as wire:
        body = gzip.compress(make_chat(messages=[{"role": "user", "content": "x" * 50_000_000}]))
        got = await ask(wire.port, render_request(CHAT, body, [("Content-Encoding", "gzip")]))
        assert (got.status, got.own("plan"), wire.upstream.received[0].body) == (200, None, body)
    reason = "more than 100000 bytes when decoded"
    assert got.own("warning") == f"not read: {reason}"
    assert f"a request passes unread: {reason}" in caplog.text
