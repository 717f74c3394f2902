"""Which connection a request takes upstream, and that no request that may cost money is sent twice."""

import asyncio

import pytest

from tests.toy.raw import (
    Ending,
    Received,
    Script,
    in_turn,
    render_answer,
    render_chunks,
    render_request,
    writing,
)
from tests.toy.running import wait_until
from tests.toy.wire import PATHS, STREAMED, WHOLE, Wire, make_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Of a model with a known window no answer is held back to see whether it is a refusal.
WIRE_MORE = 'models: [{match: "*", context: 10000000}]\n'

AGAIN = render_answer(b"again")
TOO_LARGE = render_answer(b"{}", line="HTTP/1.1 413 Too Large")
SLOW_SECONDS = 30.0


async def begin(wire: Wire, path: str = "/v1/other") -> int:
    """Leaves one idle connection to the upstream, and none besides. How many there have been."""
    await wire.upstream.hang_up()
    await asyncio.sleep(0.01)
    assert (await wire.ask(render_request(path, WHOLE))).status == 200
    wire.upstream.received.clear()
    return wire.upstream.connections


async def test_a_connection_is_used_again_after_its_response_has_ended(wire: Wire) -> None:
    before = await begin(wire)
    for path in (*PATHS, *PATHS):
        assert (await wire.ask(render_request(path, WHOLE))).status == 200
    wire.upstream.script = writing(*render_chunks([b"data: {}\n\n"]))
    assert (await wire.chat(STREAMED)).is_whole
    assert (await wire.chat(STREAMED)).is_whole
    assert wire.upstream.connections == before


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
async def test_a_safe_request_is_repeated_if_an_idle_connection_breaks(wire: Wire, method: str) -> None:
    await begin(wire)
    wire.upstream.script = in_turn(writing(then="close"), writing(render_answer(b"")))
    assert (await wire.ask(render_request("/v1/models", method=method))).status == 200
    assert len(wire.upstream.received) == 2


async def test_a_safe_request_is_sent_at_most_twice(wire: Wire) -> None:
    await begin(wire)
    wire.upstream.script = writing(then="close")
    got = await wire.ask(render_request("/v1/models", method="GET"))
    assert got.status == 502 and b"closed the connection before it answered" in got.body
    assert len(wire.upstream.received) == 2


@pytest.mark.parametrize("path", PATHS)
async def test_a_post_is_not_repeated_if_an_idle_connection_breaks(wire: Wire, path: str) -> None:
    await begin(wire)
    wire.upstream.script = in_turn(writing(then="close"), writing(AGAIN))
    assert (await wire.ask(render_request(path, WHOLE))).status == 502
    assert len(wire.upstream.received) == 1


def end_after_head(wire: Wire, script: Script) -> Script:
    async def write(received: Received, writer: asyncio.StreamWriter) -> None:
        wire.upstream.reads_bodies = True
        wire.upstream.script = writing(AGAIN)
        await script(received, writer)

    return write


@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize("size", [0, 3_000_000])
async def test_a_post_whose_body_has_not_left_is_sent_once_more(
    wire: Wire, size: int, ending: Ending
) -> None:
    """An idle connection that breaks is found out by the head alone."""
    before = await begin(wire)
    await asyncio.sleep(0.1)
    wire.upstream.reads_bodies = False
    wire.upstream.script = end_after_head(wire, writing(then=ending))
    body = make_chat(user="x" * size)
    got = await wire.chat(body)
    if got.status == 200:
        assert [seen.body for seen in wire.upstream.received] == [b"", body]
        assert (got.body, wire.upstream.connections) == (b"again", before + 1)
    else:
        # The body had left: it may have cost something.
        assert (got.status, len(wire.upstream.received)) == (502, 1)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_request_that_got_the_beginning_of_an_answer_is_not_sent_again(
    wire: Wire, method: str
) -> None:
    await begin(wire)
    wire.upstream.script = in_turn(writing(b"HTTP/1.1 2", then="close"), writing(AGAIN))
    got = await wire.ask(render_request("/v1/models", b"abc" if method == "POST" else b"", method=method))
    assert (got.status, len(wire.upstream.received)) == (502, 1)


async def test_bytes_that_answer_nothing_reach_no_one(wire: Wire) -> None:
    """Servers may send 408 before they close an idle connection. It is nobody's answer."""
    before = await begin(wire)
    has_spoken = asyncio.Event()

    async def answer_and_speak(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(render_answer(b"mine"))
        await asyncio.sleep(0.02)
        writer.write(render_answer(b"a stranger's", line="HTTP/1.1 408 Request Timeout"))
        has_spoken.set()

    for number in range(3):
        has_spoken.clear()
        wire.upstream.script = answer_and_speak
        assert (await wire.chat(WHOLE)).body == b"mine"
        await has_spoken.wait()
        await asyncio.sleep(0.02)
        assert wire.upstream.connections == before + number


async def test_a_connection_is_not_used_again_after_a_head_that_is_refused(wire: Wire) -> None:
    """The library takes this length for none."""
    before = await begin(wire)

    async def answer_late(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(render_answer(b"a stranger's"))

    wire.upstream.script = in_turn(answer_late, writing(AGAIN))
    assert (await wire.chat(WHOLE)).status == 502
    assert (await wire.chat(WHOLE)).body == b"again"
    assert wire.upstream.connections == before + 1


async def test_an_answer_with_more_than_its_length_gives_nobody_the_rest(wire: Wire) -> None:
    await begin(wire)
    wire.upstream.script = in_turn(
        writing(render_answer(b"mine") + render_answer(b"a stranger's")), writing(AGAIN)
    )
    assert (await wire.chat(WHOLE)).body == b"mine"
    assert (await wire.chat(WHOLE)).body == b"again"


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_is_not_used_again_after_half_a_response(wire: Wire, path: str) -> None:
    """Its client hung up; the next one would read the rest."""
    before = await begin(wire)
    wire.upstream.script = writing(render_answer(b"secret " * 9)[:-9], then="hang")
    async with wire.connecting() as client:
        await client.send(render_request(path, WHOLE))
        await client.reader.readuntil(b"secret")
    await wait_until(lambda: wire.upstream.received[-1].hung_up_at is not None)
    wire.upstream.script = writing(AGAIN)
    assert (await wire.ask(render_request(path, WHOLE))).body == b"again"
    assert wire.upstream.connections == before + 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_is_not_used_again_after_half_an_upload(wire: Wire, path: str) -> None:
    """The upstream would read the rest of the body as the next request."""
    await begin(wire)
    wire.upstream.reads_bodies = False
    wire.upstream.script = in_turn(writing(TOO_LARGE), writing(then="hang"))
    large = make_chat(user="x" * 30_000_000)
    assert (await asyncio.wait_for(wire.ask(render_request(path, large)), SLOW_SECONDS)).status == 413
    wire.reset()
    before = wire.upstream.connections
    assert (await wire.ask(render_request(path, WHOLE))).status == 200
    assert wire.upstream.connections == before + 1
    assert [received.body for received in wire.upstream.received] == [WHOLE]


async def test_a_connection_that_the_upstream_closed_fails_no_request(wire: Wire) -> None:
    """Servers close idle connections; the next request must not fail for it."""
    wire.upstream.script = writing(render_answer(), then="close")
    for _ in range(5):
        assert (await wire.chat(WHOLE)).status == 200
        await asyncio.sleep(0.02)
