import json
from typing import Any

import pytest

from gateway.wire.answer import AnswerReader, Reading
from gateway.wire.messages_own_answer import render_own_answer
from tests.wire.own_answers import TEXTS, make_answer, read_typed_events


def read_stream(text: str) -> list[dict[str, Any]]:
    return read_typed_events(render_own_answer(make_answer(text, is_streamed=True)))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_it_is_read_as_a_whole_answer_whose_usage_says_nothing(is_streamed: bool) -> None:
    reader = AnswerReader("text/event-stream" if is_streamed else "application/json", "")
    reader.feed(render_own_answer(make_answer("Done.", is_streamed=is_streamed)))
    assert reader.read() == Reading(None, "end_turn", has_error=False, is_complete=True)


@pytest.mark.parametrize("text", TEXTS)
def test_whole_it_is_a_message_of_one_text(text: str) -> None:
    assert json.loads(render_own_answer(make_answer(text, is_streamed=False))) == {
        "id": "msg_abc",
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_it_begins_empty_grows_by_one_text_and_ends(text: str) -> None:
    start, opened, delta, closed, ending, stop = read_typed_events(
        render_own_answer(make_answer(text, is_streamed=True))
    )
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert start["message"]["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert opened == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert delta["delta"] == {"type": "text_delta", "text": text}
    assert (closed["type"], stop) == ("content_block_stop", {"type": "message_stop"})
    assert ending["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ending["usage"] == {"output_tokens": 0}
