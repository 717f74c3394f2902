import json

import pytest

from gateway.core.sizing.usage import Usage
from gateway.wire.chat_own_answer import render_own_answer
from gateway.wire.chat_reply import read_said
from gateway.wire.own_answer import OwnAnswer
from gateway.wire.summary_answer import SummaryAnswer
from tests.wire.own_answers import TEXTS, make_answer, read_back


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_read_as_a_whole_answer_without_usage(text: str, is_streamed: bool) -> None:
    answer = make_answer(text, is_streamed=is_streamed)
    no_usage: Usage | None = None
    expected = SummaryAnswer(
        text, "stop", has_tool_calls=False, has_error=False, is_complete=True, usage=no_usage
    )
    assert read_back(render_own_answer(answer), read_said, is_streamed=is_streamed) == expected


def test_whole_it_is_a_chat_completion() -> None:
    answer: OwnAnswer = make_answer("Done.", is_streamed=False)
    message = {"role": "assistant", "content": "Done.", "refusal": None}
    assert json.loads(render_own_answer(answer)) == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "toy",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
    }


def test_streamed_it_is_role_text_end_and_done() -> None:
    lines = render_own_answer(make_answer("Done.", is_streamed=True)).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Done."}, None),
        ({}, "stop"),
    ]
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        ("chatcmpl-abc", "chat.completion.chunk", "toy")
    }
