import json
from typing import Any

import pytest

from gateway.wire.formats.responses.render import render_local_response
from gateway.wire.response.reader import Reading, ResponseReader
from tests.wire.local_responses import TEXTS, make_response, parse_typed_events

_NO_TOKENS = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def read_stream(text: str) -> list[dict[str, Any]]:
    return parse_typed_events(render_local_response(make_response(text, is_streamed=True)))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_it_is_read_as_a_whole_answer_whose_usage_says_nothing(is_streamed: bool) -> None:
    reader = ResponseReader("text/event-stream" if is_streamed else "application/json", "")
    reader.feed(render_local_response(make_response("Done.", is_streamed=is_streamed)))
    assert reader.finish() == Reading(None, "completed", has_error=False, is_complete=True)


@pytest.mark.parametrize("text", TEXTS)
def test_whole_it_is_a_response_of_one_message_that_nobody_keeps(text: str) -> None:
    response = json.loads(render_local_response(make_response(text, is_streamed=False)))
    (message,) = response["output"]
    (part,) = message["content"]
    assert (response["id"], response["object"], response["status"]) == ("resp_abc", "response", "completed")
    assert (response["model"], response["store"], response["usage"]) == ("toy", False, _NO_TOKENS)
    assert (message["id"], message["type"], message["role"]) == ("msg_abc", "message", "assistant")
    assert part == {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_the_events_build_up_the_same_response(text: str) -> None:
    events = read_stream(text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))
    begun, whole = (
        events[0]["response"],
        json.loads(render_local_response(make_response(text, is_streamed=False))),
    )
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert events[-1]["response"] == whole
    assert events[-2]["item"] == whole["output"][0] and events[-3]["part"] == whole["output"][0]["content"][0]
    assert events[4]["delta"] == events[5]["text"] == text


def test_every_event_inside_says_where_it_belongs() -> None:
    inside = read_stream("Done.")[3:7]
    assert {(e["item_id"], e["output_index"], e["content_index"]) for e in inside} == {("msg_abc", 0, 0)}
    assert read_stream("Done.")[2]["item"]["content"] == []
