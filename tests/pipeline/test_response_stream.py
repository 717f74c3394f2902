"""How one response passes to the client: its bytes, its headers, its end, and what is read of it."""

import asyncio
import gzip
from collections.abc import Sequence

import pytest

from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.errors import Overloaded, UpstreamFailed
from gateway.downstream.responder import Responder
from gateway.outgoing.call_maker import NOTHING_ADDED
from gateway.pipeline.exchange import Exchange, Outcome, ReplyEditor
from gateway.pipeline.response_stream import ReadingBounds, ResponseStream
from gateway.upstream.sending import UpstreamCall
from tests.builders.exchanges import Sent, serve
from tests.builders.upstream import make_call, requesting
from tests.wire_through.raw import RawUpstream, Script, render_answer, render_chunks, writing

DELTA = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = DELTA + USAGE + DONE
STREAM = ("Content-Type", "text/event-stream")


async def answer_with(call: UpstreamCall) -> UpstreamCall:
    return call


async def pass_on(
    script: Script,
    *,
    asked_for_usage: bool = False,
    is_committed: bool = False,
    outcomes: list[Outcome] | None = None,
    beginning_bytes: int = 0,
    memory: MemoryBudget | None = None,
    editor: ReplyEditor | None = None,
    is_follow_up: bool = False,
) -> Sent[None]:
    async with RawUpstream(script) as raw, requesting(raw.base_url) as requester:
        call = make_call(requester.upstream)
        exchange = Exchange(
            call=call,
            headers={"X-Own": "1"},
            on_outcome=outcomes.append if outcomes is not None else None,
            additions=frozenset({"usage"}) if asked_for_usage else NOTHING_ADDED,
            editor=editor,
            is_follow_up=is_follow_up,
        )

        async def work(client: Responder) -> None:
            response = await requester.request()
            beginning = await response.read_bounded(beginning_bytes) if beginning_bytes else b""
            try:
                bounds = ReadingBounds(asyncio.Lock(), memory or MemoryBudget(1 << 30))
                stream = ResponseStream(exchange, response, client, requester.idle, bounds)
                await stream.pass_on(beginning)
            finally:
                response.close()

        return await serve(work, is_committed=is_committed)


def streaming(*pieces: bytes, headers: Sequence[tuple[str, str]] = (STREAM,)) -> Script:
    return writing(*render_chunks(pieces, headers))


async def test_a_stream_passes_byte_for_byte_behind_the_gateways_own_headers() -> None:
    sent = await pass_on(streaming(DELTA, USAGE, DONE))
    assert (sent.body, sent.is_whole) == (EVENTS, True)
    lines = sent.head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"X-Own: 1" in lines and b"Content-Type: text/event-stream" in lines


async def test_a_whole_response_keeps_its_length() -> None:
    sent = await pass_on(writing(render_answer(b'{"a": 1}')))
    assert b"Content-Length: 8" in sent.head.split(b"\r\n")
    assert sent.body == b'{"a": 1}'


async def test_a_copy_that_finds_no_memory_is_not_read_and_the_response_passes() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2},"x":"%s"}' % (b"x" * 400_000)
    memory, outcomes = MemoryBudget(1 << 20), list[Outcome]()
    others = memory.open()
    others.take(1 << 20)
    for is_free in (False, True):
        if is_free:
            others.shrink(others.size_bytes)
        sent = await pass_on(writing(render_answer(body)), outcomes=outcomes, memory=memory)
        assert (sent.body, sent.is_whole) == (body, True)
    assert [outcome.reading.usage is not None for outcome in outcomes] == [False, True]


async def test_what_was_read_already_is_passed_on_first() -> None:
    sent = await pass_on(streaming(DELTA, USAGE, DONE), beginning_bytes=len(DELTA))
    assert (sent.body, sent.is_whole) == (EVENTS, True)


async def test_the_outcome_is_told_once_with_what_the_response_said() -> None:
    outcomes: list[Outcome] = []
    await pass_on(streaming(DELTA, USAGE, DONE), outcomes=outcomes)
    [outcome] = outcomes
    assert outcome.status == 200
    assert outcome.reading.usage is not None and outcome.reading.usage.prompt_tokens == 7


async def test_a_response_that_breaks_off_never_ends_well_and_is_told_too() -> None:
    outcomes: list[Outcome] = []
    script = writing(*render_chunks([DELTA, USAGE])[:-1], then="close")
    sent = await pass_on(script, outcomes=outcomes)
    assert not sent.is_whole
    [outcome] = outcomes
    assert not outcome.reading.is_complete


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_the_usage_chunk_that_the_gateway_asked_for_is_taken_out(encoding: str) -> None:
    body = gzip.compress(EVENTS) if encoding else EVENTS
    headers = [STREAM, ("Content-Encoding", encoding)] if encoding else [STREAM]
    outcomes: list[Outcome] = []
    sent = await pass_on(streaming(body, headers=headers), asked_for_usage=True, outcomes=outcomes)
    assert (sent.body, sent.is_whole) == (DELTA + DONE, True)
    assert b"content-encoding" not in sent.head.lower()
    assert outcomes[0].reading.usage is not None


async def test_a_response_with_a_length_is_no_stream_and_is_not_edited() -> None:
    script = writing(render_answer(EVENTS, [("Content-Type", "application/json")]))
    assert (await pass_on(script, asked_for_usage=True)).body == EVENTS


async def test_a_stream_in_an_unknown_encoding_passes_unchanged() -> None:
    headers = [STREAM, ("Content-Encoding", "odd")]
    sent = await pass_on(streaming(EVENTS, headers=headers), asked_for_usage=True)
    assert sent.body == EVENTS
    assert b"Content-Encoding: odd" in sent.head


async def test_after_a_keep_alive_an_encoded_response_is_decoded() -> None:
    headers = [STREAM, ("Content-Encoding", "gzip")]
    sent = await pass_on(streaming(gzip.compress(EVENTS), headers=headers), is_committed=True)
    assert sent.body.endswith(EVENTS) and sent.is_whole


async def test_after_a_keep_alive_an_unknown_encoding_is_a_failure() -> None:
    headers = [STREAM, ("Content-Encoding", "odd")]
    with pytest.raises(UpstreamFailed, match="unknown content encoding"):
        await pass_on(streaming(EVENTS, headers=headers), is_committed=True)


async def test_an_encoded_response_that_ends_too_early_never_ends_well() -> None:
    headers = [STREAM, ("Content-Encoding", "gzip")]
    cut = gzip.compress(EVENTS)[:-9]
    sent = await pass_on(streaming(cut, headers=headers), is_committed=True)
    assert not sent.is_whole


class ToyEditor:
    """Shows all in capitals. rest: what `end` gives; None if the reply goes on elsewhere."""

    def __init__(self, rest: bytes | None, *, holds_all: bool = False) -> None:
        self.rest = rest
        self.holds_all = holds_all
        self.headers = {"X-Late": "1"}
        self.held = b""

    def feed(self, piece: bytes) -> bytes:
        if self.holds_all:
            self.held += piece
            return b""
        return piece.upper()

    async def end(self) -> bytes | None:
        return None if self.rest is None else self.held + self.rest


async def test_an_edited_stream_passes_as_it_comes_and_ends_with_what_the_editor_adds() -> None:
    sent = await pass_on(streaming(b"data: a\n\n", b"data: b\n\n"), editor=ToyEditor(b"data: end\n\n"))
    assert (sent.body, sent.is_whole) == (b"DATA: A\n\nDATA: B\n\ndata: end\n\n", True)


async def test_a_response_that_is_held_until_its_end_has_its_length_and_late_headers() -> None:
    sent = await pass_on(writing(render_answer(b'{"a":')), editor=ToyEditor(b" 1}", holds_all=True))
    assert sent.body == b'{"a": 1}'
    lines = sent.head.split(b"\r\n")
    assert b"Content-Length: 8" in lines and b"X-Late: 1" in lines and b"X-Own: 1" in lines
    assert b"chunked" not in sent.head


async def test_a_compressed_response_is_edited_in_plain() -> None:
    packed = gzip.compress(b'{"a":')
    script = writing(render_answer(packed, [("Content-Encoding", "gzip")]))
    sent = await pass_on(script, editor=ToyEditor(b" 1}", holds_all=True))
    assert sent.body == b'{"a": 1}' and b"Content-Encoding" not in sent.head


async def test_an_error_is_not_edited() -> None:
    script = writing(render_answer(b"no", line="HTTP/1.1 429 Busy"))
    sent = await pass_on(script, editor=ToyEditor(b"!", holds_all=True))
    assert (sent.body, sent.head.split(b"\r\n")[0]) == (b"no", b"HTTP/1.1 429 Busy")


async def test_a_response_that_is_held_and_finds_no_memory_is_refused() -> None:
    memory = MemoryBudget(100_000, wait_seconds=0.01)
    with memory.open() as other, pytest.raises(Overloaded):
        other.take(99_000)
        await pass_on(
            writing(render_answer(b"x" * 200_000)), editor=ToyEditor(b"", holds_all=True), memory=memory
        )


async def test_a_follow_up_that_breaks_off_is_reported_to_its_caller() -> None:
    """Although the client has seen the beginning of the reply."""
    broken = writing(*render_chunks([b"data: a\n\n"])[:-1], then="reset")
    with pytest.raises(UpstreamFailed):
        await pass_on(broken, editor=ToyEditor(b""), is_committed=True, is_follow_up=True)
