import json
from collections.abc import Mapping

import pytest

from gateway.wire.formats.responses.reply import find_reply_part
from gateway.wire.response.summary_reply import SummaryReader, SummaryResponse
from gateway.wire.wire_format import ReplyPart

_MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So far."}]}
_CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
_THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}


def make_response(*output: object, **fields: object) -> dict[str, object]:
    usage = {"input_tokens": 90, "output_tokens": 5, "total_tokens": 95}
    return {
        "object": "response",
        "id": "resp_1",
        "status": "completed",
        "output": list(output),
        "usage": usage,
    } | fields


def stream(*events: Mapping[str, object]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def summarize(body: bytes, kind: str = "text/event-stream") -> SummaryResponse:
    reader = SummaryReader(find_reply_part, kind, "")
    reader.feed(body)
    return reader.finish()


def end(kind: str, *output: object, **fields: object) -> dict[str, object]:
    return {"type": f"response.{kind}", "response": make_response(*output, status=kind, **fields)}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"type": "response.output_text.delta", "delta": "a"}, ReplyPart("a")),
        ({"type": "response.reasoning_summary_text.delta", "delta": "a"}, ReplyPart()),
        ({"type": "response.output_item.done", "item": _MESSAGE}, ReplyPart("So far.", is_whole=True)),
        (
            {"type": "response.output_item.added", "item": _CALL},
            ReplyPart(is_whole=True, has_tool_calls=True),
        ),
        (make_response(_THOUGHT, _MESSAGE), ReplyPart("So far.", is_whole=True)),
        ({"type": "response.created", "response": {"output": []}}, ReplyPart(is_whole=True)),
        ({"type": "keepalive"}, ReplyPart()),
    ],
)
def test_the_part_of_the_reply_in_one_object(document: Mapping[str, object], expected: ReplyPart) -> None:
    assert find_reply_part(document) == expected


def test_a_text_that_is_sent_repeatedly_counts_once() -> None:
    summary = summarize(
        stream(
            {"type": "response.output_text.delta", "delta": "So "},
            {"type": "response.output_text.delta", "delta": "far."},
            {"type": "response.output_text.done", "text": "So far."},
            {"type": "response.output_item.done", "item": _MESSAGE},
            end("completed", _MESSAGE),
        )
    )
    assert (summary.text, summary.finish_reason, summary.is_complete) == ("So far.", "completed", True)
    assert summary.usage is not None and summary.usage.prompt_tokens == 90


def test_the_text_of_a_stream_without_deltas_and_of_a_whole_body_is_found() -> None:
    assert summarize(stream(end("completed", _THOUGHT, _MESSAGE))).text == "So far."
    assert summarize(json.dumps(make_response(_MESSAGE)).encode(), "application/json").text == "So far."


def test_a_cut_or_failed_response_is_reported() -> None:
    cut = summarize(stream(end("incomplete", _MESSAGE, incomplete_details={"reason": "max_output_tokens"})))
    assert cut.finish_reason == "max_output_tokens"
    assert summarize(stream(end("failed", error={"code": "server_error", "message": "no"}))).has_error
    assert summarize(stream(end("completed", _CALL))).has_tool_calls


def test_cached_tokens_are_part_of_the_input() -> None:
    usage = {
        "input_tokens": 90,
        "input_tokens_details": {"cached_tokens": 80},
        "output_tokens": 5,
        "total_tokens": 95,
    }
    usage_found = summarize(stream(end("completed", _MESSAGE, usage=usage))).usage
    assert usage_found is not None and (usage_found.prompt_tokens, usage_found.output_tokens) == (90, 5)
