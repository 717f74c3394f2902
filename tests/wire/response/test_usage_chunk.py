import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.response.usage_chunk import UsageChunkFilter
from tests.shared_data import requires_shared
from tests.wire.recorded import cut, cut_anywhere, load_responses

EXTRA = b'data: {"choices":[],"usage":{"prompt_tokens":1}}'
TEXT = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}'
AZURE = b'data: {"choices":[],"prompt_filter_results":[]}'
NULL = b'data: {"choices":[],"usage":null}'
SPACED_NULL = b'data: {"choices": [], "usage": null}'
WITH_CHOICES = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}'
DONE = b"data: [DONE]"


def _filter(*chunks: bytes) -> bytes:
    usage_filter = UsageChunkFilter()
    return b"".join([usage_filter.feed(chunk) for chunk in chunks]) + usage_filter.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "extra",
    [
        EXTRA,
        EXTRA.replace(b"data: ", b"data:"),
        b'data: { "usage" : {"prompt_tokens" : 1}, "choices" : [ ] }',
        b"id: 7{end}" + EXTRA,
        EXTRA + b"{end}event: x",
    ],
)
def test_exactly_the_usage_chunk_is_removed(end: bytes, extra: bytes) -> None:
    blank = end + end
    before = TEXT + blank + AZURE + blank + NULL + blank + SPACED_NULL + blank + WITH_CHOICES + blank
    after = DONE + blank + b": bye" + blank
    stream = before + extra.replace(b"{end}", end) + blank + after
    for chunks in ([stream], cut(stream, 1), cut(stream, 7), stream.splitlines(keepends=True)):
        assert _filter(*chunks) == before + after


@pytest.mark.parametrize(
    "kept",
    [
        EXTRA + b"\n" + DONE + b"\n\n",
        TEXT + b"\n" + EXTRA + b"\n\n",
        b'data: {"choices":[],\ndata: "usage":{}}\n\n',
        b'data: {"choices":[],"usage":{"note":"' + b"x" * 70_000 + b'"}}\n\n',
        b"id: " + b"x" * 70_000 + b"\n" + EXTRA + b"\n\n",
        b'data: {"choices":[],"usage":{"a":NaN}}\n\n',
        b'data: {"choices":{},"usage":{}}\n\n',
        b'data: {"usage":{}}\n\n',
        b'data: {"choices":[],"usage":7}\n\n',
        b"data: " + b'{"usage":' * 5_000 + b"\n\n",
        b"xdata: " + EXTRA + b"\n\n",
    ],
)
def test_chunks_that_resemble_the_usage_chunk_stay(kept: bytes) -> None:
    for chunks in ([kept], cut(kept, 7), cut_anywhere(kept, 4)):
        assert _filter(*chunks) == kept


def test_the_usage_chunk_is_removed_at_the_end_of_a_stream_without_a_blank_line() -> None:
    assert _filter(TEXT + b"\n\n" + EXTRA) == TEXT + b"\n\n"
    assert _filter(TEXT + b"\n\n" + EXTRA + b"\n") == TEXT + b"\n\n"


def test_comments_before_the_usage_chunk_are_sent_at_once() -> None:
    usage_filter = UsageChunkFilter()
    assert usage_filter.feed(b": keep-alive\n") == b": keep-alive\n"
    assert usage_filter.feed(EXTRA + b"\n\n") == b""


def test_lines_of_other_events_are_sent_before_the_blank_line() -> None:
    usage_filter = UsageChunkFilter()
    assert usage_filter.feed(TEXT + b"\n") == TEXT + b"\n"
    assert usage_filter.feed(TEXT + b"\n" + TEXT[:9]) == TEXT + b"\n" + TEXT[:9]


def test_a_long_line_is_not_held_back() -> None:
    usage_filter = UsageChunkFilter()
    sent = b"".join([usage_filter.feed(b"x" * 1000) for _ in range(100)])
    assert len(sent) == 100_000


_PIECES = st.sampled_from(
    [
        EXTRA,
        TEXT,
        AZURE,
        WITH_CHOICES,
        DONE,
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b": c",
        b"event: e",
        b"data",
        b"\xff",
    ]
)


@given(st.lists(_PIECES, max_size=25).map(b"".join), st.data())
def test_cuts_between_chunks_never_matter(stream: bytes, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    assert _filter(*chunks) == _filter(stream) == _filter(*cut(stream, 1))


@given(st.lists(st.one_of(_PIECES.filter(lambda piece: piece != EXTRA), st.binary(max_size=30)), max_size=25))
def test_streams_without_a_usage_chunk_stay_the_same(chunks: list[bytes]) -> None:
    assert _filter(*chunks) == b"".join(chunks)


@requires_shared
def test_recorded_streams_lose_only_the_usage_chunk() -> None:
    for response in load_responses():
        if not response.is_stream:
            continue
        events = response.body.split(b"\n\n")
        kept = [event for event in events if not _is_extra(event)]
        expected = b"\n\n".join(kept)
        assert (len(kept) < len(events)) == ("usage_chunk_empty_choices" in response.flags), response.file
        for chunks in (
            [response.body],
            cut(response.body, 1),
            cut(response.body, 7),
            cut_anywhere(response.body, 5),
        ):
            assert _filter(*chunks) == expected, response.file


def _is_extra(event: bytes) -> bool:
    return b'"choices":[]' in event and b'"usage":{' in event
