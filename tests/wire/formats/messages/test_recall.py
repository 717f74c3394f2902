import json

import pytest

from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.messages.recall import RECALL, may_offer
from gateway.wire.recall import RECALL_TOOL, RecallCall, RecallRequest
from tests.toy.validity_messages import find_violation
from tests.wire.formats.messages.turns import TOOLS, insert, make_request

_ASKED = [{"role": "user", "content": "Where?"}]


def test_the_tool_is_offered_to_a_client_with_tools_of_its_own() -> None:
    assert may_offer(make_request(_ASKED))
    assert may_offer(make_request(_ASKED, tool_choice={"type": "tool", "name": "look"}))
    assert may_offer(
        make_request(_ASKED, context_management={"edits": [{"type": "clear_thinking_20251015"}]})
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None},
        {"tools": ["odd"]},
        {"tools": {}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [*TOOLS, {"name": RECALL_TOOL, "input_schema": {}}]},
        {"tools": [*TOOLS, {"type": "code_execution_20250825", "name": "code_execution"}]},
        {"thread": {"type": "create"}},
        {"thread": {"type": "continue", "previous_message_id": "msg_1"}},
        {"container": "container_1"},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"messages": [*_ASKED, {"role": "assistant", "content": "It"}]},
        {"messages": []},
        {"messages": ["odd"]},
    ],
)
def test_the_tool_is_not_offered(fields: dict[str, object]) -> None:
    assert not may_offer(make_request(_ASKED, **fields))


def test_the_tool_stands_behind_the_client_s_own() -> None:
    body = make_request(_ASKED)
    sent = json.loads(insert(body, [RECALL.make_tool(body)]))
    assert find_violation(sent) is None
    assert sent["tools"][:-1] == TOOLS
    assert sent["tools"][-1].keys() == {"name", "description", "input_schema"}
    assert sent["tools"][-1]["name"] == RECALL_TOOL


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}])
def test_a_request_without_tools_has_no_place_for_one(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no tools"):
        RECALL.make_tool(make_request(_ASKED, **fields))


def test_each_call_has_its_result() -> None:
    calls = (RecallCall("a", "x"), RecallCall("b", None))
    request = RecallRequest(calls=calls, call="", reply="", shown=0, said=0, is_parallel=False)
    results = json.loads(f"[{RECALL.render_results(request, ['found', ' '])}]")
    assert [result["tool_use_id"] for result in results] == ["a", "b"]
    assert [result["content"] for result in results] == ["found", "(nothing)"]
    assert "\\ud83d" in RECALL.render_results(request, ["half \ud83d", "x"])


def test_an_exchange_is_a_question_and_its_answer() -> None:
    raw = RECALL.render_exchange("What was it?", "Found:\n\nx \n")
    messages = json.loads(b"[%s]" % raw)
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["content"] == "Found:\n\nx"
    assert json.loads(b"[%s]" % RECALL.render_exchange("", " "))[1]["content"] == "(nothing)"


def test_the_format_has_the_tool() -> None:
    assert MESSAGES.recall is RECALL
