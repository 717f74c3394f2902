import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.response.raw_events import RawEvent, RawEventSplitter, is_closed, with_data
from gateway.wire.sse import SseEvent, parse_event
from tests.shared_data import requires_shared
from tests.wire.recorded import cut, cut_anywhere, load_responses, parse_stream

_STREAMS = st.lists(
    st.sampled_from(
        [
            *(
                b"data: a",
                b"data:",
                b"data: [DONE]",
                b"event: x",
                b"id: 1",
                b"\xef\xbb\xbf",
                b": alive",
                b":",
            ),
            *(b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\r", b"\r\r", b"x" * 9),
        ]
    ),
    max_size=16,
).map(b"".join)


def split(*chunks: bytes, max_event_bytes: int = 1 << 20) -> list[RawEvent]:
    splitter = RawEventSplitter(max_event_bytes)
    return [found for chunk in chunks for found in splitter.feed(chunk)] + splitter.finish()


def list_events(found: list[RawEvent]) -> list[SseEvent]:
    return [event for _, event in found if event is not None]


@given(_STREAMS, st.integers(1, 7), st.integers(4, 40))
@example(b"data: a\r\n\r\ndata: a\n\n", 1, 40)
def test_no_byte_is_lost_and_the_events_are_those_of_the_standard(
    stream: bytes, size: int, bound: int
) -> None:
    found = split(*cut(stream, size), max_event_bytes=bound)
    assert b"".join(raw for raw, _ in found) == stream
    assert list_events(found) == list_events(split(stream, max_event_bytes=bound))
    assert list_events(split(*cut(stream, size))) == parse_stream(stream)


@requires_shared
def test_recorded_streams_keep_their_bytes_and_events() -> None:
    streams = [response.body for response in load_responses() if response.is_stream]
    for seed, stream in enumerate(streams):
        found = split(*cut_anywhere(stream, seed))
        assert b"".join(raw for raw, _ in found) == stream
        assert list_events(found) == parse_stream(stream)
    assert len(streams) > 50


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    splitter = RawEventSplitter()
    assert splitter.feed(b"data: a\n") == []
    assert splitter.feed(b"\nda") == [RawEvent(b"data: a\n\n", SseEvent("message", b"a"))]
    assert splitter.held_bytes == 2
    assert splitter.feed(b"ta: b\n\n") == [RawEvent(b"data: b\n\n", SseEvent("message", b"b"))]


def test_a_keep_alive_waits_for_no_event() -> None:
    splitter = RawEventSplitter()
    assert splitter.feed(b": alive\n") == [RawEvent(b": alive\n", None)]
    assert splitter.feed(b"\n: again\n\nda") == [RawEvent(b"\n: again\n\n", None)]


def test_half_of_a_line_end_waits_for_the_other_half() -> None:
    splitter = RawEventSplitter()
    assert splitter.feed(b"data: a\r\n\r") == []
    assert splitter.feed(b"\nd") == [RawEvent(b"data: a\r\n\r\n", SseEvent("message", b"a"))]


def test_what_is_above_the_bound_passes_in_pieces_without_an_event() -> None:
    stream = b"data: %s\n\ndata: b\n\n: %s\ndata: c\n\n" % (b"x" * 100, b"y" * 100)
    splitter = RawEventSplitter(20)
    found = []
    for chunk in cut(stream, 3):
        found += splitter.feed(chunk)
        assert splitter.held_bytes <= 23
    assert b"".join(raw for raw, _ in found) == stream
    assert list_events(found) == [SseEvent("message", b"b"), SseEvent("message", b"c")]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\n", True),
        (b"data: a\r\n\r\n", True),
        (b"data: a\r\r", True),
        (b"data: a\r\n", False),
        (b"data: a\n", False),
        (b"", False),
    ],
)
def test_an_event_ends_with_a_blank_line(raw: bytes, expected: bool) -> None:
    assert is_closed(raw) is expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\n", b"data: {}\n\n"),
        (b"event: x\r\ndata:a\r\nid: 1\r\n\r\n", b"event: x\r\ndata: {}\r\nid: 1\r\n\r\n"),
        (b"data: a\n: hm\ndata: b\n\n", b"data: {}\n: hm\n\n"),
        (b"data", b"data: {}"),
    ],
)
def test_other_data_keeps_the_other_lines(raw: bytes, expected: bytes) -> None:
    assert with_data(raw, b"{}") == expected
    event = parse_event(expected.replace(b"\r\n", b"\n").rstrip(b"\n"))
    assert event is not None
    assert event.data == b"{}"
