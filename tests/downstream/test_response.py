"""What a response writes to the client's connection, byte for byte."""

import asyncio

import pytest

from gateway.downstream.request import Request
from gateway.downstream.response import Response, Written, send_local_response
from gateway.headers import ResponseHead, make_response_head
from tests.builders.downstream import open_line, render_get

RAW_HEADERS = [(b"x-OLD", b"caf\xe9 \xff"), (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2")]
HEADER_LINES = b"x-OLD: caf\xe9 \xff\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n"


def make_head(status: int = 200, *headers: tuple[bytes, bytes]) -> ResponseHead:
    return make_response_head(status, "Fine by me", headers)


async def exchange(sent: bytes, head: ResponseHead, *pieces: bytes) -> tuple[bytes, bool]:
    """What was written for a response in these pieces, and whether the connection was closed behind it."""

    async def respond(request: Request) -> Response:
        response = Response(head, request)
        for piece in pieces:
            response.send(piece)
        response.finish()
        return response

    async with open_line(respond) as line:
        await line.send(sent)
        return line.written, line.is_closed


async def test_a_head_leaves_with_the_bytes_and_the_order_that_it_was_given() -> None:
    head = make_head(200, *RAW_HEADERS, (b"CONTENT-length", b"5"))
    written, is_closed = await exchange(render_get(), head, b"hello")
    assert written == b"HTTP/1.1 200 Fine by me\r\n" + HEADER_LINES + b"CONTENT-length: 5\r\n\r\nhello"
    assert not is_closed


async def test_a_body_without_a_length_leaves_in_chunks() -> None:
    written, is_closed = await exchange(render_get(), make_head(), b"hello", b"", b"x" * 17)
    assert written == (
        b"HTTP/1.1 200 Fine by me\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n0\r\n\r\n"
    )
    assert not is_closed


async def test_the_end_of_the_connection_ends_a_body_without_a_length_in_http_1_0() -> None:
    written, is_closed = await exchange(render_get(version="1.0"), make_head(), b"hello")
    assert written == b"HTTP/1.0 200 Fine by me\r\nConnection: close\r\n\r\nhello"
    assert is_closed


async def test_http_1_0_keeps_a_connection_alive_that_asked_for_it() -> None:
    asked = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    written, is_closed = await exchange(asked, make_head(200, (b"Content-Length", b"1")), b"x")
    assert written == b"HTTP/1.0 200 Fine by me\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx"
    assert not is_closed


async def test_a_client_that_asks_to_close_gets_a_closed_connection() -> None:
    asked = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    written, is_closed = await exchange(asked, make_head(200, (b"Content-Length", b"1")), b"x")
    assert b"Connection: close\r\n" in written
    assert is_closed


@pytest.mark.parametrize(
    ("method", "status", "length"),
    [("HEAD", 200, b"5"), ("HEAD", 200, None), ("GET", 304, b"5"), ("GET", 204, None)],
)
async def test_a_response_that_has_no_body_sends_none(method: str, status: int, length: bytes | None) -> None:
    headers = [(b"Content-Length", length)] if length else []
    written, is_closed = await exchange(render_get(method=method), make_head(status, *headers), b"hello")
    wanted = b"Content-Length: 5\r\n" if length else b""
    assert written == b"HTTP/1.1 %d Fine by me\r\n%b\r\n" % (status, wanted)
    assert not is_closed


async def test_status_204_carries_no_length() -> None:
    written, _ = await exchange(render_get(), make_head(204, (b"Content-Length", b"0")))
    assert written == b"HTTP/1.1 204 Fine by me\r\n\r\n"


async def test_the_head_leaves_with_the_first_piece_or_by_a_flush() -> None:
    seen: list[bytes] = []

    async def respond(request: Request) -> Response:
        response = Response(make_head(), request)
        seen.append(line.written)
        response.flush()
        seen.append(line.written)
        response.flush()
        seen.append(line.written)
        response.finish()
        return response

    async with open_line(respond) as line:
        await line.send(render_get())
    head = b"HTTP/1.1 200 Fine by me\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert seen == [b"", head, head]


async def test_a_sender_is_told_that_the_client_does_not_keep_up() -> None:
    told: list[bool] = []

    async def respond(request: Request) -> Response:
        response = Response(make_head(), request)
        for line.unsent_bytes in (1 << 16, (1 << 16) + 1):
            told.append(response.send(b"x"))
            told.append(response.send(b""))
        told.append(response.finish())
        return response

    async with open_line(respond) as line:
        await line.send(render_get())
    assert told == [False, False, True, False, True]


async def test_drain_waits_until_the_client_keeps_up() -> None:
    drained = asyncio.Event()

    async def respond(request: Request) -> Response:
        response = Response(make_head(), request)
        response.finish(b"x")
        await response.drain()
        drained.set()
        return response

    async with open_line(respond) as line:
        line.connection.pause_writing()
        await line.send(render_get())
        assert not drained.is_set()
        line.connection.resume_writing()
        await asyncio.wait_for(drained.wait(), 30)


async def test_writing_to_a_client_that_has_gone_raises() -> None:
    errors: list[ConnectionError] = []

    async def respond(request: Request) -> Response:
        response = Response(make_head(), request)
        line.close()
        for write in (response.flush, response.finish):
            try:
                write()
            except ConnectionError as error:
                errors.append(error)
        return response

    async with open_line(respond) as line:
        await line.send(render_get())
    assert len(errors) == 2
    assert line.written == b""


async def test_a_local_response_is_dated_json_with_its_length() -> None:
    async def respond(request: Request) -> Response:
        return send_local_response(request, 503, b"{}", {"Retry-After": "1"})

    async with open_line(respond) as line:
        await line.send(render_get())
        first, *lines = line.written.split(b"\r\n")
    assert first == b"HTTP/1.1 503 Service Unavailable"
    assert lines[0] == b"Content-Type: application/json"
    assert lines[1].startswith(b"Date: ") and lines[1].endswith(b" GMT")
    assert lines[2:] == [b"Content-Length: 2", b"Retry-After: 1", b"", b"{}"]


@pytest.mark.parametrize("keeps_alive", [True, False])
async def test_the_library_has_nothing_left_to_write(keeps_alive: bool) -> None:
    written = Written(keeps_alive=keeps_alive)
    assert written.keep_alive is keeps_alive
    await written.write_eof(b"ignored")
    assert not written.prepared
