"""The toy refuses every invalid variant of a Messages request and accepts valid ones."""

import json
from typing import Any

import pytest

from tests.shared_data import SHARED, requires_shared
from tests.toy.reply import Reply, ToolCall
from tests.toy.reply_messages import make_blocks
from tests.toy.seal import Sealed, seal
from tests.toy.validity import Rules
from tests.toy.validity_messages import find_violation

TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
USER = {"role": "user", "content": "Look."}
YES = {"role": "assistant", "content": "Yes."}
MARK = {"cache_control": {"type": "ephemeral"}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1_024}, "max_tokens": 2_000}
THOUGHT, CALLED = make_blocks(
    Reply(text=None, thinking="Hm.", tool_calls=(ToolCall(id="a", name="look", arguments="{}"),))
)
HIDDEN = {"type": "redacted_thinking", "data": seal(Sealed("Hm."))}


def text(words: str, **fields: object) -> dict[str, Any]:
    return {"type": "text", "text": words} | fields


def used(*ids: str) -> dict[str, Any]:
    return assistant(*({"type": "tool_use", "id": call_id, "name": "look", "input": {}} for call_id in ids))


def result(call_id: str, **fields: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": ""} | fields


def user(*blocks: object) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: object) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def request(*messages: object, **fields: object) -> dict[str, Any]:
    return {"model": "toy", "max_tokens": 100, "messages": list(messages), "tools": TOOLS} | fields


@pytest.mark.parametrize(
    "messages",
    [
        (USER,),
        (USER, USER, YES, YES, USER),
        (USER, YES),
        (USER, {"role": "assistant", "content": ""}),
        (USER, used("a", "b"), user(result("b"), result("a"), text("And now?"))),
        (USER, assistant(text("First."), used("a")["content"][0]), user(result("a"))),
        (USER, assistant(THOUGHT, CALLED), user(result("a"))),
        (USER, assistant(HIDDEN, CALLED), user(result("a", content=[text("x")], is_error=True))),
        (user({"type": "image", "source": {}}, text("What is it?")),),
        (USER, assistant({"type": "server_tool_use", "id": "x"}, {"type": "web_search_tool_result"}), USER),
    ],
)
def test_valid_requests_are_accepted(messages: tuple[object, ...]) -> None:
    assert find_violation(request(*messages)) is None


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("at least one message", ()),
        ('first message must use the "user" role', (YES, USER)),
        ("Unexpected role 'system'", ({"role": "system", "content": "x"}, USER)),
        ("Unexpected role 'tool'", (USER, used("a"), {"role": "tool", "content": "x"})),
        ("without `tool_result` blocks immediately after: b", (USER, used("a", "b"), user(result("a")))),
        ("immediately after: a", (USER, used("a"))),
        ("immediately after: a", (USER, used("a"), USER, user(result("a")))),
        ("unexpected `tool_use_id`", (USER, user(result("a")))),
        ("unexpected `tool_use_id`", (USER, used("a"), user(result("a")), YES, user(result("a")))),
        ("must come first", (USER, used("a"), user(text("Here:"), result("a")))),
        ("must come first", (USER, used("a", "b"), user(result("a"), text("and"), result("b")))),
        ("single result", (USER, used("a"), user(result("a"), result("a")))),
        ("must be unique", (USER, used("a"), user(result("a")), used("a"), user(result("a")))),
        ("should match pattern", (USER, used("f:0"), user(result("f:0")))),
        ("must be non-empty", (user(text("")),)),
        ("non-whitespace", (user(text(" \n")),)),
        ("non-whitespace", ({"role": "user", "content": "  "},)),
        ("must be non-empty", (USER, used("a"), user(result("a", content=[text("")])))),
        ("must have non-empty content", ({"role": "user", "content": ""},)),
        ("must have non-empty content", (USER, assistant(), USER)),
        ("trailing whitespace", (USER, {"role": "assistant", "content": "Yes: "})),
        ("cannot be `thinking`", (USER, assistant(THOUGHT), USER)),
        ("Invalid `signature`", (USER, assistant(THOUGHT | {"thinking": "No."}, CALLED), user(result("a")))),
        ("Invalid `signature`", (USER, assistant(THOUGHT | {"signature": ""}, CALLED), user(result("a")))),
        ("Invalid `signature`", (USER, assistant(HIDDEN | {"data": "x"}, CALLED), user(result("a")))),
        ("cache_control: Extra inputs", (USER, assistant(THOUGHT | MARK, CALLED), user(result("a")))),
        ("messages.0.name: Extra inputs", (USER | {"name": "x"},)),
        ("Input tag 'tool_use'", (user(CALLED),)),
        ("Input tag 'tool_result'", (USER, assistant(result("a")), USER)),
        ("Input tag 'image_url'", (user({"type": "image_url"}),)),
        ("valid dictionary", (USER, assistant(CALLED | {"input": "{}"}), user(result("a")))),
    ],
)
def test_invalid_requests_are_refused(words: str, messages: tuple[object, ...]) -> None:
    assert words in str(find_violation(request(*messages)))


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("model: Field required", {"model": None}),
        ("max_tokens: Field required", {"max_tokens": None}),
        ("max_tokens: Input should be", {"max_tokens": 0}),
        ("stream_options: Extra inputs", {"stream": True, "stream_options": {"include_usage": True}}),
        ("max_completion_tokens: Extra inputs", {"max_completion_tokens": 1}),
        ("system: text content blocks must be non-empty", {"system": [text("")]}),
        ("system.0.type", {"system": [{"type": "image"}]}),
        ("system: Input should be", {"system": {}}),
        ("tools.0.name", {"tools": [{"type": "function", "function": {"name": "look"}}]}),
        ("input_schema", {"tools": [{"name": "look"}]}),
        ("tool_choice", {"tools": [], "tool_choice": {"type": "auto"}}),
        ("1024", THINKING | {"thinking": {"type": "enabled", "budget_tokens": 1_023}}),
        ("must be greater than `thinking", THINKING | {"max_tokens": 1_024}),
        ("temperature", THINKING | {"temperature": 0.5}),
    ],
)
def test_the_envelope_is_checked(words: str, fields: dict[str, object]) -> None:
    assert words in str(find_violation(request(USER, **fields)))


def test_more_than_four_cache_marks_are_refused_at_any_place() -> None:
    newest = user(result("a", content=[text("x", **MARK)]), text("y", **MARK))
    fields: dict[str, Any] = {"system": [text("s", **MARK)], "tools": [TOOLS[0] | MARK]}
    assert find_violation(request(USER, used("a"), newest, **fields)) is None
    marked = user(text("Look.", **MARK))
    assert "maximum of 4" in str(find_violation(request(marked, used("a"), newest, **fields)))
    assert find_violation(request(USER, assistant(CALLED | {"input": MARK}), newest, **fields)) is None


def test_an_open_tool_turn_begins_with_its_thinking() -> None:
    whole = (USER, assistant(THOUGHT, CALLED), user(result("a")))
    bare = (USER, used("a"), user(result("a")))
    assert find_violation(request(*whole, **THINKING)) is None
    assert "Expected `thinking`" in str(find_violation(request(*bare, **THINKING)))
    assert find_violation(request(*bare, YES, USER, **THINKING)) is None


@requires_shared
def test_requests_of_claude_code_are_valid() -> None:
    files = sorted((SHARED / "data" / "captures").glob("*/*_messages.json"))
    bodies = [json.loads(file.read_text("utf-8"))["body"] for file in files]
    assert len(bodies) == 14
    # Its scripted model answered without thinking, though it was asked for.
    asked = [{key: value for key, value in body.items() if key != "thinking"} for body in bodies]
    assert {find_violation(body) for body in asked} == {None}


RULE = {"role": "system", "content": [text("Be brief.")]}
LATER = Rules(later_system=True)


@pytest.mark.parametrize("messages", [(USER, RULE), (USER, RULE, YES, USER), (USER, YES, USER, RULE)])
def test_a_system_message_stands_between_a_question_and_its_answer(messages: tuple[object, ...]) -> None:
    assert find_violation(request(*messages), LATER) is None
    assert "Unexpected role 'system'" in (find_violation(request(*messages)) or "")


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("first message must", (RULE, USER)),
        ("must follow a user message", (USER, YES, RULE)),
        ("must follow a user message", (USER, RULE, RULE, YES)),
        ("followed by an assistant message", (USER, RULE, USER)),
    ],
)
def test_and_nowhere_else(words: str, messages: tuple[object, ...]) -> None:
    assert words in (find_violation(request(*messages), LATER) or "")
