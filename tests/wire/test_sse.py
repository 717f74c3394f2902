import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.sse import SseEvent, SseParser, render_event
from tests.shared_data import requires_shared
from tests.wire.recorded import cut, cut_anywhere, load_answers


def _parse(*chunks: bytes, max_event_bytes: int = 1 << 24) -> list[SseEvent]:
    parser = SseParser(max_event_bytes)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [("message", b"a")]),
        (b"data:a\n\n", [("message", b"a")]),
        (b"data:  a\n\n", [("message", b" a")]),
        (b"data\n\n", [("message", b"")]),
        (b"data: a\ndata: b\n\n", [("message", b"a\nb")]),
        (b"event: x\ndata: a\n\n", [("x", b"a")]),
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
        (b"\xef\xbb", []),
        (b"", []),
    ],
)
def test_a_stream_is_read_as_the_standard_says(stream: bytes, expected: list[tuple[str, bytes]]) -> None:
    assert _parse(stream) == expected
    assert _parse(*cut(stream, 1)) == expected


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\n\r") == [SseEvent("message", b"a")]
    assert parser.feed(b"\ndata: b\n\n") == [SseEvent("message", b"b")]


_PIECES = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"\n\n", b"data", b"data: x", b":", b" ", b"event: e", b"\xef\xbb\xbf", b"y" * 9]
)


@given(st.lists(_PIECES).map(b"".join), st.data())
@example(b"data: x\r\n\r\n", None)
@example(b"\n\n\ndata: xdata\n\n", None)
def test_cuts_never_matter(stream: bytes, data: st.DataObject | None) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream))))) if data else range(len(stream))
    chunks = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    assert _parse(*chunks) == _parse(stream)
    assert _parse(*chunks, max_event_bytes=12) == _parse(stream, max_event_bytes=12)


@pytest.mark.parametrize(
    "event", [SseEvent("message", b"[DONE]"), SseEvent("response.created", b'{"a": " :"}')]
)
def test_an_event_that_is_written_is_read_back(event: SseEvent) -> None:
    assert SseParser().feed(render_event(event)) == [event]


def test_an_event_of_no_name_of_its_own_is_its_data_alone() -> None:
    assert render_event(SseEvent("message", b"{}")) == b"data: {}\n\n"


def test_an_event_beyond_the_bound_is_dropped_and_the_next_one_is_read() -> None:
    stream = b"data: " + b"x" * 100 + b"\n\ndata: a\n\n"
    assert _parse(stream, max_event_bytes=50) == [("message", b"a")]
    assert _parse(*cut(stream, 3), max_event_bytes=50) == [("message", b"a")]


@requires_shared
def test_recorded_streams_read_the_same_however_they_are_cut() -> None:
    for answer in load_answers():
        if not answer.is_stream:
            continue
        whole = _parse(answer.body)
        assert whole
        for chunks in (cut(answer.body, 1), cut(answer.body, 7), cut_anywhere(answer.body, 1)):
            assert _parse(*chunks) == whole, answer.file
