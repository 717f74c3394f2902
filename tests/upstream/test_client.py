"""How a request goes to an upstream, and on which connection: sockets on both sides."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core.errors import UpstreamFailed, UpstreamStalled
from gateway.upstream.response import UpstreamResponse
from tests.builders.upstream import Requester, make_call, make_upstream, requesting
from tests.wire_through.raw import RawUpstream, Received, in_turn, render_answer, writing

_MAX_BYTES = 1 << 30


@pytest.fixture
async def raw() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


@pytest.fixture
async def requester(raw: RawUpstream) -> AsyncIterator[Requester]:
    async with requesting(raw.base_url) as requester:
        yield requester


async def read(response: UpstreamResponse) -> bytes:
    return await response.read_bounded(_MAX_BYTES)


async def pieces_of(body: bytes) -> AsyncIterator[bytes]:
    for byte in body:
        yield bytes([byte])
        await asyncio.sleep(0)


async def test_the_request_goes_out_byte_for_byte(raw: RawUpstream, requester: Requester) -> None:
    """With an empty query, two names that differ in case, and bytes that are not UTF-8."""
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    headers = [("X-A", "1"), ("x-a", "2"), ("X-Old", odd), ("X-A", "3")]
    response = await requester.request("/v1/a%2fb?", headers=headers)
    assert (response.status, await read(response)) == (200, b"{}")
    [seen] = raw.received
    assert (seen.head.line, seen.body) == (b"POST /v1/a%2fb? HTTP/1.1", b"{}")
    assert seen.head.headers == (
        (b"Host", f"127.0.0.1:{raw.port}".encode()),
        (b"X-A", b"1"),
        (b"x-a", b"2"),
        (b"X-Old", b"caf\xe9"),
        (b"X-A", b"3"),
        (b"Content-Length", b"2"),
    )


@pytest.mark.parametrize(
    ("method", "framing"),
    [
        ("GET", ()),
        ("HEAD", ()),
        ("POST", ((b"Content-Length", b"0"),)),
        ("DELETE", ((b"Content-Length", b"0"),)),
    ],
)
async def test_a_request_without_a_body_is_framed_as_its_method_wants(
    raw: RawUpstream, requester: Requester, method: str, framing: tuple[tuple[bytes, bytes], ...]
) -> None:
    raw.script = writing(render_answer(b""))
    await requester.request(method=method, body=None)
    assert raw.received[0].head.without("host") == framing


async def test_a_body_of_unknown_length_goes_in_chunks(raw: RawUpstream, requester: Requester) -> None:
    await read(await requester.request(body=pieces_of(b"abc")))
    [seen] = raw.received
    assert (seen.body, seen.head.without("host")) == (b"abc", ((b"Transfer-Encoding", b"chunked"),))


async def test_a_stream_of_known_length_keeps_its_length(raw: RawUpstream, requester: Requester) -> None:
    await read(await requester.request(headers=[("Content-Length", "3")], body=pieces_of(b"abc")))
    [seen] = raw.received
    assert (seen.body, seen.head.without("host")) == (b"abc", ((b"Content-Length", b"3"),))


async def test_a_large_body_arrives_whole(raw: RawUpstream, requester: Requester) -> None:
    body = bytes(range(256)) * 20_000
    await read(await requester.request(body=body))
    assert raw.received[0].body == body


async def test_interim_responses_are_skipped(raw: RawUpstream, requester: Requester) -> None:
    raw.script = writing(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", render_answer(b"x")
    )
    response = await requester.request()
    assert (response.status, await read(response)) == (200, b"x")


async def test_a_response_to_head_has_no_body(raw: RawUpstream, requester: Requester) -> None:
    raw.script = writing(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    response = await requester.request(method="HEAD", body=None)
    assert response.is_read and response.headers["Content-Length"] == "9"


async def test_a_connection_is_used_again_after_the_response_was_read(
    raw: RawUpstream, requester: Requester
) -> None:
    for _ in range(3):
        assert await read(await requester.request()) == b"{}"
    assert (len(raw.received), raw.connections) == (3, 1)


async def test_a_connection_whose_response_was_not_read_is_not_used_again(
    raw: RawUpstream, requester: Requester
) -> None:
    raw.script = in_turn(
        writing(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), writing(render_answer())
    )
    (await requester.request()).close()
    assert await read(await requester.request()) == b"{}"
    assert raw.connections == 2


async def test_an_idle_connection_on_which_the_upstream_spoke_is_not_used_again(
    raw: RawUpstream, requester: Requester
) -> None:
    """Servers may send 408 before they close an idle connection."""
    has_spoken = asyncio.Event()

    async def answer_and_speak(_: Received, writer: asyncio.StreamWriter) -> None:
        has_spoken.clear()
        writer.write(render_answer(b"mine"))
        await asyncio.sleep(0.01)
        writer.write(render_answer(b"", line="HTTP/1.1 408 Request Timeout"))
        has_spoken.set()

    raw.script = answer_and_speak
    assert await read(await requester.request()) == b"mine"
    await has_spoken.wait()
    await asyncio.sleep(0.01)
    assert await read(await requester.request()) == b"mine"
    assert raw.connections == 2


@pytest.mark.parametrize(("method", "requests"), [("GET", 3), ("DELETE", 3), ("POST", 2)])
async def test_only_an_idempotent_request_is_sent_again_if_its_idle_connection_breaks(
    raw: RawUpstream, requester: Requester, method: str, requests: int
) -> None:
    raw.script = in_turn(writing(render_answer()), writing(then="close"), writing(render_answer()))
    await read(await requester.request(method=method, body=None))
    if method == "POST":
        with pytest.raises(UpstreamFailed, match="closed the connection before it answered"):
            await requester.request(method=method, body=None)
    else:
        assert (await requester.request(method=method, body=None)).status == 200
    assert len(raw.received) == requests


async def test_an_early_response_ends_the_upload_and_its_connection(
    raw: RawUpstream, requester: Requester
) -> None:
    raw.reads_bodies = False
    raw.script = writing(render_answer(b"no", line="HTTP/1.1 413 Too Large"))
    response = await requester.request(body=b"x" * 30_000_000)
    assert (response.status, await read(response)) == (413, b"no")
    raw.reads_bodies = True
    raw.script = writing(render_answer())
    assert await read(await requester.request()) == b"{}"
    assert raw.connections == 2


async def test_a_failed_upload_ends_the_wait_for_the_response(raw: RawUpstream, requester: Requester) -> None:
    async def break_off() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionResetError("the client has gone")

    with pytest.raises(UpstreamFailed, match="the request body could not be sent to http://127"):
        await requester.request(body=break_off())


async def test_what_is_not_http_is_a_failed_upstream(raw: RawUpstream, requester: Requester) -> None:
    raw.script = writing(b"no HTTP at all\r\n\r\n")
    with pytest.raises(UpstreamFailed, match="sent something that is not HTTP"):
        await requester.request()


async def test_an_upstream_that_is_not_there_is_a_failed_upstream() -> None:
    async with requesting("http://127.0.0.1:1") as requester:
        with pytest.raises(
            UpstreamFailed, match=r"could not connect to http://127\.0\.0\.1:1: connection refused"
        ):
            await requester.request(method="GET", body=None)


async def test_control_characters_are_refused_before_anything_is_sent(
    raw: RawUpstream, requester: Requester
) -> None:
    with pytest.raises(UpstreamFailed, match=r"no request to http://127\.0\.0\.1:[0-9]+ could be written"):
        await requester.request(headers=[("X-Bad", "a\nb")])
    assert raw.received == []


async def test_an_upstream_that_is_silent_for_too_long_is_a_stalled_one(
    raw: RawUpstream, requester: Requester
) -> None:
    async def stall(received: Received, writer: asyncio.StreamWriter) -> None:
        requester.idle.check(asyncio.get_running_loop().time() + 1_000_000)
        await asyncio.Event().wait()

    raw.script = stall
    with pytest.raises(UpstreamStalled, match="was silent for 1 s"):
        await requester.request()


async def test_a_cancelled_request_stays_cancelled(raw: RawUpstream, requester: Requester) -> None:
    raw.script = writing(then="hang")
    task = asyncio.create_task(requester.request())
    while not raw.received:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_call_with_another_body_has_no_content_encoding() -> None:
    call = make_call(make_upstream(), headers=[("Content-Encoding", "gzip")], body=b"packed")
    plain = call.with_body(b"{}")
    assert (plain.body, list(plain.head.headers)) == (b"{}", [])
