"""Bytes of a response: packed in any coding, cut anywhere, and their server-sent events."""

import gzip
import json
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.content_encoding import DecodeError, decode_body, make_decoder
from gateway.wire.reader import Reading, ResponseEvents, ResponseReader, SummaryReader, SummaryResponse
from gateway.wire.sse import EventSplitter, SseEvent, UsageChunkFilter, render_event
from tests.shared_data import requires_shared
from tests.wire.recorded import (
    CODINGS,
    USAGE_FLAGS,
    RecordedResponse,
    cut,
    cut_anywhere,
    draw_cuts,
    load_responses,
    load_some_responses,
    parse_stream,
    split,
)
from tests.wire.shapes import A_REPLY, A_TEXT, A_WORD, SHAPES, THINKING, Shape, in_each_format


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        *((b"data: a\n\n", [("message", b"a")]), (b"data:a\n\n", [("message", b"a")])),
        *((b"data:  a\n\n", [("message", b" a")]), (b"data\n\n", [("message", b"")])),
        *((b"data: a\ndata: b\n\n", [("message", b"a\nb")]), (b"event: x\ndata: a\n\n", [("x", b"a")])),
        (b"event:x\nid: 7\nretry: 9\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("message", b"b")]),
        (b"event: x\n\n", []),
        (b": keep-alive\n\n: again\ndata: a\n\n", [("message", b"a")]),
        (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [("message", b"a"), ("message", b"b")]),
        (
            b"data: a\r\n\r\ndata: b\r\rdata: c\n\r\ndata: d\r\n\n",
            [("message", x) for x in (b"a", b"b", b"c", b"d")],
        ),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [("message", b"a")]),
        (b"database: a\n\n", []),
        (b"data: a\n\ndata: [DONE]", [("message", b"a"), ("message", b"[DONE]")]),
        *((b"\xef\xbb", []), (b"", [])),
    ],
)
def test_a_stream_is_parsed_as_the_standard_requires(
    stream: bytes, expected: list[tuple[str, bytes]]
) -> None:
    assert parse_stream(stream) == expected
    assert parse_stream(*cut(stream, 1)) == expected


_PIECES = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"\n\n", b"data", b"data: x", b":", b" ", b"event: e", b"\xef\xbb\xbf", b"y" * 9]
)


@given(st.lists(_PIECES).map(b"".join), st.data())
def test_cuts_never_change_the_events(stream: bytes, data: st.DataObject) -> None:
    for chunks in (draw_cuts(data, stream), cut(stream, 1)):
        assert parse_stream(*chunks) == parse_stream(stream)
        assert split(*chunks, max_event_bytes=12) == split(stream, max_event_bytes=12)


def test_rendered_events_are_parsed_back() -> None:
    events = [SseEvent("message", b"[DONE]"), SseEvent("response.created", b'{"a": " :"}')]
    assert parse_stream(*map(render_event, events)) == events


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\n") == []
    assert splitter.feed(b"\nda") == [SseEvent("message", b"a")]
    assert splitter.held_bytes == 2
    assert splitter.feed(b"ta: b\n\n") == [SseEvent("message", b"b")]


def test_what_is_above_the_bound_is_not_held_and_no_event() -> None:
    splitter, found = EventSplitter(20), []
    for chunk in cut(b"data: %s\n\ndata: b\n\n: %s\n\ndata: c\n\n" % (b"x" * 100, b"y" * 100), 3):
        found += splitter.feed(chunk)
        assert splitter.held_bytes <= 23
    assert found == [SseEvent("message", b"b"), SseEvent("message", b"c")]


_BODY = json.dumps({"id": "1", "choices": []}).encode()
_STREAM = b'data: {"id":"1"}\n\nevent: end\ndata: 2\n\n'
_EVENTS = [SseEvent("message", b'{"id":"1"}'), SseEvent("end", b"2")]


def read_events(*chunks: bytes, content_type: str = "", encoding: str = "") -> list[SseEvent]:
    events = ResponseEvents(content_type, encoding)
    found = []
    for chunk in chunks:
        found += events.feed(chunk)
        while events.is_behind:
            found += events.catch_up()
    return found + events.finish()


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", ""])
def test_the_bytes_decide_what_is_a_stream(content_type: str) -> None:
    assert read_events(_STREAM, content_type=content_type) == _EVENTS
    assert read_events(*cut(_STREAM, 1), content_type=content_type) == _EVENTS
    assert read_events(_BODY, content_type=content_type) == [SseEvent("", _BODY)]


def test_blanks_and_a_bom_before_the_body_are_skipped() -> None:
    assert read_events(b" \n" * 1_000, b"\xef\xbb\xbf", _BODY) == [SseEvent("", _BODY)]
    assert read_events(b"\n\n", _STREAM) == _EVENTS


def test_there_are_no_events_after_bytes_that_cannot_be_decoded() -> None:
    assert read_events(b"no gzip", gzip.compress(_STREAM), encoding="gzip") == []
    assert read_events(_STREAM, encoding="unknown") == []


def _raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


_CASES: list[tuple[str, Callable[[bytes], bytes]]] = [
    *(("", bytes), ("identity", bytes), ("gzip", gzip.compress), ("x-gzip", gzip.compress)),
    ("GZip", gzip.compress),
    ("gzip", lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])),
    *(("gzip", lambda data: gzip.compress(data) + b"\0" * 20), ("deflate", zlib.compress)),
    *(("deflate", _raw_deflate), ("br", brotli.compress), ("zstd", zstandard.compress)),
    ("zstd", lambda data: zstandard.compress(data[:5]) + zstandard.compress(data[5:])),
    ("zstd", lambda data: b"\x50\x2a\x4d\x18\x01\0\0\0x" + zstandard.compress(data)),
    ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    ("deflate,identity,  zstd", lambda data: zstandard.compress(zlib.compress(data))),
]
_PACKED = [case for case in _CASES if case[1] is not bytes]
cases = pytest.mark.parametrize(("encoding", "pack"), _CASES)
packed = pytest.mark.parametrize(("encoding", "pack"), _PACKED)


def _decode(encoding: str, *chunks: bytes) -> bytes:
    decoder = make_decoder(encoding)
    assert decoder is not None
    plain = b"".join([piece for chunk in chunks for piece in decoder.feed(chunk)])
    decoder.finish()
    return plain


@cases
@given(plain=st.binary(max_size=2000), cut=st.integers(0, 2000))
def test_a_coding_is_undone_however_it_is_cut(
    encoding: str, pack: Callable[[bytes], bytes], plain: bytes, cut: int
) -> None:
    body = pack(plain)
    assert _decode(encoding, body) == plain
    assert _decode(encoding, body[:cut], body[cut:]) == plain


@packed
def test_bytes_before_a_break_come_before_the_error(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    plain = bytes(range(256)) * 40
    decoder = make_decoder(encoding)
    assert decoder is not None
    assert plain.startswith(b"".join(decoder.feed(pack(plain).rstrip(b"\0")[:-3])))
    with pytest.raises(DecodeError):
        decoder.finish()


@packed
def test_a_decompression_bomb_is_refused(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(bytes(9_000_000))
    with pytest.raises(DecodeError):
        decode_body(bomb, encoding, 1_000_000)
    assert len(decode_body(bomb, encoding, 9_000_000)) == 9_000_000


@cases
def test_the_bound_is_exact(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    assert decode_body(pack(b"x" * 100), encoding, 100) == b"x" * 100
    with pytest.raises(DecodeError):
        decode_body(pack(b"x" * 101), encoding, 100)


@pytest.mark.parametrize("encoding", ["compress", "aws-chunked", "gzip, rot13", ", ".join(["gzip"] * 5)])
def test_unknown_codings_and_long_lists_have_no_decoder(encoding: str) -> None:
    assert make_decoder(encoding) is None
    with pytest.raises(DecodeError):
        decode_body(b"x", encoding, 10)


Facts = tuple[Reading, SummaryResponse]
_ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])


def read_all(shape: Shape, chunks: list[bytes], kind: str = "", coding: str = "") -> Facts:
    """What both readers find in a response."""
    reader, summary = ResponseReader(kind, coding), SummaryReader(kind, coding)
    for chunk in chunks:
        for each in (reader, summary):
            each.feed(chunk)
            while each.is_behind:
                each.catch_up()
    reader.flush()
    while reader.is_behind:
        reader.catch_up()
    return reader.finish(), summary.finish()


@in_each_format
@pytest.mark.parametrize("coding", CODINGS)
@_ENDS
def test_a_response_is_the_same_however_it_is_cut_and_packed(shape: Shape, coding: str, end: bytes) -> None:
    for reply, reason in ((A_REPLY, "tool"), (A_TEXT, "")):
        stream = shape.stream(reply).replace(b"\n", end)
        reading, summary = whole = read_all(shape, [stream])
        assert (summary.text, summary.has_tool_calls) == (reply.text, bool(reply.tool_calls))
        assert reading.usage == summary.usage and reading.usage is not None
        assert reading.usage.prompt_tokens == 100 and reading.usage.output_tokens > 0
        assert reading.is_complete and summary.is_complete and not reading.has_error
        assert reason in str(reading.finish_reason) or shape.name == "responses"
        packed = CODINGS[coding](stream)
        assert read_all(shape, cut(packed, 1), coding=coding) == whole
        assert read_all(shape, cut_anywhere(packed, 3), coding=coding) == whole


@in_each_format
@_ENDS
def test_a_cut_at_any_byte_changes_no_fact_and_no_byte(shape: Shape, end: bytes) -> None:
    stream = shape.stream(A_WORD).replace(b"\n", end)
    whole, events = read_all(shape, [stream]), parse_stream(stream)
    shown = UsageChunkFilter()
    kept = shown.feed(stream) + shown.finish()
    for at in range(len(stream)):
        halves = [stream[:at], stream[at:]]
        assert parse_stream(*halves) == events
        shown = UsageChunkFilter()
        assert shown.feed(halves[0]) + shown.feed(halves[1]) + shown.finish() == kept
    for at in range(len(stream) - 200, len(stream)):
        assert read_all(shape, [stream[:at], stream[at:]]) == whole


@in_each_format
@pytest.mark.parametrize("coding", CODINGS)
def test_a_whole_body_is_the_same_however_it_is_cut_and_packed(shape: Shape, coding: str) -> None:
    body = shape.answer(A_TEXT, **THINKING)
    whole = read_all(shape, [body], "application/json")
    assert whole[1].text == A_TEXT.text and whole[0].usage is not None and whole[0].is_complete
    packed = CODINGS[coding](b" \n" + body)
    for chunks in (cut(packed, 1), cut_anywhere(packed, 5)):
        assert read_all(shape, chunks, "application/json", coding) == whole
    assert not read_all(shape, [body[:-1]], "application/json")[0].is_complete


def check_recorded(response: RecordedResponse) -> None:
    shape, kind, body = SHAPES["chat"], response.content_type, response.body
    reading, summary = whole = read_all(shape, [body], kind)
    assert reading.is_complete and reading.finish_reason and not reading.has_error, response.file
    assert summary.text or summary.has_tool_calls, response.file
    if response.flags & USAGE_FLAGS or not response.is_stream:
        assert reading.usage, response.file
    if response.is_stream:
        assert parse_stream(*cut(body, 1)) == parse_stream(body) != []
    for chunks in (cut(body, 1), cut(body, 7), cut_anywhere(body, 2)):
        assert read_all(shape, chunks, kind) == whole, response.file
    for coding, pack in CODINGS.items():
        assert read_all(shape, cut_anywhere(pack(body), 3), kind, coding) == whole, response.file


@requires_shared
def test_some_recorded_responses_are_the_same_however_they_are_cut_and_packed() -> None:
    for response in load_some_responses():
        check_recorded(response)


@requires_shared
@pytest.mark.exhaustive
def test_all_recorded_responses_are_the_same_however_they_are_cut_and_packed() -> None:
    assert len(load_responses()) > 100
    for response in load_responses():
        check_recorded(response)
