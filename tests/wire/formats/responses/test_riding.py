"""Which Responses requests a summary can ride on, and how they are sent."""

import json
from typing import Any

import pytest

from gateway.wire.formats.responses.riding import ride
from tests.wire.test_riding import ASKED

_TOOLS = [{"type": "function", "name": "look", "parameters": {}}]
_CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
_RESULT = {"type": "function_call_output", "call_id": "a", "output": "x"}
_INPUT = [{"role": "user", "content": "Look."}, _CALL, _RESULT]
_QUESTION = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "Sum it up."}],
}


def send(**fields: Any) -> dict[str, Any] | None:
    ridden = ride(json.dumps({"model": "toy", "input": _INPUT} | fields).encode(), ASKED)
    return json.loads(ridden) if ridden is not None else None


def test_a_question_is_added_tools_stay_uncalled_and_nothing_is_stored() -> None:
    fields = {"instructions": "Be good.", "tools": _TOOLS, "stream": True, "prompt_cache_key": "k"}
    assert send(**fields) == {
        "model": "toy",
        "input": [*_INPUT, _QUESTION],
        **fields,
        "tool_choice": "none",
        "store": False,
    }
    assert send(store=True) == {"model": "toy", "input": [*_INPUT, _QUESTION], "store": False}


def test_bytes_of_the_prompt_stay() -> None:
    data = b'{"store":false,"input":[ {"role":"user","content":"\\u00e9"} ],"x":1.10}'
    question = json.dumps(_QUESTION, separators=(",", ":")).encode()
    assert ride(data, ASKED) == data.replace(b"} ]", b"}," + question + b" ]")


def test_the_limit_leaves_room_for_a_summary_and_for_thoughts() -> None:
    sent = send(max_output_tokens=100)
    assert sent is not None and sent["max_output_tokens"] == 9_192


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Look."},
        {"background": True},
        {"prompt": {"id": "pmpt_1"}},
        {"truncation": "auto"},
        {"conversation": "conv_1"},
        {"previous_response_id": "resp_1"},
        {"context_management": [{"type": "compaction"}]},
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        {"input": [*_INPUT, _CALL]},
        {"input": [*_INPUT, {"type": "reasoning", "summary": []}]},
        {"input": [*_INPUT, {"role": "assistant", "content": "I"}]},
        {"input": [*_INPUT, {"type": "compaction_trigger"}]},
    ],
)
def test_what_cannot_be_continued_is_not_ridden(fields: dict[str, Any]) -> None:
    assert send(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"text": {"verbosity": "low"}},
        {"text": {"format": {"type": "text"}}},
        {"background": False},
        {"truncation": "disabled"},
    ],
)
def test_fields_that_say_what_is_usual_are_no_hindrance(fields: dict[str, Any]) -> None:
    assert send(**fields) is not None
