import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.summary import Candidate, find_flaw
from gateway.core.sizing.usage import Usage
from gateway.wire.formats.messages.reply import find_reply_part
from gateway.wire.response.reader import ResponseReader
from gateway.wire.response.stream_start import Refused, Started, StreamStart
from gateway.wire.response.summary_reply import SummaryReader, SummaryResponse
from gateway.wire.wire_format import ReplyPart
from tests.builders.messages import JSON, text_block, use

_USAGE: JSON = {"input_tokens": 4, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 1_000}


def delta(index: int, kind: str, **value: str) -> JSON:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **value}}


def begin(index: int, block: JSON) -> JSON:
    return {"type": "content_block_start", "index": index, "content_block": block}


def stream(*events: JSON, reason: str = "end_turn") -> bytes:
    start = {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": _USAGE}}
    ending = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}
    everything: list[JSON] = [start, {"type": "ping"}, *events, ending, {"type": "message_stop"}]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in everything)


_STREAM = stream(
    begin(0, {"type": "thinking", "thinking": "", "signature": ""}),
    delta(0, "thinking_delta", thinking="hm"),
    delta(0, "signature_delta", signature="s"),
    begin(1, text_block("")),
    delta(1, "text_delta", text="We "),
    delta(1, "text_delta", text="looked."),
)


def read_all(data: bytes, at: int = 0, kind: str = "text/event-stream") -> SummaryResponse:
    reader = SummaryReader(find_reply_part, kind, "")
    reader.feed(data[:at])
    reader.feed(data[at:])
    return reader.finish()


@given(st.integers(0, len(_STREAM)))
def test_the_text_of_a_stream_is_read_without_thinking_however_it_is_cut(at: int) -> None:
    read = read_all(_STREAM, at)
    assert (read.text, read.finish_reason, read.is_complete) == ("We looked.", "end_turn", True)
    assert not read.has_tool_calls and not read.has_error
    assert read.usage == Usage(1_104, 7, 1_000, 100)


def test_a_whole_message_is_read_too() -> None:
    message = {
        "type": "message",
        "content": [{"type": "thinking", "thinking": "hm"}, text_block("We looked.")],
        "stop_reason": "end_turn",
        "usage": _USAGE | {"output_tokens": 7},
    }
    read = read_all(json.dumps(message).encode(), kind="application/json")
    assert (read.text, read.finish_reason, read.usage) == (
        "We looked.",
        "end_turn",
        Usage(1_104, 7, 1_000, 100),
    )


def test_a_tool_call_is_found_in_a_stream_and_in_a_message() -> None:
    assert read_all(stream(begin(0, use()))).has_tool_calls
    assert find_reply_part({"type": "message", "content": [use()]}) == ReplyPart(
        is_whole=True, has_tool_calls=True
    )
    assert find_reply_part({"type": "ping"}) == ReplyPart()


@pytest.mark.parametrize(
    ("reason", "rejected"),
    [
        ("end_turn", None),
        ("max_tokens", "truncated"),
        ("stop_sequence", "truncated"),
        ("pause_turn", "truncated"),
        ("model_context_window_exceeded", "truncated"),
        ("refusal", "refusal"),
    ],
)
def test_only_a_reply_that_ended_normally_is_accepted(reason: str, rejected: str | None) -> None:
    read = read_all(
        stream(begin(0, text_block("")), delta(0, "text_delta", text="We looked."), reason=reason)
    )
    candidate = Candidate(
        text=read.text, finish_reason=read.finish_reason, has_tool_calls=False, has_error=read.has_error
    )
    found = find_flaw(candidate)
    assert (found.reason if found else None) == rejected


def test_an_error_in_the_stream_is_reported() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    data = _STREAM.split(b"event: message_delta")[0] + f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    assert read_all(data).has_error
    reader = ResponseReader("text/event-stream", "")
    reader.feed(data)
    reading = reader.finish()
    assert reading.has_error and not reading.is_complete


def test_a_stream_starts_with_its_first_content_and_an_earlier_error_is_a_refusal() -> None:
    error = {"type": "invalid_request_error", "message": "prompt is too long: 213462 tokens > 200000 maximum"}
    data = f"event: error\ndata: {json.dumps({'type': 'error', 'error': error})}\n\n".encode()
    assert isinstance(StreamStart().feed(_STREAM), Started)
    found = StreamStart().feed(_STREAM.split(b"event: content_block_start")[0] + data)
    assert isinstance(found, Refused)


def test_usage_adds_up_all_three_counters_of_the_input() -> None:
    reader = ResponseReader("text/event-stream", "")
    reader.feed(_STREAM)
    read = reader.finish()
    assert (read.usage, read.finish_reason, read.is_complete) == (
        Usage(1_104, 7, 1_000, 100),
        "end_turn",
        True,
    )


@pytest.mark.parametrize("kind", ["tool_use", "server_tool_use", "mcp_tool_use"])
def test_a_call_of_any_tool_is_a_call(kind: str) -> None:
    """A summary that rides has the client's tools, and those that the provider runs."""
    call = {"type": kind, "id": "a", "name": "look", "input": {}}
    assert read_all(stream(begin(0, call))).has_tool_calls
    whole = {"type": "message", "content": [text_block("We looked."), call], "stop_reason": "end_turn"}
    assert read_all(json.dumps(whole).encode(), kind="application/json").has_tool_calls
