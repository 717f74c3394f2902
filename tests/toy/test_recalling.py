import json
from typing import Any

import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Asked, Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.memory import Memory
from tests.toy.recalling import (
    ScriptClient,
    ScriptedModel,
    ShownReply,
    find_results,
    join_replies,
    make_call,
    make_recall,
    tell,
)
from tests.toy.reply import Reply
from tests.toy.validity import STRICT


def test_replies_are_joined_without_their_searches() -> None:
    replies = [
        Reply(text="One.", thinking="Hm.", tool_calls=(make_recall(1, "x"),)),
        Reply(text=" Two.", tool_calls=(make_call(1), make_recall(2, "y"))),
    ]
    assert join_replies(replies) == ShownReply("One.Two.", "Hm.", (("call_own_1", "read_file"),))


def test_the_model_gives_its_lines_one_by_one() -> None:
    model = ScriptedModel([Reply(text="One."), tell("FACT-1")])
    assert [model({"messages": []}).text for _ in range(3)] == ["One.", "I do not know.", "Understood."]
    assert model.left == 0


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "tool", "tool_call_id": "call_recall_1", "content": "FACT-1"}]},
        {
            "messages": [
                {"content": [{"type": "tool_result", "tool_use_id": "call_recall_1", "content": "FACT-1"}]}
            ]
        },
        {"input": [{"type": "function_call_output", "call_id": "call_recall_1", "output": "FACT-1"}]},
    ],
)
def test_a_model_knows_what_a_search_has_found(request_: dict[str, Any]) -> None:
    assert "FACT-1" in find_results(request_)
    assert tell("FACT-1")(request_).text == "It is FACT-1."
    own = json.loads(json.dumps(request_).replace("call_recall_1", "call_own_1"))
    assert find_results(own) == ""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_client_sends_back_what_it_was_shown(dialect: Dialect, is_streaming: bool) -> None:
    head = json.loads(json.dumps(make_session(3, 3).envelope(2, Shape(dialect=dialect))))
    client = ScriptClient(dialect=dialect, head=head, is_streaming=is_streaming)
    reply = Reply(text="A long text. " * 20, tool_calls=(make_call(1), make_call(2)))
    client.say("Go on.")
    before, request = len(client.items), json.loads(client.body)
    counter = TokenCounter(1.0)
    asked = Asked(request=request, number=1, prompt_tokens=5, counter=counter, memory=Memory())
    shown = client.take(b"".join(dialect.answer(asked, reply).pieces))
    assert shown == join_replies([reply])
    client.answer(shown)
    assert (
        dialect.find_violation(json.loads(client.body), {"anthropic-version": "2023-06-01"}, STRICT) is None
    )
    assert len(client.items) > before + 1
