import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.sse import BlockSplitter, SseEvent, render_event
from tests.shared_data import requires_shared
from tests.wire.recorded import cut, cut_anywhere, load_responses, parse_stream


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
def test_a_stream_is_parsed_as_the_standard_requires(
    stream: bytes, expected: list[tuple[str, bytes]]
) -> None:
    assert parse_stream(stream) == expected
    assert parse_stream(*cut(stream, 1)) == expected


def test_a_block_is_given_as_soon_as_its_blank_line_arrives() -> None:
    splitter = BlockSplitter()
    assert splitter.feed(b"data: a\r") == []
    assert splitter.feed(b"\n\r") == [b"data: a"]
    assert splitter.feed(b"\ndata: b\n\n") == [b"data: b"]


_PIECES = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"\n\n", b"data", b"data: x", b":", b" ", b"event: e", b"\xef\xbb\xbf", b"y" * 9]
)


@given(st.lists(_PIECES).map(b"".join), st.data())
@example(b"data: x\r\n\r\n", None)
@example(b"\n\n\ndata: xdata\n\n", None)
def test_cuts_between_chunks_never_matter(stream: bytes, data: st.DataObject | None) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream))))) if data else range(len(stream))
    chunks = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    assert parse_stream(*chunks) == parse_stream(stream)
    assert parse_stream(*chunks, max_event_bytes=12) == parse_stream(stream, max_event_bytes=12)


@pytest.mark.parametrize(
    "event", [SseEvent("message", b"[DONE]"), SseEvent("response.created", b'{"a": " :"}')]
)
def test_a_rendered_event_is_parsed_back(event: SseEvent) -> None:
    assert parse_stream(render_event(event)) == [event]


def test_the_default_name_is_not_rendered() -> None:
    assert render_event(SseEvent("message", b"{}")) == b"data: {}\n\n"


def test_an_event_above_the_bound_is_dropped_and_the_next_one_is_given() -> None:
    stream = b"data: " + b"x" * 100 + b"\n\ndata: a\n\n"
    assert parse_stream(stream, max_event_bytes=50) == [("message", b"a")]
    assert parse_stream(*cut(stream, 3), max_event_bytes=50) == [("message", b"a")]


@requires_shared
def test_recorded_streams_give_the_same_events_however_they_are_cut() -> None:
    for response in load_responses():
        if not response.is_stream:
            continue
        whole = parse_stream(response.body)
        assert whole
        for chunks in (cut(response.body, 1), cut(response.body, 7), cut_anywhere(response.body, 1)):
            assert parse_stream(*chunks) == whole, response.file
