from typing import Any

import pytest

from gateway.wire.response.content import has_content, is_known_empty, list_finish_reasons


def _delta(**delta: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@pytest.mark.parametrize(
    "document",
    [
        _delta(content="x"),
        _delta(content=" "),
        _delta(role="assistant", content="", reasoning_content="x"),
        _delta(reasoning="x"),
        _delta(reasoning_details=[{"type": "reasoning.summary"}]),
        _delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}]),
        _delta(function_call={"name": "f"}),
        _delta(refusal="I cannot"),
        _delta(audio={"id": "a"}),
        {"choices": [{"text": "x"}]},
        {"choices": [{"message": {"role": "assistant", "content": "x"}}]},
        {"choices": [{"delta": {}}, {"delta": {"content": "x"}}]},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "message", "content": [{"type": "text", "text": "x"}]},
        {"type": "response.output_item.added", "item": {"type": "reasoning"}},
        {"type": "response.output_text.delta", "delta": "x"},
        {"object": "response", "output": [{"type": "message"}]},
    ],
)
def test_anything_that_a_client_may_show_is_content(document: dict[str, Any]) -> None:
    assert has_content(document)
    assert not is_known_empty(document)


@pytest.mark.parametrize(
    "document",
    [
        _delta(role="assistant"),
        _delta(role="assistant", content="", refusal=None, tool_calls=[], reasoning=None),
        _delta(role="assistant", content=None, provider_specific_fields={"x": 1}),
        _delta(),
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
        {"type": "ping"},
        {"type": "keepalive"},
        {"type": "response.created", "response": {"status": "in_progress", "output": []}},
        {"type": "response.in_progress", "response": {"status": "in_progress"}},
    ],
)
def test_the_start_of_a_stream_is_known_and_empty(document: dict[str, Any]) -> None:
    assert is_known_empty(document)
    assert not has_content(document)


def test_the_end_of_a_stream_is_neither_content_nor_known_empty() -> None:
    ends: list[dict[str, Any]] = [
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "response.completed", "response": {"status": "completed"}},
    ]
    for end in ends:
        assert not has_content(end)
        assert not is_known_empty(end)
        assert list_finish_reasons(end) != []


def test_the_finish_reason_of_the_provider_behind_a_router_is_listed_too() -> None:
    choice = {"finish_reason": "length", "native_finish_reason": "model_context_window_exceeded"}
    assert list_finish_reasons({"choices": [choice]}) == ["length", "model_context_window_exceeded"]


def test_a_document_of_an_unknown_kind_is_neither_content_nor_known_empty() -> None:
    for document in (
        {},
        {"x": 1},
        {"id": "a", "provider": "b"},
        {"type": "other"},
        {"type": 1},
        {"choices": 1},
    ):
        assert not has_content(document)
        assert not is_known_empty(document)
