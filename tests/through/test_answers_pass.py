"""Responses of the upstream come out byte for byte: every recording, however it is cut, and odd ones."""

import asyncio
import gzip
import json
import zlib
from random import Random

import brotli
import pytest
import zstandard

from tests.toy.raw import (
    Ending,
    Received,
    Script,
    end,
    in_turn,
    render_answer,
    render_chunks,
    render_request,
    writing,
)
from tests.toy.recorded import RECORDINGS, RecordedResponse, cut, cut_anywhere, load_responses, requires_cases
from tests.toy.wire import (
    CHAT_PATH,
    JSON_HEADERS,
    MESSAGES_PATH,
    PATHS,
    RESPONSES_PATH,
    STREAMED,
    WHOLE,
    Wire,
    render_chat,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SINGLE_READS = 500
INPUT = b'{"model":"m","input":"Hello."}'


def one_byte_chunks(answer: RecordedResponse) -> list[bytes]:
    """Chunks of one byte; the beginning and the end of the body one a write, the middle many a write."""
    head, *chunks = render_chunks(cut(answer.body, 1), [("Content-Type", answer.content_type)])
    if len(chunks) <= 2 * _SINGLE_READS:
        return [head, *chunks]
    middle = chunks[_SINGLE_READS:-_SINGLE_READS]
    return [head, *chunks[:_SINGLE_READS], *in_bursts(middle, 97), *chunks[-_SINGLE_READS:]]


def seven_byte_chunks(answer: RecordedResponse) -> list[bytes]:
    head, *chunks = render_chunks(cut(answer.body, 7), [("Content-Type", answer.content_type)])
    return [head, *in_bursts(chunks, 9)]


def random_segments(answer: RecordedResponse) -> list[bytes]:
    """Cuts inside the framing of chunks, too."""
    pieces = cut_anywhere(answer.body, seed=len(answer.body))
    whole = b"".join(render_chunks(pieces, [("Content-Type", answer.content_type)]))
    return cut_anywhere(whole, seed=len(answer.body) + 1)


def in_bursts(chunks: list[bytes], size: int) -> list[bytes]:
    return [b"".join(chunks[start : start + size]) for start in range(0, len(chunks), size)]


CUTS = {"1-byte": one_byte_chunks, "7-bytes": seven_byte_chunks, "random": random_segments}


@requires_cases(RECORDINGS, "recorded answers")
@pytest.mark.parametrize(
    ("how", "most"),
    [
        ("1-byte", 6),
        pytest.param("1-byte", RECORDINGS, marks=pytest.mark.exhaustive),
        ("7-bytes", RECORDINGS // 3),
        ("random", RECORDINGS),
    ],
)
async def test_every_recorded_response_comes_out_unchanged(wire: Wire, how: str, most: int) -> None:
    answers = load_responses()
    assert len(answers) == RECORDINGS
    answers = Random(most).sample(answers, most)
    async with wire.connecting() as connection:
        for answer in answers:
            wire.upstream.script = writing(*CUTS[how](answer))
            got = await connection.ask(render_chat(STREAMED if answer.is_stream else WHOLE))
            assert (got.status, got.is_whole) == (200, True), answer.file
            assert got.body == answer.body, answer.file
            assert got.end_to_end == ((b"Content-Type", answer.content_type.encode()),), answer.file


ODD_BODIES = [
    b"",
    b"{",
    b"null",
    b"\x00\xff\xfe",
    b'{"error": "no object"}',
    b'{"error":{"message":"stream_options"}}',
    b"<html>502</html>",
    b"\xef\xbb\xbf{}",
    b"x" * 100_000,
]


STATUSES = [200, 201, 299, 300, 400, 401, 402, 403, 404, 409, 413, 418, 422, 429, 451, 500, 502, 503, 529]


@pytest.mark.parametrize("status", STATUSES)
async def test_any_status_with_any_body_comes_out_unchanged(wire: Wire, status: int) -> None:
    headers = [("Content-Type", "text/odd"), ("Retry-After", "7")]
    for body in ODD_BODIES:
        for path, asked in ((CHAT_PATH, STREAMED), (MESSAGES_PATH, WHOLE), (RESPONSES_PATH, INPUT)):
            wire.upstream.script = writing(render_answer(body, headers, f"HTTP/1.1 {status} So so"))
            got = await wire.ask(render_request(path, asked, JSON_HEADERS))
            assert got.head.line == f"HTTP/1.1 {status} So so".encode()
            assert (got.body, got.is_whole) == (body, True)
            assert got.end_to_end == ((b"Content-Type", b"text/odd"), (b"Retry-After", b"7"))
            assert got.head.values("content-length") == [str(len(body)).encode()]
    assert len(wire.upstream.received) == 3 * len(ODD_BODIES)


async def test_the_reason_is_the_upstreams(wire: Wire) -> None:
    for line in ("HTTP/1.1 200 ", "HTTP/1.1 200", "HTTP/1.1 404 Not Here, Sorry", "HTTP/1.1 599 ?!"):
        wire.upstream.script = writing(render_answer(line=line))
        got = await wire.chat(WHOLE)
        assert got.head.line.rstrip() == line.rstrip().encode()


CODINGS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
    "exotic": lambda data: data[::-1],
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_compressed_answers_come_out_as_compressed(wire: Wire, coding: str, is_streamed: bool) -> None:
    plain = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n' * 50
    body = CODINGS[coding](plain)
    headers = [("Content-Type", "text/event-stream"), ("Content-Encoding", coding)]
    wire.upstream.script = writing(*render_chunks(cut(body, 7), headers))
    request = render_request(body=STREAMED if is_streamed else WHOLE, headers=[("Accept-Encoding", coding)])
    got = await wire.ask(request)
    assert (got.body, got.is_whole) == (body, True)
    assert got.head.values("content-encoding") == [coding.encode()]
    assert wire.upstream.received[0].head.values("accept-encoding") == [coding.encode()]


async def test_a_response_that_does_not_match_its_content_encoding_comes_out(wire: Wire) -> None:
    headers = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    wire.upstream.script = writing(render_answer(b"this is not gzip", headers))
    got = await wire.chat(WHOLE)
    assert (got.body, got.is_whole) == (b"this is not gzip", True)


def pieces_of_a_broken_stream(rng: Random) -> list[bytes]:
    events = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number for number in range(20)]
    head, *chunks, _ = render_chunks(events)
    return [head, *chunks[: rng.randrange(1, 20)]]


@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_broken_off_stream_breaks_off(wire: Wire, ending: Ending, path: str) -> None:
    for seed in range(5):
        pieces = pieces_of_a_broken_stream(Random(seed))
        wire.upstream.script = writing(*pieces, then=ending)
        got = await wire.ask(render_request(path, STREAMED))
        assert got.status == 200
        assert not got.is_whole


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_broken_off_answer_with_a_length_breaks_off(wire: Wire, ending: Ending) -> None:
    wire.upstream.script = writing(render_answer(b"{}" * 500)[:-300], then=ending)
    got = await wire.chat(WHOLE)
    assert not got.is_whole


async def test_the_part_before_a_break_is_delivered(wire: Wire) -> None:
    """Clients show the part that arrived, and some continue from there."""
    head, *chunks, _ = render_chunks([b"data: 1\n\n", b"data: 2\n\n"])
    wire.upstream.script = writing(head, *chunks, then="close")
    got = await wire.chat(STREAMED)
    assert (got.body, got.is_whole) == (b"data: 1\n\ndata: 2\n\n", False)


async def test_an_answer_that_ends_with_its_connection_comes_out_whole(wire: Wire) -> None:
    wire.upstream.script = writing(
        b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nold ", b"school", then="close"
    )
    got = await wire.chat(WHOLE)
    assert (got.body, got.is_whole) == (b"old school", True)


async def test_a_client_of_http_1_0_sees_a_broken_answer_as_broken(wire: Wire) -> None:
    """Its only end of a stream is the end of the connection: that must not look clean."""
    head, *chunks, _ = render_chunks([b"data: 1\n\n"])
    wire.upstream.script = writing(head, *chunks, then="close")
    got = await wire.ask(render_chat(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert got.status == 200
    assert not got.is_whole


async def test_a_client_of_http_1_0_gets_a_stream_whole(wire: Wire) -> None:
    wire.upstream.script = writing(*render_chunks([b"data: 1\n\n", b"data: [DONE]\n\n"]))
    got = await wire.ask(render_chat(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert (got.body, got.is_whole) == (b"data: 1\n\ndata: [DONE]\n\n", True)
    assert got.head.values("transfer-encoding") == []


@pytest.mark.parametrize("path", ["/v1/models", CHAT_PATH, "/"])
async def test_head_keeps_its_length_and_has_no_body(wire: Wire, path: str) -> None:
    async with wire.connecting() as connection:
        for length in ("0", "1234", "1234"):
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
            wire.upstream.script = writing(head.encode())
            got = await connection.ask(render_request(path, method="HEAD"))
            assert (got.status, got.head.values("content-length")) == (200, [length.encode()])
    assert wire.upstream.received[0].head.line.startswith(b"HEAD ")


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_answers_without_a_body_stay_so(wire: Wire, status: int, method: str) -> None:
    headers = 'ETag: "a"\r\nX-Odd: 1\r\n'
    wire.upstream.script = writing(f"HTTP/1.1 {status} Nothing\r\n{headers}\r\n".encode())
    async with wire.connecting() as connection:
        for _ in range(2):
            got = await connection.ask(render_request("/v1/models", method=method))
            assert got.head.line == f"HTTP/1.1 {status} Nothing".encode()
            assert got.end_to_end == ((b"ETag", b'"a"'), (b"X-Odd", b"1"))
            assert got.head.values("transfer-encoding") == got.head.values("content-length") == []


async def test_an_unmodified_response_may_have_a_length(wire: Wire) -> None:
    """RFC 9110 §15.4.5: the length that a GET would have had."""
    wire.upstream.script = writing(b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 99\r\n\r\n')
    got = await wire.ask(render_request("/v1/models", method="GET"))
    assert (got.status, got.head.values("content-length")) == (304, [b"99"])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_the_clients_business(wire: Wire, status: int) -> None:
    headers = [("Location", "http://127.0.0.1:1/elsewhere"), ("Set-Cookie", "a=1")]
    wire.upstream.script = writing(render_answer(b"moved", headers, f"HTTP/1.1 {status} Moved"))
    got = await wire.chat(WHOLE)
    assert (got.status, got.body) == (status, b"moved")
    assert got.head.values("location") == [b"http://127.0.0.1:1/elsewhere"]
    assert len(wire.upstream.received) == 1


@pytest.mark.parametrize("count", [1, 31, 10_000])
async def test_interim_answers_do_not_get_in_the_way(wire: Wire, count: int) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    wire.upstream.script = writing(early * count + render_answer(b'{"a":1}'))
    got = await wire.chat(WHOLE)
    assert (got.status, got.body) == (200, b'{"a":1}')


async def test_usage_in_the_body_is_the_upstreams_own(wire: Wire) -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":1e3,"total_tokens":-1,"x":1.10,"x":1.1}}'
    wire.upstream.script = writing(render_answer(body))
    assert (await wire.chat(WHOLE)).body == body


OK = b"HTTP/1.1 200 OK"
# Heads whose meaning or whose end is not clear, and what is said of them.
UNCLEAR = {
    "answered in HTTP/2.0": b"HTTP/2.0 200 OK",
    "answered with the status 099": b"HTTP/1.1 099 Odd",
    "switched protocols (101)": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket",
    "a header whose name is not valid": OK + b"\r\nContent-Length : 2",
    "a Content-Length that is not valid": OK + b"\r\nContent-Length: 18446744073709551615",
    "a Transfer-Encoding other than chunked": OK + b"\r\nTransfer-Encoding: gzip",
    "sent something that is not HTTP": OK + b"\r\nContent-Length: 2\r\nContent-Length: 3",
    "a head that is too large": OK
    + b"\r\n"
    + b"\r\n".join(b"X-%d: %b" % (n, b"y" * 60_000) for n in range(5)),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reason", UNCLEAR)
async def test_an_answer_that_could_be_read_in_two_ways_is_refused(
    wire: Wire, reason: str, path: str
) -> None:
    """Its connection is not used again, or the next client would get the rest."""
    before = wire.upstream.connections
    wire.upstream.script = in_turn(writing(UNCLEAR[reason] + b"\r\n\r\nno"), writing(render_answer(b"next")))
    got = await wire.ask(render_request(path, WHOLE))
    assert got.status == 502
    assert reason in json.loads(got.body)["error"]["message"]
    assert (await wire.ask(render_request(path, WHOLE))).body == b"next"
    assert wire.upstream.connections <= before + 2


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (OK + b"\r\nTransfer-Encoding: Chunked", b"2\r\n{}\r\n0\r\n\r\n"),
        (b"HTTP/1.0 200", b"{}"),
        (OK + b"\r\n!#$%&'*+-.^_`|~09azAZ: y\r\nX-Old: caf\xe9", b"{}"),
    ],
)
async def test_a_clear_answer_in_an_odd_form_comes_out(wire: Wire, head: bytes, body: bytes) -> None:
    wire.upstream.script = writing(head + b"\r\n\r\n" + body, then="close")
    got = await wire.chat(WHOLE)
    assert (got.status, got.body, got.is_whole) == (200, b"{}", True)


async def test_an_answer_of_another_gateway_is_refused_as_a_loop(wire: Wire) -> None:
    wire.upstream.script = writing(render_answer(b"{}", [("x-gateway-plan", "passthrough")]))
    for path in PATHS:
        got = await wire.ask(render_request(path, WHOLE))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (508, "gateway_loop")


async def test_answers_that_end_with_their_connection_end_cleanly_or_not_at_all(wire: Wire) -> None:
    for ending, is_whole in (("close", True), ("reset", False)):
        wire.upstream.script = half_then(ending)
        got = await wire.ask(render_request("/v1/other", WHOLE))
        assert (got.body, got.is_whole) == (b"half", is_whole)


def half_then(ending: str) -> Script:
    async def write(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"\r\n\r\nhalf")
        await writer.drain()
        # Read before the end comes.
        await asyncio.sleep(0.05)
        await end(writer, "close" if ending == "close" else "reset")

    return write
