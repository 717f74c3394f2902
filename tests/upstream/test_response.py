"""Reading a response's body piece by piece, to its end or not: sockets on both sides."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.core.errors import UpstreamFailed
from gateway.upstream.response import UpstreamResponse
from tests.builders.upstream import Requester, requesting
from tests.toy.running import wait_until
from tests.wire_through.raw import RawUpstream, Received, render_answer, render_chunks, writing


@asynccontextmanager
async def responding(raw: RawUpstream) -> AsyncIterator[tuple[Requester, UpstreamResponse]]:
    async with raw, requesting(raw.base_url) as requester:
        response = await requester.request()
        yield requester, response
        response.close()


async def test_the_head_is_kept_as_it_came() -> None:
    headers = [("X-A", "1"), ("x-a", "2"), ("Content-Encoding", "gzip")]
    raw = RawUpstream(writing(render_answer(b"", headers, "HTTP/1.1 299 Odd Indeed")))
    async with responding(raw) as (_, response):
        assert (response.status, response.reason, response.encoding) == (299, "Odd Indeed", "gzip")
        assert response.raw_headers == (
            (b"X-A", b"1"),
            (b"x-a", b"2"),
            (b"Content-Encoding", b"gzip"),
            (b"Content-Length", b"0"),
        )


async def test_pieces_come_until_an_empty_one_at_the_end() -> None:
    raw = RawUpstream(writing(*render_chunks([b"one", b"two", b"three"])))
    async with responding(raw) as (_, response):
        read = b""
        while piece := await response.read_piece():
            read += piece
        assert (read, response.is_read) == (b"onetwothree", True)
        assert await response.read_piece() == b""


async def test_what_has_come_already_is_read_without_waiting() -> None:
    head, *chunks = render_chunks([b"one"])
    raw = RawUpstream(writing(head + chunks[0], then="hang"))
    async with responding(raw) as (_, response):
        assert response.read_available() == b"one"
        assert response.read_available() == b""
        assert not response.is_read


async def test_a_bounded_read_stops_a_little_after_its_bound() -> None:
    raw = RawUpstream(writing(render_answer(b"x" * 3_000_000)))
    async with responding(raw) as (_, response):
        assert 100_000 <= len(await response.read_bounded(100_000)) < 3_000_000
        assert not response.is_read


async def test_a_body_that_breaks_off_raises_and_keeps_what_was_read() -> None:
    head, *chunks = render_chunks([b"one"])
    raw = RawUpstream(writing(head + chunks[0], then="close"))
    async with responding(raw) as (_, response):
        pieces: list[bytes] = []
        with pytest.raises(UpstreamFailed, match="broke off in the middle of its response"):
            await response.read_into(pieces, 1_000)
        assert pieces == [b"one"]
        assert response.read_available() == b""


@pytest.mark.parametrize("junk", [b"", b"this is no size\r\n"])
async def test_a_stall_wakes_a_reader_even_behind_a_malformed_chunk(junk: bytes) -> None:
    head, *chunks = render_chunks([b"one"])
    is_read = asyncio.Event()

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(head + chunks[0])
        await is_read.wait()
        writer.write(junk)
        await asyncio.Event().wait()

    async with responding(RawUpstream(script)) as (requester, response):
        assert await response.read_piece() == b"one"
        is_read.set()
        later = time.monotonic() + 1_000_000
        asyncio.get_running_loop().call_later(0.05, requester.idle.check, later)
        with pytest.raises(UpstreamFailed):
            await asyncio.wait_for(response.read_piece(), 30)


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_a_connection_closed_over_a_bad_trailer_ends_the_body_at_once(is_waiting: bool) -> None:
    """The library closes the connection then, and tells neither a reader that waits nor one that comes."""
    head, *chunks = render_chunks([b"one"])
    is_read = asyncio.Event()

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(head + chunks[0])
        await is_read.wait()
        writer.write(b"0\r\nX-T: " + b"y" * 70_000)
        await asyncio.Event().wait()

    raw = RawUpstream(script)
    async with responding(raw) as (_, response):
        assert await response.read_piece() == b"one"
        asyncio.get_running_loop().call_soon(is_read.set)
        if not is_waiting:
            await wait_until(lambda: raw.received[0].hung_up_at is not None)
        with pytest.raises(UpstreamFailed, match="broke off in the middle of its response"):
            await asyncio.wait_for(response.read_piece(), 30)


async def test_closing_wakes_a_reader_and_closes_the_connection() -> None:
    raw = RawUpstream(writing(render_chunks([])[0], then="hang"))
    async with responding(raw) as (_, response):
        asyncio.get_running_loop().call_soon(response.close)
        with pytest.raises(UpstreamFailed, match=r"the connection to http://127\.0\.0\.1:[0-9]+ failed"):
            await asyncio.wait_for(response.read_piece(), 30)
        async with asyncio.timeout(30):
            while raw.received[0].hung_up_at is None:
                await asyncio.sleep(0.01)


async def test_closing_after_the_end_leaves_the_connection_to_others() -> None:
    raw = RawUpstream(writing(render_answer(b"{}")))
    async with responding(raw) as (requester, response):
        await response.read_bounded(1_000)
        response.close()
        again = await requester.request()
        assert await again.read_bounded(1_000) == b"{}"
        assert raw.connections == 1
