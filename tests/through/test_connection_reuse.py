"""No request that may cost money is sent twice, and heads of responses do not wait for bodies."""

import asyncio

import pytest

from tests.toy.raw import in_turn, render_answer, render_chunks, render_request, writing
from tests.toy.wire import WHOLE, Wire, make_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS = ["/v1/chat/completions", "/v1/other"]
TOO_LARGE = render_answer(b"{}", line="HTTP/1.1 413 Too Large")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
async def test_a_safe_request_is_repeated_if_a_pooled_connection_breaks(wire: Wire, method: str) -> None:
    answer = render_answer(b"")
    wire.upstream.script = in_turn(writing(answer), writing(then="close"), writing(answer))
    for _ in range(2):
        assert (await wire.ask(render_request("/v1/models", method=method))).status == 200
    assert len(wire.upstream.received) == 3


@pytest.mark.parametrize("path", PATHS)
async def test_a_post_is_not_repeated_if_a_pooled_connection_breaks(wire: Wire, path: str) -> None:
    wire.upstream.script = in_turn(writing(render_answer()), writing(then="close"), writing(render_answer()))
    assert (await wire.ask(render_request(path, WHOLE))).status == 200
    assert (await wire.ask(render_request(path, WHOLE))).status == 502
    assert len(wire.upstream.received) == 2


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_is_not_used_again_after_half_an_upload(wire: Wire, path: str) -> None:
    """The upstream would read the rest of the body as the next request."""
    wire.upstream.reads_bodies = False
    wire.upstream.script = in_turn(writing(TOO_LARGE), writing(then="hang"))
    large = make_chat(user="x" * 30_000_000)
    assert (await asyncio.wait_for(wire.ask(render_request(path, large)), 30)).status == 413
    wire.upstream.reads_bodies = True
    wire.upstream.script = writing(render_answer())
    wire.upstream.received.clear()
    before = wire.upstream.connections
    assert (await wire.ask(render_request(path, WHOLE))).status == 200
    assert wire.upstream.connections == before + 1
    assert [received.body for received in wire.upstream.received] == [WHOLE]


async def test_the_head_of_a_relayed_response_does_not_wait_for_its_body(wire: Wire) -> None:
    wire.upstream.script = writing(render_chunks([])[0], then="hang")
    async with wire.connecting() as connection:
        await connection.send(render_request("/v1/other", WHOLE))
        head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 200")
