"""Bytes that decode to far more than they are: each costs little, and others have their turn meanwhile."""

import asyncio
import gzip
import zlib
from collections.abc import Callable
from typing import Final

import brotli
import pytest
import zstandard

from gateway.wire.content_encoding import STEP_BYTES, DecodeError, decode_body, make_decoder
from gateway.wire.response.events import MAX_BODY_BYTES
from gateway.wire.response.facts import ResponseFacts
from gateway.wire.response.reader import ResponseReader
from gateway.wire.sse import MAX_EVENT_BYTES, SseEvent
from tests.hostile.growth import measure_peak
from tests.hostile.steps import count_steps
from tests.wire_through.raw import render_answer, render_request, writing
from tests.wire_through.wiring import JSON_HEADERS, STREAMED, WHOLE, make_chat, opening_wire

_MIB: Final = 1 << 20
_PLAIN_BYTES: Final = 64 * _MIB


def _pack_brotli(data: bytes) -> bytes:
    return bytes(brotli.compress(data, quality=5))


def _pack_twice(data: bytes) -> bytes:
    return _pack_brotli(_pack_brotli(data))


# Every step of the inner coding gives nothing outside.
def _pack_nothing(data: bytes) -> bytes:
    empty = gzip.compress(b"")
    return _pack_brotli(empty * (len(data) // len(empty)))


_BOMBS: Final[list[tuple[str, Callable[[bytes], bytes]]]] = [
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("br", _pack_brotli),
    ("zstd", zstandard.compress),
    ("br, br", _pack_twice),
    ("gzip, br", _pack_nothing),
]
_bombs = pytest.mark.parametrize(
    ("encoding", "pack"), _BOMBS, ids=["gzip", "deflate", "br", "zstd", "br twice", "nothing"]
)


@_bombs
def test_a_step_of_a_bomb_is_small(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    decoder = make_decoder(encoding)
    assert decoder is not None
    before = 0
    for _, piece in zip(range(300), decoder.feed(pack(bytes(_PLAIN_BYTES))), strict=False):
        assert len(piece) <= STEP_BYTES
        assert decoder.work_bytes - before <= 2 * STEP_BYTES
        before = decoder.work_bytes


@_bombs
def test_a_body_that_decodes_to_too_much_is_given_up_at_its_bound(
    encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    bomb = pack(bytes(_PLAIN_BYTES))

    def decode() -> None:
        with pytest.raises(DecodeError):
            decode_body(bomb, encoding, _MIB)

    # Python does not see the windows of the decoders.
    assert measure_peak(decode) < 8 * _MIB


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_many_members_take_time_by_their_number(pack: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if pack is gzip.compress else "zstd"

    def decode(members: int) -> int:
        return count_steps(lambda: decode_body(pack(b"x") * members, encoding, 8 * _MIB))

    assert 1.8 < decode(4_000) / decode(2_000) < 2.2


@_bombs
def test_the_reader_of_a_response_gives_a_bomb_up(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    reader = ResponseReader("text/event-stream", encoding)
    reader.feed(pack(bytes(_PLAIN_BYTES)))
    reader.flush()
    steps = 0
    while reader.is_behind:
        reader.catch_up()
        steps += 1
    # Each step is as long as one of a response that is not compressed.
    assert 1 < steps < 3_000
    assert reader.held_bytes == 0
    assert reader.finish().usage is None


def test_a_client_that_hangs_up_on_a_bomb_leaves_no_long_work_behind() -> None:
    reader = ResponseReader("text/event-stream", "gzip")
    events = gzip.compress(b"data:1\n\n" * (_PLAIN_BYTES // 8))
    reader.feed(events)
    assert count_steps(reader.finish) < 5_000_000


@pytest.mark.parametrize("line", [b"data:1\n", b":\n", b"\n", b"\r", b"data:1\r", b" ", b"x"], ids=repr)
def test_a_response_without_an_end_is_not_kept(line: bytes) -> None:
    reader = ResponseReader("text/event-stream", "")
    piece = line * (_MIB // len(line))

    def read() -> None:
        for _ in range(20):
            reader.feed(piece)
            while reader.is_behind:
                reader.catch_up()
        reader.finish()

    assert measure_peak(read) < 4 * MAX_EVENT_BYTES
    assert reader.held_bytes <= 2 * MAX_BODY_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":[' + b"{}," * 3_000_000 + b"{}]}",
        b'{"choices":[' + b"{}," * 3_000_000 + b"{}]}",
        b'{"response":{"output":[' + b"{}," * 3_000_000 + b'{}],"usage":{"input_tokens":3}}}',
        b"[" + b"{}," * 3_000_000 + b"{}]",
    ],
    ids=["unknown field", "choices", "output", "list"],
)
def test_a_large_document_is_not_turned_into_objects(body: bytes) -> None:
    facts = ResponseFacts()
    assert measure_peak(lambda: facts.note(SseEvent("", body))) < _MIB


async def test_others_are_answered_while_a_bomb_is_decoded_for_its_client() -> None:
    """The gateway takes its own usage chunk out of this stream, so it has to decode it."""
    bomb = _pack_brotli(bytes(4 * _PLAIN_BYTES))
    headers = (("Content-Type", "text/event-stream"), ("Content-Encoding", "br"))
    async with opening_wire() as wire:
        wire.upstream.script = writing(render_answer(bomb, headers))
        asked = asyncio.create_task(wire.chat(make_chat(stream=True)))
        while not wire.upstream.received:
            await asyncio.sleep(0)
        healthy = await wire.ask(render_request("/healthz", method="GET"))
        assert healthy.status == 200
        assert not asked.done()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


@pytest.mark.parametrize("body", [WHOLE, STREAMED], ids=["whole", "stream"])
async def test_a_bomb_that_need_not_be_decoded_passes_as_it_came(body: bytes) -> None:
    bomb = _pack_brotli(bytes(4 * _PLAIN_BYTES))
    headers = (("Content-Type", "application/json"), ("Content-Encoding", "br"))
    async with opening_wire() as wire:
        wire.upstream.script = writing(render_answer(bomb, headers))
        got = await wire.chat(body)
        assert (got.body, got.is_whole) == (bomb, True)


async def test_twenty_bombs_of_clients_pass_unread_as_they_came() -> None:
    bomb = _pack_brotli(bytes(_PLAIN_BYTES))
    request = render_request(body=bomb, headers=(*JSON_HEADERS, ("Content-Encoding", "br")))
    async with opening_wire(more="listen: {max_body_bytes: 4194304}\n") as wire:
        got = await asyncio.gather(*[wire.ask(request) for _ in range(20)])
        assert {each.status for each in got} == {200}
        assert [each.body for each in wire.upstream.received] == [bomb] * 20
