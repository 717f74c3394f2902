"""The toy refuses every invalid variant of a chat request and accepts valid ones."""

from typing import Any

import pytest

from tests.toy.validity import STRICT, Rules, find_violation

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Look."}


def call(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": ""}


def request(*messages: object, **fields: object) -> dict[str, Any]:
    return {"model": "toy", "messages": list(messages), "tools": TOOLS} | fields


@pytest.mark.parametrize(
    "messages",
    [
        (USER,),
        (SYSTEM, {"role": "developer", "content": "Be kind."}, USER),
        (SYSTEM, USER, call("a", "b"), result("b"), result("a")),
        (USER, call("a"), result("a"), call("a"), result("a"), USER),
        (
            USER,
            {"role": "assistant", "content": "", "unknown": 1},
            {"role": "user", "content": [{"type": "x"}]},
        ),
        (USER, USER),
    ],
)
def test_valid_requests_are_accepted(messages: tuple[object, ...]) -> None:
    assert find_violation(request(*messages)) is None


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("empty array", ()),
        ("second system message", (SYSTEM, USER, SYSTEM, USER)),
        ("No user query", (SYSTEM,)),
        ("must be a response", (USER, result("a"))),
        ("must be a response", (USER, call("a"), result("b"))),
        ("must be a response", (USER, call("a"), result("a"), USER, result("a"))),
        ("did not have response messages: b", (USER, call("a", "b"), result("a"))),
        ("did not have response messages: b", (USER, call("a", "b"), result("a"), USER, result("b"))),
        ("Duplicate value", (USER, call("a"), result("a"), result("a"))),
        ("duplicate call id", (USER, call("a", "a"), result("a"))),
        ("must not have the role 'assistant'", (USER, {"role": "assistant", "content": "Yes."})),
        ("expected a string, got null", (USER, {"role": "assistant", "content": None}, USER)),
        ("empty array", (USER, {"role": "assistant", "content": "", "tool_calls": []}, USER)),
        ("needs an id", (USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}, USER)),
        ("non-empty string", ({"role": "user", "content": ""},)),
        ("non-empty string", ({"role": "system", "content": None}, USER)),
        ("text content blocks", ({"role": "user", "content": [{"type": "text", "text": ""}]},)),
        ("Supported values", (USER, {"role": "wizard", "content": "x"})),
        ("expected an object", ("hello",)),
        ("got null", (USER, call("a"), {"role": "tool", "tool_call_id": "a"})),
    ],
)
def test_invalid_requests_are_refused(words: str, messages: tuple[object, ...]) -> None:
    violation = find_violation(request(*messages))
    assert violation is not None and words in violation


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("model", {"model": None}),
        ("'tools'", {"tools": []}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("same time", {"max_tokens": 5, "max_completion_tokens": 5}),
        ("max_tokens", {"max_tokens": 0}),
        ("tool_choice", {"tools": None, "tool_choice": "auto"}),
    ],
)
def test_the_envelope_is_checked(words: str, fields: dict[str, object]) -> None:
    whole = request(USER) | fields
    violation = find_violation({name: value for name, value in whole.items() if value is not None})
    assert violation is not None and words in violation


def test_rules_can_be_relaxed_or_tightened() -> None:
    late = request(SYSTEM, USER, SYSTEM, USER)
    prefill = request(USER, {"role": "assistant", "content": "Yes."})
    doubled = request(USER, call("a"), result("a"), USER)
    assert find_violation(late, Rules(later_system=True)) is None
    assert find_violation(prefill, Rules(prefill=True)) is None
    assert find_violation(doubled, STRICT) is None
    assert "alternate" in str(find_violation(doubled, Rules(alternating=True)))
