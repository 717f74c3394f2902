import json

import pytest

from gateway.core.sizing.usage import Usage
from gateway.wire.formats.chat.reply import find_reply_part
from gateway.wire.response.summary_reply import MAX_TEXT_CHARACTERS, SummaryReader, SummaryResponse
from tests.shared_data import requires_shared
from tests.wire.recorded import cut, load_responses


def _read(*chunks: bytes, content_type: str = "text/event-stream") -> SummaryResponse:
    reader = SummaryReader(find_reply_part, content_type, "")
    for chunk in chunks:
        reader.feed(chunk)
        while reader.is_behind:
            reader.catch_up()
    return reader.finish()


def _stream(*choices: object) -> bytes:
    return b"".join(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in choices)


def _delta(**delta: object) -> dict[str, object]:
    return {"index": 0, "delta": delta}


def test_the_text_is_joined_and_reasoning_is_left_out() -> None:
    stream = _stream(
        _delta(role="assistant", content=""),
        _delta(reasoning_content="hm", reasoning="hm", content=None),
        _delta(content="Hello "),
        _delta(content=[{"type": "thinking", "text": "hm"}, {"type": "text", "text": "wor"}]),
        {"index": 1, "delta": {"content": "another"}},
        {"index": 0, "delta": {"content": "ld"}, "finish_reason": "stop"},
    )
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    expected = SummaryResponse(
        "Hello world", "stop", has_tool_calls=False, has_error=False, is_complete=True, usage=Usage(5, 2)
    )
    assert _read(stream, usage) == expected
    assert _read(*cut(stream + usage, 1)) == expected


@pytest.mark.parametrize(
    "content", ["Hello", [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]]
)
def test_a_response_that_is_not_streamed_is_read_too(content: object) -> None:
    body = {"choices": [{"message": {"content": content}, "finish_reason": "length"}]}
    summary = _read(json.dumps(body).encode(), content_type="application/json")
    assert (summary.text, summary.finish_reason, summary.is_complete) == ("Hello", "length", True)


def test_a_message_repeated_after_its_deltas_counts_once() -> None:
    assert _read(_stream(_delta(content="a"), {"index": 0, "message": {"content": "a"}})).text == "a"


def test_errors_are_reported() -> None:
    assert _read(_stream(_delta(content="a")), b'data: {"error":{"message":"no"}}\n\n').has_error
    assert _read(b'{"error":{"message":"no"}}').has_error


def test_a_stream_that_breaks_off_is_not_complete() -> None:
    summary = _read(_stream(_delta(content="a")), b'data: {"choices":[{"delta":{"content":"b')
    assert (summary.text, summary.is_complete) == ("a", False)


def test_a_text_above_the_bound_is_cut_and_is_an_error() -> None:
    summary = _read(*[_stream(_delta(content="x" * 300_000))] * 4)
    assert (len(summary.text), summary.has_error) == (MAX_TEXT_CHARACTERS, True)


@requires_shared
def test_recorded_responses_have_a_text_or_tool_calls() -> None:
    for response in load_responses():
        read = _read(response.body, content_type=response.content_type)
        assert read.text or read.has_tool_calls, response.file
        assert read == _read(*cut(response.body, 7), content_type=response.content_type)
