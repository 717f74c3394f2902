"""If a client does not request usage, the gateway does, and the client does not notice."""

import gzip
import json

import pytest

from tests.toy.house import make_settings
from tests.toy.product import serve
from tests.toy.raw import (
    Script,
    ask,
    in_turn,
    render_answer,
    render_chunks,
    render_request,
    writing,
)
from tests.toy.recorded import RECORDINGS, cut, load_responses, requires_cases
from tests.toy.upstream import ToyUpstream
from tests.toy.wire import STREAMED, WHOLE, Wire, make_chat, opening_wire, render_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

SILENT = make_chat(stream=True)
EXTRA = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
DELTA = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
REFUSAL = b'{"error":{"message":"Unknown field: stream_options.include_usage","type":"invalid"}}'


def streaming(*pieces: bytes) -> Script:
    return writing(*render_chunks(pieces))


def refusing(body: bytes = REFUSAL) -> Script:
    return writing(render_answer(body, line="HTTP/1.1 400 Bad Request"))


def is_asking(body: bytes) -> bool:
    options = json.loads(body).get("stream_options") or {}
    return options.get("include_usage") is True


def without_extra(body: bytes) -> bytes:
    """The stream for a client that did not request usage, computed from whole events, independently of the
    product.
    """
    events = body.split(b"\n\n")
    return b"\n\n".join(event for event in events if not is_extra(event))


def is_extra(event: bytes) -> bool:
    if not event.startswith(b"data: {") or b"\n" in event:
        return False
    chunk = json.loads(event[6:])
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


async def test_we_ask_and_take_the_extra_chunk_out_again(wire: Wire) -> None:
    wire.upstream.script = streaming(DELTA, EXTRA, DONE)
    got = await wire.chat(SILENT)
    assert (got.body, got.is_whole) == (DELTA + DONE, True)
    [seen] = wire.upstream.received
    assert is_asking(seen.body)
    assert json.loads(seen.body) == json.loads(SILENT) | {"stream_options": {"include_usage": True}}
    assert seen.head.values("accept-encoding") == [b"identity"]


OPTIONS = [
    b"null",
    b"{}",
    b' { "odd" : [1] } ',
    b'{"include_usage":false}',
    b'{"include_usage" : null,"odd":1}',
]


@pytest.mark.parametrize("options", OPTIONS)
async def test_other_options_of_the_stream_stay(wire: Wire, options: bytes) -> None:
    for body in (
        b'{"stream_options":' + options + b',"model":"m","messages":[],"stream":true}',
        b'{"model":"m","messages":[],"stream":true,"stream_options":' + options + b"}",
    ):
        wire.upstream.script = streaming(DELTA, EXTRA, DONE)
        got = await wire.chat(body)
        sent = wire.upstream.received[-1].body
        assert got.body == DELTA + DONE
        assert is_asking(sent)
        wanted = json.loads(body)
        wanted["stream_options"] = (wanted["stream_options"] or {}) | {"include_usage": True}
        assert json.loads(sent) == wanted
        # The option is inserted into the bytes; the request is not rendered again.
        for part in (b"[1.10]", b"12345678901234567890123", b"\\u0041"):
            assert (part in sent) is (part in body)


@requires_cases(RECORDINGS, "recorded answers")
@pytest.mark.parametrize("size", [pytest.param(7, marks=pytest.mark.exhaustive), 97])
async def test_recordings_lose_their_extra_chunk_and_nothing_else(wire: Wire, size: int) -> None:
    changed = 0
    async with wire.connecting() as connection:
        for answer in load_responses():
            if not answer.is_stream:
                continue
            wire.upstream.script = streaming(*cut(answer.body, size))
            got = await connection.ask(render_chat(SILENT))
            assert got.body == without_extra(answer.body), answer.file
            changed += got.body != answer.body
    assert changed > 10


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7])
async def test_it_is_taken_out_however_the_stream_is_cut(wire: Wire, ending: bytes, size: int) -> None:
    wire.upstream.script = streaming(*cut((DELTA + EXTRA + DELTA + DONE).replace(b"\n", ending), size))
    got = await wire.chat(SILENT)
    assert (got.body, got.is_whole) == ((DELTA + DELTA + DONE).replace(b"\n", ending), True)


async def test_usage_on_chunks_with_choices_stays(wire: Wire) -> None:
    with_usage = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":7}}\n\n'
    comment = b": OPENROUTER PROCESSING\n\n"
    wire.upstream.script = streaming(comment, DELTA, with_usage, comment, DONE)
    assert (await wire.chat(SILENT)).body == comment + DELTA + with_usage + comment + DONE


async def test_an_event_is_not_held_back_for_the_next(wire: Wire) -> None:
    """A reader sees each event as soon as it is whole."""
    wire.upstream.script = writing(*render_chunks([DELTA, EXTRA])[:-1], then="hang")
    async with wire.connecting() as connection:
        await connection.send(render_chat(SILENT))
        head = await connection.reader.readuntil(b"\r\n\r\n")
        chunk = await connection.reader.readuntil(b"\n\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert chunk.endswith(DELTA + b"\r\n")


async def test_a_stream_that_broke_off_is_not_mended(wire: Wire) -> None:
    wire.upstream.script = writing(*render_chunks([DELTA, EXTRA])[:-1], then="close")
    got = await wire.chat(SILENT)
    assert (got.body, got.is_whole) == (DELTA, False)


async def test_an_answer_that_is_no_stream_is_not_edited(wire: Wire) -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":7}}'
    wire.upstream.script = writing(render_answer(body))
    got = await wire.chat(SILENT)
    assert got.body == body
    assert got.head.values("content-length") == [str(len(body)).encode()]


async def test_a_stream_compressed_although_we_asked_it_not_to_be_is_edited(wire: Wire) -> None:
    headers = [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")]
    body = gzip.compress(DELTA + EXTRA + DONE)
    wire.upstream.script = writing(*render_chunks(cut(body, 9), headers))
    got = await wire.chat(SILENT)
    assert (got.body, got.is_whole) == (DELTA + DONE, True)
    assert got.head.values("content-encoding") == []


async def test_a_stream_in_a_coding_we_do_not_know_passes_as_it_is(wire: Wire) -> None:
    headers = [("Content-Type", "text/event-stream"), ("Content-Encoding", "exotic")]
    wire.upstream.script = writing(render_answer(b"\x01\n\n\x02", headers))
    got = await wire.chat(SILENT)
    assert (got.body, got.head.values("content-encoding")) == (b"\x01\n\n\x02", [b"exotic"])


async def test_a_broken_compressed_stream_breaks_off(wire: Wire) -> None:
    headers = [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")]
    wire.upstream.script = writing(render_answer(gzip.compress(DELTA * 50)[:-9], headers))
    assert not (await wire.chat(SILENT)).is_whole


async def test_an_upstream_that_refuses_the_option_is_asked_without_it() -> None:
    async with opening_wire() as wire:
        wire.upstream.script = in_turn(refusing(), streaming(DELTA, DONE))
        request = render_request(body=SILENT, headers=[("Accept-Encoding", "br"), ("X-Odd", "1")])
        got = await ask(wire.port, request)
        assert (got.status, got.body, got.is_whole) == (200, DELTA + DONE, True)
        first, second = wire.upstream.received
        assert is_asking(first.body)
        assert (second.body, second.head.values("accept-encoding")) == (SILENT, [b"br"])

        # Remembered for this model, and for this model only.
        await wire.chat(SILENT)
        await wire.chat(make_chat(stream=True, model="other"))
        assert [is_asking(seen.body) for seen in wire.upstream.received[2:]] == [False, True]


@pytest.mark.parametrize("size", [200, 100_000])
async def test_another_refusal_is_the_clients(wire: Wire, size: int) -> None:
    body = b'{"error":{"message":"' + b"x" * size + b'"}}'
    wire.upstream.script = refusing(body)
    got = await wire.chat(SILENT)
    assert (got.status, got.body, got.is_whole) == (400, body, True)
    assert len(wire.upstream.received) == 1


async def test_a_refusal_of_an_invalid_request_teaches_nothing() -> None:
    """vLLM quotes the whole request in its refusals: one bad request must not cost us everybody's usage."""
    async with opening_wire() as wire:
        wire.upstream.script = in_turn(
            refusing(), refusing(b'{"error":"bad"}'), streaming(DELTA, EXTRA, DONE)
        )
        got = await wire.chat(SILENT)
        assert (got.status, got.body) == (400, b'{"error":"bad"}')
        assert (await wire.chat(SILENT)).body == DELTA + DONE
        assert [is_asking(seen.body) for seen in wire.upstream.received] == [True, False, True]


async def test_only_chat_streams_are_asked_for_usage(wire: Wire) -> None:
    """The two other formats tell it anyway."""
    for path, body in (
        ("/v1/chat/completions", WHOLE),
        ("/v1/messages", SILENT),
        ("/v1/responses", b'{"model":"m","input":"x","stream":true}'),
        ("/v1/other", SILENT),
    ):
        await wire.ask(render_request(path, body))
        assert wire.upstream.received[-1].body == body


async def test_it_can_be_switched_off_for_an_upstream() -> None:
    async with opening_wire("include_usage: false") as wire:
        wire.upstream.script = streaming(DELTA, EXTRA, DONE)
        got = await wire.chat(SILENT)
        assert got.body == DELTA + EXTRA + DONE
        assert wire.upstream.received[0].body == SILENT


async def test_a_compressed_request_is_asked_for_usage_too(wire: Wire) -> None:
    wire.upstream.script = streaming(DELTA, EXTRA, DONE)
    body = gzip.compress(SILENT)
    got = await wire.ask(render_request(body=body, headers=[("Content-Encoding", "gzip")]))
    [seen] = wire.upstream.received
    assert got.body == DELTA + DONE
    assert is_asking(seen.body)
    assert seen.head.values("content-encoding") == []


async def test_a_client_that_requests_usage_gets_the_chunk(wire: Wire) -> None:
    wire.upstream.script = streaming(DELTA, EXTRA, DONE)
    assert (await wire.chat(STREAMED)).body == DELTA + EXTRA + DONE
    assert wire.upstream.received[0].body == STREAMED


async def test_a_strict_upstream_accepts_the_added_option() -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy)) as gateway:
        through = await ask(gateway.port, render_chat(SILENT))
        directly = await ask(toy.port, render_chat(SILENT))
        events = [event.replace(b',"usage":null', b"") for event in through.body.split(b"\n\n")]
        # The toy numbers its answers.
        assert b"\n\n".join(events).replace(b"chatcmpl-1", b"chatcmpl-2") == directly.body
        assert [seen.refusal for seen in toy.requests] == [None, None]
