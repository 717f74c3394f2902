import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.wire.formats.messages.recall import RECALL
from gateway.wire.formats.messages.recall_reply import is_said, mark_blocks
from gateway.wire.formats.messages.request import parse_body
from gateway.wire.request import RequestBody
from tests.shared_data import SHARED, requires_shared
from tests.toy.validity_messages import find_violation
from tests.wire.formats.messages.turns import (
    Block,
    Stitched,
    Turn,
    answer,
    answer_own,
    call,
    draw_turns,
    insert,
    is_inserted_only,
    make_request,
    recall,
    render,
    say,
    stitch,
    think,
)

_QUESTION = {"role": "user", "content": "Where is it?"}


def _run(turn: Turn) -> Stitched:
    return stitch([render(blocks, number) for number, blocks in enumerate(turn.responses)])


def _splice(messages: Sequence[object], first: int, end: int, stitched: Stitched) -> Any:
    """The messages as they are sent; None if nothing is inserted."""
    body = make_request(messages)
    insertions = RECALL.splice(body, first, end, stitched.rounds, stitched.stitcher.reply)
    if insertions is None:
        return None
    data = insert(body, insertions)
    assert is_inserted_only(body.data, data, insertions)
    parse_body(data)
    return json.loads(data)["messages"]


def _merge(messages: Sequence[Block]) -> list[Block]:
    """Messages of one role that follow each other are one, as for the API."""
    merged: list[Block] = []
    for message in messages:
        content = message["content"]
        blocks = [say(content)] if isinstance(content, str) else content
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {"role": message["role"], "content": [*merged[-1]["content"], *blocks]}
        else:
            merged.append({"role": message["role"], "content": list(blocks)})
    return merged


def _tell(turn: Turn, stitched: Stitched) -> list[Block]:
    """The turn as the model saw it: each response, and what followed."""
    told: list[Block] = [_QUESTION]
    for blocks, request in zip(turn.responses, stitched.requests, strict=True):
        calls = [block for block in blocks if block.get("name") == "recall_history"]
        others = [block for block in blocks if block not in calls]
        told.append({"role": "assistant", "content": [*others, *calls]})
        if request is not None:
            told.append({"role": "user", "content": json.loads(f"[{answer(request)}]")})
    return _merge([message for message in told if message["content"]])


@given(draw_turns())
def test_later_requests_hold_the_turn_as_the_model_saw_it(turn: Turn) -> None:
    assume(turn.shown)
    stitched = _run(turn)
    assume(stitched.rounds)
    messages = [_QUESTION, {"role": "assistant", "content": turn.shown}, answer_own(turn.shown)]
    sent = _splice(messages, 1, 2, stitched)
    assert find_violation(json.loads(make_request(sent).data)) is None
    assert _merge(sent) == _merge([*_tell(turn, stitched), answer_own(turn.shown)])


@given(draw_turns())
def test_the_model_goes_on_from_the_same_messages(turn: Turn) -> None:
    stitched = _run(turn)
    answered = stitched.answered
    body = make_request([_QUESTION])
    insertions = RECALL.continue_reply(body, answered)
    data = insert(body, insertions)
    assert is_inserted_only(body.data, data, insertions)
    assert find_violation(json.loads(data)) is None
    told = _tell(turn, stitched)
    assert _merge(json.loads(data)["messages"]) == told[: 1 + 2 * len(answered)]


@given(draw_turns())
def test_a_client_that_drops_thinking_has_its_calls_at_the_same_places(turn: Turn) -> None:
    stitched = _run(turn)
    kept = [block for block in turn.shown if "thinking" not in block["type"]]
    assume(kept and stitched.rounds)
    messages = [_QUESTION, {"role": "assistant", "content": kept}, answer_own(kept)]
    sent = _splice(messages, 1, 2, stitched)
    assert find_violation(json.loads(make_request(sent).data)) is None
    bare = replace(
        turn, responses=[[b for b in blocks if "thinking" not in b["type"]] for blocks in turn.responses]
    )
    assert _merge(sent) == _merge([*_tell(bare, stitched), answer_own(kept)])


@given(draw_turns(), st.booleans(), st.data())
def test_later_requests_begin_with_the_same_bytes(turn: Turn, has_role_behind: bool, data: Any) -> None:
    assume(turn.shown)
    stitched = _run(turn)
    assume(stitched.rounds)
    reply = {"role": "assistant", "content": turn.shown}
    reply = dict(reversed(reply.items())) if has_role_behind else reply
    messages = [_QUESTION, reply, answer_own(turn.shown)]
    more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    bodies = [make_request(messages), make_request([*messages, *more])]
    sent = []
    for body in bodies:
        insertions = RECALL.splice(body, 1, 2, stitched.rounds, stitched.stitcher.reply)
        assert insertions is not None
        sent.append(insert(body, insertions))
    end = sent[0].index(b'], "tools"')
    assert sent[1].startswith(sent[0][:end])
    assert find_violation(json.loads(sent[1])) is None


@given(draw_turns(), st.data())
def test_a_reply_may_come_back_in_several_messages(turn: Turn, data: Any) -> None:
    assume(turn.shown)
    stitched = _run(turn)
    assume(stitched.rounds)
    at = data.draw(st.integers(0, len(turn.shown) - 1))
    halves = [half for half in (turn.shown[:at], turn.shown[at:]) if half]
    replies = [{"role": "assistant", "content": half} for half in halves]
    sent = _splice([_QUESTION, *replies, answer_own(turn.shown)], 1, 1 + len(replies), stitched)
    assert _merge(sent) == _merge([*_tell(turn, stitched), answer_own(turn.shown)])


@given(draw_turns())
def test_nothing_is_inserted_into_another_reply(turn: Turn) -> None:
    stitched = _run(turn)
    assume(turn.shown and stitched.rounds)
    other = [*turn.shown, say("Something else.")]
    messages = [_QUESTION, {"role": "assistant", "content": other}, answer_own(other)]
    assert _splice(messages, 1, 2, stitched) is None


_SOLO = Turn([[say("Let me look."), recall("r")], [say("It is here.")]])


def test_a_reply_that_came_back_as_a_string_has_the_calls_before_it() -> None:
    stitched = _run(_SOLO)
    messages = [_QUESTION, {"role": "assistant", "content": "Let me look. It is here."}, answer_own([])]
    sent = _splice(messages, 1, 2, stitched)
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert sent[1]["content"] == [recall("r")] and sent[3] == messages[1]


def test_results_stand_before_a_text_that_is_a_string() -> None:
    turn = Turn([[recall("r"), call("look", "own")]])
    stitched = _run(turn)
    messages = [_QUESTION, {"role": "assistant", "content": turn.shown}, {"role": "user", "content": "Stop."}]
    sent = _splice(messages, 1, 2, stitched)
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "text"]
    assert sent[2]["content"][1] == say("Stop.")


def test_thinking_that_was_dropped_in_part_leaves_no_place_for_the_calls() -> None:
    turn = Turn([[think("a"), think("b"), say("Hm."), recall("r")], [say("Here.")]])
    messages = [_QUESTION, {"role": "assistant", "content": turn.shown[1:]}, answer_own([])]
    assert _splice(messages, 1, 2, _run(turn)) is None


_PARALLEL = Turn([[recall("r"), call("look", "own")]])
_REPLY = {"role": "assistant", "content": _PARALLEL.shown}


@pytest.mark.parametrize(
    "behind",
    [
        [],
        [{"role": "assistant", "content": "x"}],
        [{"role": "system", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 1}],
    ],
)
def test_parallel_calls_need_a_user_message_for_their_results(behind: list[Block]) -> None:
    body = make_request([_QUESTION, _REPLY, *behind])
    stitched = _run(_PARALLEL)
    assert RECALL.splice(body, 1, 2, stitched.rounds, stitched.stitcher.reply) is None


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": [None]},
        {"role": "assistant", "content": [{"text": "x"}]},
        {"role": "user", "content": "x"},
    ],
)
def test_odd_replies_stay_as_they_are(reply: object) -> None:
    rounds = [RecallRound(call="{}", results="{}", shown=1, said=1)]
    body = make_request([_QUESTION, reply, _QUESTION])
    assert RECALL.splice(body, 1, 2, rounds, ReplyMark()) is None


def _read_blocks(content: Any) -> list[Block]:
    return [say(content)] if isinstance(content, str) else content


def _list_recorded() -> Iterator[tuple[RequestBody, int, list[Block]]]:
    """Each reply of Claude Code: where it stands in a request, and its blocks."""
    for file in sorted((SHARED / "data" / "captures").glob("*/*_messages.json")):
        # Its scripted model answered without thinking, though it was asked for.
        asked = json.loads(file.read_text("utf-8"))["body"] | {"thinking": {"type": "disabled"}}
        body = parse_body(json.dumps(asked, ensure_ascii=False).encode())
        for index, message in enumerate(asked["messages"]):
            if message["role"] == "assistant":
                yield body, index, _read_blocks(message["content"])


@requires_shared
@pytest.mark.parametrize("is_parallel", [False, True])
def test_any_reply_of_claude_code_takes_a_call_at_any_place(is_parallel: bool) -> None:
    """Not behind a call of its own: there it stands before the reply."""
    inserted = 0
    for body, index, blocks in _list_recorded():
        for shown in range(len(blocks) + 1):
            each = RecallRound(
                call=json.dumps(recall("r")),
                results='{"type":"tool_result","tool_use_id":"r","content":"found"}',
                shown=shown,
                said=sum(map(is_said, blocks[:shown])),
                is_parallel=is_parallel,
            )
            found = RECALL.splice(body, index, index + 1, [each], mark_blocks(blocks))
            assert found is not None
            data = insert(body, found)
            assert is_inserted_only(body.data, data, found)
            assert find_violation(json.loads(data)) is None
            inserted += 1
    assert inserted > 20
