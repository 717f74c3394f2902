import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.refusal.overflow import Overflow, Refusal, parse_overflow
from gateway.wire.response.stream_start import (
    MAX_START_BYTES,
    Refused,
    Started,
    StreamStart,
    Undecided,
    Verdict,
)
from tests.shared_data import requires_shared
from tests.wire.recorded import cut, cut_anywhere, load_responses

_TEXT = "prompt is too long: 213462 tokens > 200000 maximum"
_ERROR = {"error": {"message": _TEXT, "code": 400}}


def _event(document: object, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document)}\n\n".encode()


def _chunk(finish: str | None = None, **delta: object) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None})


_ROLE = _chunk(role="assistant", content="")
_PREAMBLES = [
    b": OPENROUTER PROCESSING\n\n",
    b"event: ping\ndata: {}\n\n",
    b"retry: 3000\n\n",
    b"data:\n\n",
    _ROLE,
    _chunk(content=""),
    _event({"choices": [], "prompt_filter_results": []}),
    _event({"choices": [], "usage": {"prompt_tokens": 3}}),
    _event({"type": "message_start", "message": {"content": []}}, "message_start"),
    _event({"type": "ping"}, "ping"),
    _event({"type": "keepalive"}, "keepalive"),
    _event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
    _event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created"),
    _event({"type": "response.in_progress", "response": {"status": "in_progress"}}),
]
_STARTS = [
    _chunk(content="x"),
    _chunk(reasoning_content="x"),
    _chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f"}}]),
    _chunk(refusal="no"),
    _chunk("stop"),
    _chunk("length"),
    b"data: [DONE]\n\n",
    _event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}),
    _event({"type": "response.output_item.added", "item": {}}),
    _event({"type": "response.completed", "response": {"status": "completed"}}),
]
_REFUSALS = [
    _event(_ERROR),
    _event({"type": "error"} | _ERROR, "error"),
    _event({"type": "response.failed", "response": {"status": "failed"} | _ERROR}, "response.failed"),
    b"error: " + json.dumps(_ERROR["error"]).encode() + b"\n\n",
    f"event: error\ndata: {_TEXT}\n\n".encode(),
]


def _feed(*chunks: bytes) -> Verdict:
    start = StreamStart()
    verdict: Verdict = Undecided()
    for chunk in chunks:
        verdict = start.feed(chunk)
    return verdict


def _whole(*chunks: bytes) -> Verdict:
    start = StreamStart()
    for chunk in chunks:
        start.feed(chunk)
    return start.finish()


@pytest.mark.parametrize("preamble", _PREAMBLES)
def test_events_before_the_reply_decide_nothing(preamble: bytes) -> None:
    assert _feed(preamble * 20) == Undecided()
    assert _feed(preamble, _chunk(content="x")) == Started()


@pytest.mark.parametrize("first", _STARTS)
def test_the_first_content_or_the_end_starts_the_stream(first: bytes) -> None:
    assert _feed(*_PREAMBLES, first) == Started()


@pytest.mark.parametrize("refusal", _REFUSALS)
def test_an_error_before_the_first_content_is_a_refusal(refusal: bytes) -> None:
    verdict = _feed(*_PREAMBLES, refusal)
    assert isinstance(verdict, Refused)
    assert parse_overflow(verdict.refusal) == Overflow(context=200_000, used=213_462, prompt_tokens=213_462)


def test_an_error_after_the_first_content_is_not_a_refusal() -> None:
    assert _feed(_ROLE, _chunk(content="x"), _event(_ERROR)) == Started()
    assert _feed(_ROLE + _chunk(content="x") + _event(_ERROR)) == Started()


@pytest.mark.parametrize(
    "end",
    [
        _chunk("model_context_window_exceeded", content=""),
        _event({"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}}),
    ],
)
def test_a_full_window_before_any_content_is_a_refusal(end: bytes) -> None:
    assert _feed(_ROLE, end) == Refused(Refusal(200, ("model_context_window_exceeded",)))
    assert _feed(_ROLE, _chunk(content="x"), end) == Started()
    assert _feed(_chunk("model_context_window_exceeded", content="x")) == Started()


def test_the_verdict_never_changes_once_it_is_made() -> None:
    start = StreamStart()
    assert isinstance(start.feed(_event(_ERROR)), Refused)
    assert isinstance(start.feed(_chunk(content="x")), Refused)
    assert isinstance(start.finish(), Refused)


def test_events_of_an_unknown_kind_are_not_held_back_for_long() -> None:
    unknown = _event({"token": {"text": "x"}})
    assert _feed(unknown * 3) == Undecided()
    assert _feed(unknown * 3 + b"data: not json\n\n") == Started()
    assert isinstance(_feed(unknown * 3 + _event(_ERROR)), Refused)


def test_a_long_stream_without_content_is_not_held_back_forever() -> None:
    comment = b": " + b"x" * 1021 + b"\n"
    assert _feed(comment * (MAX_START_BYTES // 1024 - 1)) == Undecided()
    assert _feed(comment * (MAX_START_BYTES // 1024)) == Started()
    assert _feed(comment * (MAX_START_BYTES // 1024) + b"\n" + _event(_ERROR)) == Started()


def test_a_stream_that_ends_early_is_sent_downstream() -> None:
    assert _whole() == Started()
    assert _whole(_ROLE) == Started()
    assert _whole(b"data: {") == Started()


def test_the_last_event_may_lack_its_blank_line() -> None:
    assert isinstance(_whole(_ROLE, _event(_ERROR).rstrip()), Refused)


def test_a_json_error_in_place_of_a_stream_is_a_refusal() -> None:
    body = json.dumps(_ERROR).encode()
    assert _feed(body) == Undecided()
    assert isinstance(_whole(body), Refused)
    assert _whole(b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}') == Started()


_ENDS = [b"\n\n", b"\r\n\r\n", b"\r\r"]


@given(
    st.lists(
        st.sampled_from([*_PREAMBLES, *_STARTS, *_REFUSALS, _event({"x": 1}), b"\xef\xbb\xbf"]), max_size=8
    ),
    st.sampled_from(_ENDS),
    st.data(),
)
@example([_ROLE, _REFUSALS[0]], b"\r\n\r\n", None)
def test_cuts_between_chunks_never_matter(
    events: list[bytes], end: bytes, data: st.DataObject | None
) -> None:
    stream = b"".join(events).replace(b"\n\n", end)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream))))) if data else range(len(stream))
    chunks = [stream[begin:end] for begin, end in zip([0, *places], [*places, len(stream)], strict=True)]
    assert _feed(*chunks) == _feed(stream)
    assert _whole(*chunks) == _whole(stream)


@given(st.integers(-40, 40), st.integers(1, 5_000))
def test_the_cuts_between_chunks_do_not_matter_at_the_bound(shift: int, size: int) -> None:
    filler = b": " + b"x" * (MAX_START_BYTES - len(_event(_ERROR)) + shift) + b"\n\n"
    stream = filler + _event(_ERROR) + _chunk(content="x")
    assert _feed(*cut(stream, size)) == _feed(stream)


@given(st.binary(max_size=200), st.integers(1, 7))
def test_any_bytes_give_a_verdict(stream: bytes, size: int) -> None:
    assert _whole(*cut(stream, size)) == _whole(stream)
    assert _whole(stream) != Undecided()


@pytest.mark.parametrize("document", [{"type": []}, {"response": {"status": {}}}])
def test_a_document_with_odd_types_gives_a_verdict(document: object) -> None:
    assert _whole(_event(document)) == _whole(json.dumps(document).encode()) == Started()


@requires_shared
def test_every_recorded_stream_starts() -> None:
    for response in load_responses():
        if response.is_stream:
            assert _feed(response.body) == Started(), response.file
            assert _feed(*cut_anywhere(response.body, 7)) == Started(), response.file


@requires_shared
def test_a_recorded_stream_that_fails_before_its_first_content_is_refused() -> None:
    for response in load_responses():
        if response.is_stream:
            verdict = _fail_before_content(response.body)
            assert isinstance(verdict, Refused), response.file
            assert parse_overflow(verdict.refusal) is not None


def _fail_before_content(body: bytes) -> Verdict:
    """Feeds the events before the stream starts, then an error."""
    blocks = body.split(b"\n\n")
    count = 0
    while _feed(b"\n\n".join(blocks[: count + 1]) + b"\n\n") == Undecided():
        count += 1
    preamble = b"".join(block + b"\n\n" for block in blocks[:count])
    return _feed(preamble, _event(_ERROR))
