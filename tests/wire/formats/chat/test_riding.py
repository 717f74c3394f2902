"""Which Chat requests a summary can ride on, and how they are sent."""

import json
from typing import Any

import pytest

from gateway.wire.formats.chat.riding import ride
from tests.wire.test_riding import ASKED

_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
_MESSAGES = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Look."}]
_QUESTION = {"role": "user", "content": "Sum it up."}


def send(**fields: Any) -> dict[str, Any] | None:
    ridden = ride(json.dumps({"model": "toy", "messages": _MESSAGES} | fields).encode(), ASKED)
    return json.loads(ridden) if ridden is not None else None


def test_a_question_is_added_and_tools_stay_uncalled() -> None:
    fields = {"tools": _TOOLS, "stream": True, "prompt_cache_key": "k", "temperature": 0.2}
    assert send(**fields) == {"model": "toy", "messages": [*_MESSAGES, _QUESTION], **fields} | {
        "tool_choice": "none"
    }
    assert send(tools=_TOOLS, tool_choice="required") == {
        "model": "toy",
        "messages": [*_MESSAGES, _QUESTION],
        "tools": _TOOLS,
        "tool_choice": "none",
    }


def test_a_cache_with_marks_needs_the_choice_of_tools_that_it_was_made_with() -> None:
    marked = {"type": "text", "text": "Be good.", "cache_control": {"type": "ephemeral"}}
    fields = {"messages": [{"role": "system", "content": [marked]}, _MESSAGES[1]], "tools": _TOOLS}
    sent = send(**fields)
    assert sent is not None and "tool_choice" not in sent
    assert send(**fields, tool_choice="auto") == sent | {"tool_choice": "auto"}
    assert send(**fields, tool_choice="required") is None


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_none_are_forbidden(tools: object) -> None:
    sent = send(tools=tools)
    assert sent is not None and "tool_choice" not in sent


def test_bytes_of_the_prompt_stay() -> None:
    data = b'{ "messages" : [ {"role":"user","content":"\\u00e9 1.10"} ] , "x":1.10, "tools": [ {} ],"n":1}'
    assert ride(data, ASKED) == data.replace(
        b"} ] ,", b'},{"role":"user","content":"Sum it up."} ] ,'
    ).replace(b',"n":1}', b',"n":1,"tool_choice":"none"}')


def test_the_limit_leaves_room_for_a_summary_and_for_thoughts_that_count() -> None:
    short, thinking = send(max_tokens=100), send(max_completion_tokens=100)
    assert short is not None and short["max_tokens"] == 1_000
    assert thinking is not None and thinking["max_completion_tokens"] == 9_192


def test_the_upstream_does_not_keep_it() -> None:
    kept, plain = send(store=True), send(store=False)
    assert kept is not None and kept["store"] is False
    assert plain is not None and plain["store"] is False


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"modalities": ["text", "audio"], "audio": {"voice": "x"}},
        {"functions": [{"name": "look"}]},
        {"stop": ["\nObservation:"]},
        {"prediction": {"type": "content", "content": "a"}},
        {"web_search_options": {"search_context_size": "low"}},
        {"guided_json": {"type": "object"}},
        {"plugins": [{"id": "web"}]},
        {"model": "toy:online"},
        {"search_parameters": {"mode": "on"}},
        {"enable_search": True},
        {"transforms": ["middle-out"]},
        {"continue_final_message": True},
        {"add_generation_prompt": False},
        {"store": True, "metadata": {"a": "b"}},
        {"messages": [*_MESSAGES, {"role": "assistant", "content": "I"}]},
    ],
)
def test_replies_of_another_kind_are_not_ridden(fields: dict[str, Any]) -> None:
    assert send(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"enable_search": False},
        {"add_generation_prompt": True},
        {"metadata": {"a": "b"}},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"stop": None},
        {"stop": []},
    ],
)
def test_fields_that_say_what_is_usual_are_no_hindrance(fields: dict[str, Any]) -> None:
    assert send(**fields) is not None
