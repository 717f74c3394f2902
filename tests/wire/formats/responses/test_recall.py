import json

import pytest

from gateway.wire.formats.responses import RESPONSES
from gateway.wire.formats.responses.recall import RECALL, may_offer
from gateway.wire.recall import RECALL_TOOL, RecallCall, RecallRequest
from tests.toy.validity_responses import find_violation
from tests.wire.formats.responses.turns import TOOLS, insert, make_request

_ASKED = [{"role": "user", "content": "Where?"}]


def test_the_tool_is_offered_to_a_client_with_tools_of_its_own() -> None:
    assert may_offer(make_request(_ASKED))
    assert may_offer(make_request(_ASKED, tool_choice={"type": "function", "name": "look"}))
    assert may_offer(make_request(_ASKED, tools=[{"type": "custom", "name": "patch"}]))
    assert may_offer(make_request([{"role": "user", "content": 'What is {"type":"item_reference"}?'}]))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None},
        {"tools": {}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [*TOOLS, {"type": "function", "name": RECALL_TOOL}]},
        {"store": True},
        {"store": None},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"context_management": [{"type": "compaction"}]},
        {"input": "Where?"},
        {"input": []},
        {"input": [*_ASKED, {"type": "item_reference", "id": "msg_1"}]},
    ],
)
def test_the_tool_is_not_offered(fields: dict[str, object]) -> None:
    assert not may_offer(make_request(_ASKED, **fields))


def test_the_tool_stands_behind_the_client_s_own() -> None:
    body = make_request(_ASKED)
    sent = json.loads(insert(body, [RECALL.make_tool(body)]))
    assert find_violation(sent) is None
    assert sent["tools"][:-1] == TOOLS
    assert sent["tools"][-1].keys() == {"type", "name", "description", "strict", "parameters"}
    assert sent["tools"][-1]["name"] == RECALL_TOOL


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}])
def test_a_request_without_tools_has_no_place_for_one(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no tools"):
        RECALL.make_tool(make_request(_ASKED, **fields))


def test_each_call_has_its_result() -> None:
    calls = (RecallCall("a", "x"), RecallCall("b", None))
    request = RecallRequest(calls=calls, call="", reply="", shown=0, said=0, is_parallel=False)
    results = json.loads(f"[{RECALL.render_results(request, ['found', ''])}]")
    assert results == [
        {"type": "function_call_output", "call_id": "a", "output": "found"},
        {"type": "function_call_output", "call_id": "b", "output": ""},
    ]
    assert "\\ud83d" in RECALL.render_results(request, ["half \ud83d", "x"])


def test_an_exchange_is_a_question_and_its_answer() -> None:
    raw = RECALL.render_exchange("What was it?", "Found:\n\nx")
    items = json.loads(b"[%s]" % raw)
    assert find_violation(json.loads(make_request([*items, *_ASKED]).data)) is None
    assert [item["role"] for item in items] == ["user", "assistant"]
    assert items[1]["content"] == [{"type": "output_text", "text": "Found:\n\nx"}]


def test_the_format_has_the_tool() -> None:
    assert RESPONSES.recall is RECALL
