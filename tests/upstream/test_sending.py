"""What of a request has left, and in which order: sockets on both sides."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core.errors import RequestRefused
from gateway.upstream.sending import UpstreamCall
from tests.builders.upstream import make_call, make_upstream, requesting
from tests.wire_through.raw import RawUpstream, writing


async def test_the_head_waits_for_no_body_that_comes_piece_by_piece() -> None:
    is_seen = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        await is_seen.wait()
        yield b"x"

    async with RawUpstream(reads_bodies=False) as raw, requesting(raw.base_url) as requester:
        asking = asyncio.create_task(requester.request(body=pieces()))
        while not raw.received:
            await asyncio.sleep(0.001)
        is_seen.set()
        assert (await asking).status == 200


async def test_a_client_that_stops_sending_is_refused_and_no_upstream_is_blamed() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        raise RequestRefused(400, "The rest did not arrive.")

    async with RawUpstream(writing(then="hang")) as raw, requesting(raw.base_url) as requester:
        with pytest.raises(RequestRefused, match="The rest did not arrive"):
            await requester.request(body=pieces())


def test_a_call_with_another_body_has_no_content_encoding() -> None:
    call = make_call(make_upstream(), headers=[("Content-Encoding", "gzip")], body=b"packed")
    plain = call.with_body(b"{}")
    assert isinstance(plain, UpstreamCall)
    assert (plain.body, list(plain.head.headers)) == (b"{}", [])
