"""The toy refuses every invalid variant of a Responses request and accepts valid ones."""

import json
from typing import Any

import pytest

from tests.shared_data import SHARED, requires_shared
from tests.toy.reply import Reply, ToolCall
from tests.toy.reply_responses import make_output
from tests.toy.validity import STRICT, Rules
from tests.toy.validity_responses import find_violation

TOOLS = [{"type": "function", "name": "look", "parameters": {}}]
USER = {"role": "user", "content": "Look."}
THOUGHT, CALLED = make_output(
    Reply(text=None, thinking="Hm.", tool_calls=(ToolCall(id="a", name="look", arguments="{}"),)), "1"
)
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}


def call(call_id: str, kind: str = "function_call", **fields: object) -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "name": "look", "arguments": "{}"} | fields


def result(call_id: str, kind: str = "function_call_output", **fields: object) -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": ""} | fields


def request(*items: object, **fields: object) -> dict[str, Any]:
    return {"model": "toy", "input": list(items), "tools": TOOLS} | fields


def said(*items: object, **fields: object) -> str:
    return said_by(STRICT, *items, **fields)


def said_by(rules: Rules, *items: object, **fields: object) -> str:
    refusal = find_violation(request(*items, **fields), rules)
    return "" if refusal is None else refusal.message


APPROVAL = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "x", "arguments": "{}"}


@pytest.mark.parametrize(
    "items",
    [
        (USER,),
        ({"role": "developer", "content": "Be brief."}, USER, SAID, USER),
        (USER, {"role": "assistant", "content": "Yes."}, {"role": "system", "content": "Late."}, USER),
        (USER, call("a"), call("b"), result("b"), result("a")),
        (USER, call("a"), result("a"), call("b"), result("b"), SAID, USER),
        (USER, THOUGHT, CALLED, result("a")),
        (USER, call("a", "custom_tool_call", input="x"), result("a", "custom_tool_call_output")),
        (USER, call("a", "local_shell_call"), result("a")),
        (USER, call("a", "shell_call"), result("a", "shell_call_output")),
        (USER, call("a", "computer_call"), result("a", "computer_call_output")),
        (USER, APPROVAL, {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}),
        (USER, {"type": "web_search_call", "id": "ws_1"}, {"type": "compaction", "encrypted_content": "x"}),
        (USER, call("a"), result("a", output=[{"type": "input_text", "text": "x"}])),
    ],
)
def test_valid_requests_are_accepted(items: tuple[object, ...]) -> None:
    assert said(*items) == ""


@pytest.mark.parametrize(
    ("words", "items"),
    [
        ("Missing required parameter: 'input'", ()),
        ("No user query", ({"role": "developer", "content": "x"},)),
        ("No tool call found for function call output with call_id a", (USER, result("a"))),
        ("No tool call found", (USER, result("a"), call("a"))),
        ("No tool output found for function call b", (USER, call("a"), call("b"), result("a"))),
        ("No tool output found for custom tool call a", (USER, call("a", "custom_tool_call"))),
        ("No tool call found", (USER, call("a", "custom_tool_call"), result("a"))),
        ("No tool output found for mcp approval request mcpr_1", (USER, APPROVAL)),
        ("Duplicate value for 'call_id'", (USER, call("a"), call("a"), result("a"))),
        ("Duplicate value for 'call_id'", (USER, call("a"), result("a"), call("a"), result("a"))),
        ("Duplicate function call output", (USER, call("a"), result("a"), result("a"))),
        ("Duplicate item found with id msg_1", (USER, SAID | {"id": "msg_1"}, SAID | {"id": "msg_1"})),
        ("'rs_1' of type 'reasoning' was provided without", (USER, THOUGHT)),
        ("'rs_1' of type 'reasoning' was provided without", (USER, THOUGHT, USER)),
        ("'rs_1' of type 'reasoning' was provided without", (USER, THOUGHT, call("b"), result("b"))),
        ("could not be verified", (USER, THOUGHT | {"encrypted_content": "x"}, CALLED, result("a"))),
        ("Invalid value: 'telepathy'", (USER, {"type": "telepathy"})),
        ("Invalid value: 'None'", (USER, {})),
        ("expected an object", (USER, "x")),
        ("Invalid value: 'tool'", (USER, {"role": "tool", "content": "x"})),
        ("Expected an ID that begins with 'fc'", (USER, call("a", id="call_a"), result("a"))),
        ("Invalid value: 'input_text'", (USER, SAID | {"content": [{"type": "input_text", "text": "x"}]})),
        ("Invalid value: 'text'", ({"role": "user", "content": [{"type": "text", "text": "x"}]},)),
        ("text must be non-empty", ({"role": "user", "content": [{"type": "input_text", "text": ""}]},)),
        ("non-empty string", ({"role": "user", "content": ""},)),
        ("'input[1].arguments'", (USER, call("a", arguments={}), result("a"))),
        ("'input[1].name'", (USER, call("a", name=""), result("a"))),
        ("'input[2].output'", (USER, call("a"), result("a", output=None))),
        ("'input[1].summary'", (USER, {"type": "reasoning", "id": "rs_1"}, SAID)),
    ],
)
def test_invalid_requests_are_refused(words: str, items: tuple[object, ...]) -> None:
    assert words in said(*items)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("model parameter", {"model": None}),
        ("moved to 'input'", {"messages": [USER]}),
        ("moved to 'max_output_tokens'", {"max_tokens": 100}),
        ("moved to 'max_output_tokens'", {"max_completion_tokens": 100}),
        (">= 16", {"max_output_tokens": 15}),
        ("stream_options", {"stream_options": {}}),
        ("include_usage", {"stream": True, "stream_options": {"include_usage": True}}),
        ("instructions", {"instructions": []}),
        ("'tools[0].name'", {"tools": [{"type": "function", "function": {"name": "look"}}]}),
        ("'tools[0].type'", {"tools": [{}]}),
        ("Tool choice", {"tools": [], "tool_choice": "required"}),
    ],
)
def test_the_envelope_is_checked(words: str, fields: dict[str, object]) -> None:
    assert words in said(USER, **fields)


def test_rules_can_be_relaxed_or_tightened() -> None:
    foreign = (USER, THOUGHT | {"encrypted_content": "theirs"}, CALLED, result("a"))
    assert said_by(Rules(foreign_secrets=True), *foreign) == ""
    assert said_by(Rules(unknown_items=True), USER, {"type": "telepathy"}) == ""


@requires_shared
def test_requests_of_real_clients_are_valid() -> None:
    """Requests with references are left out, because their targets are not in the recordings."""
    files = sorted((SHARED / "data" / "captures").glob("*/*_responses.json"))
    bodies = [json.loads(file.read_text("utf-8"))["body"] for file in files]
    whole = [body for body in bodies if all(item.get("type") != "item_reference" for item in body["input"])]
    assert len(whole) > 25
    assert [refusal for body in whole if (refusal := find_violation(body, Rules(foreign_secrets=True)))] == []
