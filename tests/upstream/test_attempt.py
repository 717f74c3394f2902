"""Reading the head of a response on one connection, and when the request may be sent on another one."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core.errors import UpstreamFailed
from gateway.upstream.sending import HeadStart, OutgoingBody
from tests.builders.upstream import Requester, requesting
from tests.wire_through.raw import (
    Ending,
    RawUpstream,
    Received,
    Script,
    end,
    in_turn,
    render_answer,
    writing,
)

# Longer than any test: on an idle connection a body stays back until the upstream has done something.
HEAD_START = HeadStart(rest_seconds=0.0, seconds=1_000.0)
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.fixture
async def raw() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


@pytest.fixture
async def requester(raw: RawUpstream) -> AsyncIterator[Requester]:
    async with requesting(raw.base_url, HEAD_START) as requester:
        yield requester


async def rest_after_a_request(raw: RawUpstream, requester: Requester, second: Script) -> None:
    """Leaves an idle connection, whose upstream does `second` as soon as it has the head of a request.

    Every other request is answered.
    """

    async def end_after_head(received: Received, writer: asyncio.StreamWriter) -> None:
        raw.reads_bodies = True
        await second(received, writer)

    raw.script = in_turn(writing(render_answer()), end_after_head, writing(render_answer(b"again")))
    assert await (await requester.request()).read_bounded(9) == b"{}"
    raw.reads_bodies = False
    await asyncio.sleep(0.01)


async def pieces_of(body: bytes) -> AsyncIterator[bytes]:
    yield body


def make_bodies() -> dict[str, OutgoingBody]:
    return {"small": b"abc", "large": b"abc" * 1_000_000, "streamed": pieces_of(b"abc")}


@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize("kind", ["small", "large", "streamed"])
async def test_a_request_whose_body_has_not_left_is_sent_once_more_on_a_new_connection(
    raw: RawUpstream, requester: Requester, kind: str, ending: Ending
) -> None:
    await rest_after_a_request(raw, requester, writing(then=ending))
    response = await requester.request(body=make_bodies()[kind])
    assert await response.read_bounded(9) == b"again"
    assert [received.body[:3] for received in raw.received] == [b"{}", b"", b"abc"]
    assert raw.connections == 2


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_request_that_got_the_beginning_of_an_answer_is_not_sent_again(
    raw: RawUpstream, requester: Requester, method: str
) -> None:
    await rest_after_a_request(raw, requester, writing(b"HTTP/1.1 2", then="close"))
    with pytest.raises(UpstreamFailed):
        await requester.request(method=method, body=b"abc" if method == "POST" else None)
    assert len(raw.received) == 2


async def test_a_request_is_sent_at_most_twice(raw: RawUpstream, requester: Requester) -> None:
    await rest_after_a_request(raw, requester, writing(then="close"))

    async def close(_: Received, writer: asyncio.StreamWriter) -> None:
        raw.script = writing(then="close")
        await end(writer, "close")

    raw.script = close
    with pytest.raises(UpstreamFailed, match="closed the connection before it answered"):
        await requester.request(method="GET", body=None)
    assert len(raw.received) == 3


async def test_an_answer_to_the_head_alone_is_an_answer(raw: RawUpstream, requester: Requester) -> None:
    refusal = render_answer(b"no", line="HTTP/1.1 401 Unauthorized")
    await rest_after_a_request(raw, requester, writing(refusal))
    response = await requester.request(body=b"abc")
    assert (response.status, await response.read_bounded(9)) == (401, b"no")


@pytest.mark.parametrize(("count", "is_fine"), [(2, True), (31, True), (32, False), (10_000, False)])
async def test_interim_responses_are_skipped_up_to_a_number(
    raw: RawUpstream, requester: Requester, count: int, is_fine: bool
) -> None:
    raw.script = writing(INTERIM * count + render_answer(b"x"))
    if is_fine:
        assert await (await requester.request()).read_bounded(9) == b"x"
        return
    with pytest.raises(UpstreamFailed, match=r"sent interim responses \(1xx\) only"):
        await requester.request()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "switched protocols"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            "switched protocols",
        ),
        (render_answer(headers=[(f"X-{n}", "y" * 60_000) for n in range(5)]), "a head that is too large"),
        (render_answer(headers=[("X", "y" * 70_000)]), "a head that is too large"),
    ],
)
async def test_what_is_no_final_response_is_refused_and_its_connection_closed(
    raw: RawUpstream, requester: Requester, answer: bytes, reason: str
) -> None:
    raw.script = in_turn(writing(answer), writing(render_answer(b"next")))
    with pytest.raises(UpstreamFailed, match=reason):
        await requester.request()
    assert await (await requester.request()).read_bounded(9) == b"next"
    assert raw.connections == 2
