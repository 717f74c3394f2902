"""Requests reach the upstream byte for byte: bodies, paths, methods."""

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import brotli
import pytest
import zstandard

from tests.toy.raw import ask, render_answer, render_request
from tests.toy.recorded import JSON_CASES, load_json_cases, requires_cases
from tests.toy.wire import (
    CHAT_PATH,
    JSON_HEADERS,
    KEY,
    MESSAGES_PATH,
    RESPONSES_PATH,
    STREAMED,
    WHOLE,
    Wire,
    make_chat,
    opening_wire,
    render_chat,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, FILES = CHAT_PATH, "/v1/files"


async def sees(wire: Wire, bodies: Iterator[tuple[str, bytes]], path: str = CHAT) -> None:
    """Every body reaches the upstream as it is, and its answer comes back."""
    async with wire.connecting() as connection:
        for name, body in bodies:
            got = await connection.ask(render_request(path, body, JSON_HEADERS))
            assert (got.status, got.body) == (200, b"{}"), (name, got)
            assert wire.upstream.received[-1].body == body, name


# The value in every place that a client fills.
TEMPLATES = [
    (CHAT, b"@"),
    (CHAT, b'{"odd":@,"model":"m","messages":[{"role":"user","content":"a","odd":@}],"max_tokens":9,"x":@}'),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":@}]}'),
    (CHAT, b'{"model":"m","messages":@}'),
    (CHAT, b'{"model":@,"messages":[{"role":"user","content":"a"}]}'),
    (CHAT, b'{"model":"m","messages":[{"role":"tool","tool_call_id":@,"content":"a"}]}'),
    (CHAT, b'{"model":"m","messages":[{"role":"assistant","tool_calls":@}]}'),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":@}'),
    (CHAT, b'{"model":"m","messages":[],"stream":@,"max_tokens":@,"stream_options":{"include_usage":true}}'),
    (RESPONSES_PATH, b'{"model":"m","input":@}'),
    (RESPONSES_PATH, b'{"model":"m","input":[@]}'),
    (RESPONSES_PATH, b'{"model":"m","input":[{"role":"user","content":@}],"store":@}'),
    (
        RESPONSES_PATH,
        b'{"model":"m","input":[{"type":"reasoning","summary":@},{"type":"function_call","call_id":"a","x":@}]}',
    ),
    (
        RESPONSES_PATH,
        b'{"model":"m","input":[{"type":"function_call_output","call_id":@,"output":@}],"instructions":@}',
    ),
    (RESPONSES_PATH, b'{"model":"m","input":"x","previous_response_id":@,"conversation":@}'),
    (RESPONSES_PATH, b'{"model":"m","input":[{"type":"item_reference","id":@}]}'),
    (MESSAGES_PATH, b'{"model":"m","max_tokens":@,"system":@,"messages":[{"role":"user","content":"a"}]}'),
    (MESSAGES_PATH, b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[@]}],"tools":@}'),
]


@requires_cases(JSON_CASES, "JSON cases")
@pytest.mark.parametrize(("path", "template"), TEMPLATES)
async def test_every_json_case_passes_in_every_place(wire: Wire, path: str, template: bytes) -> None:
    cases = load_json_cases()
    assert len(cases) == JSON_CASES
    await sees(wire, ((name, template.replace(b"@", case)) for name, case in cases), path)


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


# Names of what is not known here, and items of tomorrow.
ODD_RESPONSES = {
    "unknown answer": b'{"model":"m","previous_response_id":"resp_x","input":"on"}',
    "conversation": b'{"model":"m","conversation":"conv_1","input":[{"role":"user","content":"on"}]}',
    "unknown items": b'{"model":"m","input":[{"type":"of_tomorrow","x":1.10},{"type":"compaction_trigger"}]}',
    "unknown reference": b'{"model":"m","input":[{"type":"item_reference","id":"rs_x"}]}',
    "prompt template": b'{"prompt":{"id":"pmpt_1"},"input":"on"}',
    "no input": b'{"model":"m"}',
    "repeated keys": b'{"model":"m","input":"x","input":"y"}',
}


async def test_a_body_that_we_cannot_or_need_not_read_passes(wire: Wire) -> None:
    await sees(wire, iter(ODD_BODIES.items()))
    await sees(wire, iter(ODD_RESPONSES.items()), RESPONSES_PATH)
    await sees(wire, iter(ODD_BODIES.items()), MESSAGES_PATH)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/input_tokens"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1?x=1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/completions"),
    ],
)
async def test_endpoints_beside_the_three_are_only_relayed(wire: Wire, method: str, path: str) -> None:
    body = (
        b'{"input":[{"role":"user","content":"x"}],"previous_response_id":"a"}' if method == "POST" else b""
    )
    got = await wire.ask(render_request(path, body, method=method))
    [seen] = wire.upstream.received
    assert (seen.head.line, seen.body) == (f"{method} {path} HTTP/1.1".encode(), body)
    assert not any(name.lower().startswith(b"x-gateway") for name, _ in got.head.headers)


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


async def test_unknown_paths_reach_the_upstream_as_they_are(wire: Wire) -> None:
    for target in TARGETS:
        for method in ("GET", "POST"):
            assert (await wire.ask(render_request(target, method=method))).status == 200
            assert wire.upstream.received[-1].target == target.encode()


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


async def test_the_path_goes_behind_the_base_url(wire: Wire) -> None:
    for target, expected in PLACES:
        assert (await wire.ask(render_request(target, method="GET"))).status == 200
        assert wire.upstream.received[-1].target == expected.encode()


@pytest.mark.parametrize("path", ["//chat/completions", "/v1//chat/completions/", "/v1/v1/chat/completions"])
async def test_a_path_with_a_slash_or_a_version_too_many_is_served(wire: Wire, path: str) -> None:
    got = await wire.ask(render_request(path, WHOLE, JSON_HEADERS))
    assert (got.own("plan"), wire.upstream.received[0].target) == ("passthrough", CHAT.encode())


async def test_bytes_that_no_url_may_hold_pass_or_are_refused(wire: Wire) -> None:
    """Never changed on the way."""
    target = "/v1/caf\xe9".encode("latin-1")
    got = await wire.ask(render_request(target, method="GET"))
    assert got.status == 400 or [seen.target for seen in wire.upstream.received] == [target]


METHODS = (
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
)


@pytest.mark.parametrize("path", ["/v1/files/1", CHAT])
async def test_other_methods_are_relayed(wire: Wire, path: str) -> None:
    for method in METHODS:
        body = b"\x00\xffbody" if method in ("PUT", "PATCH", "DELETE") else b""
        assert (await wire.ask(render_request(path, body, method=method))).status == 200
        seen = wire.upstream.received[-1]
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


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
}


@pytest.mark.parametrize("coding", CODINGS)
async def test_compressed_requests_pass_as_they_are_and_are_understood(wire: Wire, coding: str) -> None:
    """The response has a plan, so the body was read. A large body is unpacked outside of the event loop."""
    for words in (1, 50_000):
        body = CODINGS[coding](make_chat(messages=[{"role": "user", "content": "word " * words}]))
        got = await wire.ask(render_request(CHAT, body, [("Content-Encoding", coding)]))
        seen = wire.upstream.received[-1]
        assert (got.status, got.own("plan"), seen.body) == (200, "passthrough", body)
        assert seen.head.values("content-encoding") == [coding.encode()]


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "exotic", "gzip, exotic"])
async def test_a_body_that_cannot_be_decoded_passes(wire: Wire, coding: str) -> None:
    got = await wire.ask(render_request(CHAT, b"odd \x00\xff", [("Content-Encoding", coding)]))
    assert (got.status, wire.upstream.received[0].body) == (200, b"odd \x00\xff")


@pytest.mark.parametrize("path", [CHAT, FILES])
async def test_a_client_may_ask_before_it_sends_each_time(wire: Wire, path: str) -> None:
    request = render_request(path, WHOLE, [("Expect", "100-Continue"), *JSON_HEADERS])
    head, _, body = request.partition(b"\r\n\r\n")
    async with wire.connecting() as connection:
        for _ in range(2):
            await connection.send(head + b"\r\n\r\n")
            line = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 30)
            assert line == b"HTTP/1.1 100 Continue\r\n\r\n"
            await connection.send(body)
            got = await connection.receive()
            assert (got.status, got.body) == (200, b"{}")
            seen = wire.upstream.received[-1]
            assert (seen.body, seen.head.values("expect")) == (WHOLE, [])


@pytest.mark.parametrize("path", [CHAT, FILES])
async def test_a_client_of_an_older_version_gets_nothing_before_its_response(wire: Wire, path: str) -> None:
    request = render_request(path, WHOLE, [("Expect", "100-continue"), *JSON_HEADERS])
    head, _, body = request.replace(b"HTTP/1.1", b"HTTP/1.0").partition(b"\r\n\r\n")
    async with wire.connecting() as connection:
        await connection.send(head + b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(body)
        assert (await connection.reader.readline()).endswith(b" 200 OK\r\n")


def render_chunked(path: str, body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("path", [CHAT, FILES])
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


async def test_a_body_over_the_limit_is_refused_and_not_waited_for() -> None:
    async with opening_wire(more="listen: {max_body_bytes: 1000}\n") as wire:
        long = make_chat(messages=[{"role": "user", "content": "x" * 5_000_000}])
        for request in (render_chat(long), render_chunked(CHAT, long, 50_000)):
            got = await ask(wire.port, request)
            error = json.loads(got.body)["error"]
            assert (got.status, error["code"], error["type"]) == (
                413,
                "request_too_large",
                "invalid_request_error",
            )
        got = await ask(wire.port, render_request(MESSAGES_PATH, long, JSON_HEADERS))
        assert (got.status, json.loads(got.body)["type"]) == (413, "error")
        # Whoever announces too much is not asked for it.
        expecting = render_request(CHAT, long, [("Expect", "100-continue")]).partition(b"\r\n\r\n")[0]
        assert (await ask(wire.port, expecting + b"\r\n\r\n")).status == 413
        assert wire.upstream.received == []
        # A relayed body is not held in memory, so it has no limit. A small body is below the limit.
        assert (await ask(wire.port, render_request(FILES, long))).status == 200
        at_the_limit = make_chat(user="x" * (1_000 - len(make_chat(user=""))))
        assert len(at_the_limit) == 1_000
        assert (await ask(wire.port, render_chat(at_the_limit))).status == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
async def test_a_bomb_passes_unread(coding: str, caplog: pytest.LogCaptureFixture) -> None:
    async with opening_wire(more="listen: {max_body_bytes: 100000}\n") as wire:
        body = CODINGS[coding](make_chat(messages=[{"role": "user", "content": "x" * 5_000_000}]))
        got = await ask(wire.port, render_request(CHAT, body, [("Content-Encoding", coding)]))
        assert (got.status, got.own("plan"), wire.upstream.received[0].body) == (200, None, body)
    reason = "more than 100000 bytes when decoded"
    assert got.own("warning") == f"not read: {reason}"
    assert f"a request passes unread: {reason}" in caplog.text


@pytest.mark.parametrize("headers", ["true", "false"])
async def test_a_body_beyond_a_bound_passes_unread_with_a_warning(
    headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = f"bounds: {{messages: 2}}\nresponse_headers: {headers}\n"
    body = make_chat(messages=[{"role": "user", "content": "secret"}] * 3)
    async with opening_wire(more=more) as wire:
        for path in (CHAT, MESSAGES_PATH, f"{MESSAGES_PATH}/count_tokens"):
            got = await ask(wire.port, render_request(path, body, JSON_HEADERS))
            wanted = "not read: more than 2 messages" if headers == "true" else None
            assert (got.own("warning"), got.own("plan")) == (wanted, None)
        assert [seen.body for seen in wire.upstream.received] == [body] * 3
    assert caplog.text.count("a request passes unread: more than 2 messages") == 3
    assert "secret" not in caplog.text


REQUESTS_LOG = "gateway.requests"


async def read_log(caplog: pytest.LogCaptureFixture, level: int, *requests: bytes) -> list[str]:
    caplog.set_level(level, REQUESTS_LOG)
    async with opening_wire(more='models: [{match: "known", context: 4000}]\n') as wire:
        for request in requests:
            await ask(wire.port, request)
        await wire.product.at_rest()
    return [record.getMessage() for record in caplog.records if record.name == REQUESTS_LOG]


@pytest.mark.parametrize(
    ("model", "window"),
    [("known", "(configured)"), ("gpt-4o", "window 128,000 (table)"), ("nobodys", "window - (unknown)")],
)
async def test_the_log_names_a_conversation_once_with_its_window(
    model: str, window: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = render_chat(make_chat(model=model))
    (line,) = await read_log(caplog, logging.INFO, request, request)
    assert line.startswith("conversation ") and " tenant key:" in line and line.endswith(window)


async def test_a_line_of_the_log_shows_no_content_and_cannot_be_forged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = make_chat(
        model="x\n2026-01-01 ERROR hacked\u2028\x1b[31m" + "y" * 150,
        messages=[{"role": "user", "content": "hunter2"}],
    )
    lines = await read_log(
        caplog,
        logging.DEBUG,
        render_request(f"{CHAT}?key=hunter2", body, JSON_HEADERS),
        render_request(f"{FILES}?key=hunter2", b"hunter2", JSON_HEADERS),
        render_request("/v1/../x?key=hunter2", b"{}", JSON_HEADERS),
        # A conversation where none is understood.
        render_request("/other/v1/chat/completions", WHOLE, JSON_HEADERS),
    )
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    assert not any(secret in line for line in lines for secret in ("hunter2", KEY))
    ended = [line for line in lines if " status=" in line]
    plans = ["status=200 plan=passthrough", "status=200 plan=relayed", "status=400 plan=local"]
    assert all(plan in line for plan, line in zip(plans, ended, strict=False)) and len(ended) == 4
    assert sum("compare the client's base_url" in line for line in lines) == 1
