import json
from dataclasses import replace

from msgspec import structs

from gateway.compaction.answered_heads import make_head, name_prefix
from gateway.core.history.pivot import Mark
from gateway.core.history.recall import ReplyMark
from gateway.core.sizing.usage import Usage
from tests.builders.chat import make_batch, make_pivot, make_plan, read
from tests.builders.compaction import head_of, receive, turn_of
from tests.builders.recalls import make_recall
from tests.builders.state import make_state, make_store

_RECEIVED = receive(3)
_CONVERSATION = _RECEIVED.conversation
_TURN = turn_of(_RECEIVED)
_LENGTH = len(_CONVERSATION.messages)
_PLAN = make_plan(make_pivot(_CONVERSATION, 3), [make_batch(_CONVERSATION, [Mark(4)])])


async def test_a_head_names_what_its_request_was_sent_with() -> None:
    state = make_state(await make_store())
    recall = make_recall(_CONVERSATION, 5)
    plan = replace(_PLAN, recalls=(recall,))
    head = make_head(_TURN, name_prefix(state, _TURN, plan), plan, Usage(prompt_tokens=900, output_tokens=9))
    assert plan.pivot is not None
    assert (head.pivot, head.covers, head.recalls) == (plan.pivot.key, 3, (recall.key,))
    assert head.batches == (plan.batches[0].key,)
    assert (head.prompt_tokens, head.output_tokens, head.length) == (900, 9, _LENGTH)


async def test_without_usage_a_head_keeps_the_growth_that_is_known() -> None:
    state = make_state(await make_store())
    head = make_head(_TURN, name_prefix(state, _TURN, make_plan()), make_plan(), None)
    assert (head.prompt_tokens, head.growth_tokens, head.recalls) == (0, _TURN.growth, ())


async def test_a_request_that_is_answered_twice_names_what_each_reply_recalled() -> None:
    """The client may go on with either. What stood before is not another reply's."""
    state = make_state(await make_store())
    older = make_recall(_CONVERSATION, 5)
    replies = [make_recall(_CONVERSATION, _LENGTH, reply=ReplyMark(calls=(call,))) for call in "vwxyz"]
    for recall in (older, *replies):
        state.recalls.hold(recall)
    for recall in replies:
        plan = replace(_PLAN, recalls=(older, recall))
        state.heads.hold(make_head(_TURN, name_prefix(state, _TURN, plan), plan, None))
    kept = name_prefix(state, _TURN, replace(_PLAN, recalls=())).recalls
    assert kept == tuple(recall.key for recall in reversed(replies[2:]))


async def test_a_request_without_tools_names_what_waits_for_one_with_tools() -> None:
    state = make_state(await make_store())
    covered, called = make_recall(_CONVERSATION, 2), make_recall(_CONVERSATION, 5)
    found = make_recall(_CONVERSATION, 4, kind="found", reply=None)
    for recall in (covered, called, found):
        state.recalls.hold(recall)
    keys = (covered.key, found.key, called.key)
    turn = turn_of(_RECEIVED, head=head_of(receive(2), recalls=keys))
    bare = read(json.dumps(json.loads(_RECEIVED.body.data) | {"tools": []}).encode())
    plan = replace(_PLAN, recalls=(found,))
    assert name_prefix(state, turn, plan).recalls == (found.key,)
    without = structs.replace(turn, received=bare)
    assert name_prefix(state, without, plan).recalls == (found.key, called.key)
