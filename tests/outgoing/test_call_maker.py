import json
from dataclasses import replace

import msgspec
import pytest

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.purpose import Purpose
from gateway.core.policy import Originals
from gateway.outgoing.call_maker import NOTHING_ADDED, CallMaker
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.recall import RECALL_TOOL
from tests.builders.chat import JSON, make_pivot, make_plan, make_turn, read
from tests.builders.compaction import SUMMARIZING, talk

_TOOL: JSON = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_RECALLING = replace(SUMMARIZING, recall="tool")


def make_maker() -> CallMaker:
    return CallMaker(FairRewriter(Rewriter(1 << 20), Lanes()))


def make_case(**fields: JSON | bool | str | int) -> tuple[Turn, Plan]:
    body = {"model": "toy", "messages": talk(3), "tools": [_TOOL], **fields}
    received = read(json.dumps(body).encode())
    turn = make_turn(received, policy=_RECALLING)
    return turn, make_plan(make_pivot(received.conversation, 3))


def test_the_tool_is_offered_from_the_first_compaction_on() -> None:
    turn, plan = make_case()
    assert make_maker().choose_additions(turn, plan) == {"tool"}
    assert make_maker().choose_additions(turn, make_plan()) == NOTHING_ADDED


@pytest.mark.parametrize("purpose", ["agent", "summary", "title"])
def test_side_calls_are_not_offered_it(purpose: Purpose) -> None:
    turn, plan = make_case()
    assert not make_maker().choose_additions(msgspec.structs.replace(turn, purpose=purpose), plan)


@pytest.mark.parametrize(
    "policy",
    [
        replace(_RECALLING, recall="off"),
        replace(_RECALLING, recall="auto"),
        replace(_RECALLING, originals=Originals(keep=False)),
    ],
)
def test_a_policy_without_the_tool_or_without_originals_offers_nothing(policy: object) -> None:
    turn, plan = make_case()
    assert not make_maker().choose_additions(msgspec.structs.replace(turn, policy=policy), plan)


def test_a_request_that_cannot_be_served_right_is_not_offered_it() -> None:
    turn, plan = make_case(n=2)
    assert not make_maker().choose_additions(turn, plan)


def test_what_a_model_refuses_is_remembered_for_it_alone() -> None:
    maker = make_maker()
    turn, plan = make_case(stream=True)
    assert maker.choose_additions(turn, plan) == {"tool", "usage"}
    maker.note_refused(turn, frozenset({"tool"}))
    assert maker.choose_additions(turn, plan) == {"usage"}
    other, plan = make_case(model="toy-2")
    assert maker.choose_additions(other, plan) == {"tool"}


async def test_a_call_holds_what_is_added_and_asks_for_a_response_that_can_be_edited() -> None:
    maker = make_maker()
    turn, plan = make_case(stream=True)
    call = await maker.make(turn, plan, maker.choose_additions(turn, plan))
    assert isinstance(call.body, bytes)
    sent = json.loads(call.body)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["look", RECALL_TOOL]
    assert sent["stream_options"] == {"include_usage": True}
    assert call.head.headers["Accept-Encoding"] == "identity"
    plain = await maker.make(turn, plan, NOTHING_ADDED)
    assert isinstance(plain.body, bytes)
    assert json.loads(plain.body)["tools"] == [_TOOL]


async def test_a_request_that_nothing_changes_leaves_as_it_came() -> None:
    turn, _ = make_case()
    assert (await make_maker().make(turn, make_plan(), NOTHING_ADDED)).body is turn.raw_body


def test_bodies_that_are_made_are_counted() -> None:
    maker = make_maker()
    turn, plan = make_case()
    size_bytes = len(turn.received.body.data)
    assert maker.count_copied_bytes(turn, make_plan(), NOTHING_ADDED) == 0
    assert maker.count_copied_bytes(turn, plan, maker.choose_additions(turn, plan)) == 3 * size_bytes


async def test_the_body_of_a_call_can_be_made_alone() -> None:
    """As a summary that rides on it needs it."""
    maker = make_maker()
    turn, plan = make_case(stream=True)
    additions = maker.choose_additions(turn, plan)
    assert await maker.make_body(turn, plan, additions) == (await maker.make(turn, plan, additions)).body
    assert await maker.make_body(turn, make_plan(), NOTHING_ADDED) == turn.raw_body
