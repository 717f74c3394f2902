import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given

from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.wire.formats.responses.items import parse_items, role_of
from gateway.wire.formats.responses.recall import RECALL
from gateway.wire.formats.responses.recall_items import is_thought, mark_items
from gateway.wire.formats.responses.request import parse_body
from tests.shared_data import SHARED, requires_shared
from tests.toy.validity import Rules
from tests.toy.validity_responses import find_violation
from tests.wire.formats.responses.turns import (
    Item,
    Stitched,
    Turn,
    answer,
    answer_own,
    call,
    draw_turns,
    insert,
    make_request,
    recall,
    render,
    say,
    stitch,
    think,
)

_QUESTION: Item = {"role": "user", "content": "Where is it?"}


def _run(turn: Turn) -> Stitched:
    return stitch([render(items, number) for number, items in enumerate(turn.responses)])


def _splice(
    items: Sequence[Item], shown: Sequence[Item], stitched: Stitched, behind: Sequence[Item] = ()
) -> Any:
    """The items as they are sent; None if nothing is inserted. items: question, reply, and what follows."""
    body = make_request([*items, *behind])
    # Reasoning and the item behind it are one message.
    followed = sum(item["type"] == "reasoning" for item in shown[:-1])
    insertions = RECALL.splice(body, 1, 1 + len(shown) - followed, stitched.rounds, stitched.stitcher.reply)
    if insertions is None:
        return None
    data = insert(body, insertions)
    parse_body(data)
    end = data.index(b'], "tools"')
    return json.loads(data)["input"], data[:end]


def _tell(turn: Turn, stitched: Stitched) -> list[Item]:
    """The turn as the model saw it: each result stands behind the calls of its response."""
    told: list[Item] = [_QUESTION]
    for items, request in zip(turn.responses, stitched.requests, strict=True):
        results = json.loads(f"[{answer(request)}]") if request is not None else []
        for item in items:
            is_ours = item.get("name") == "recall_history"
            told.append({key: item[key] for key in item if key != "id"} if is_ours else item)
            if request is not None and item.get("call_id") == request.calls[-1].id:
                told += results
    return told


@given(draw_turns())
def test_later_requests_hold_the_turn_as_the_model_saw_it(turn: Turn) -> None:
    assume(turn.shown)
    stitched = _run(turn)
    assume(stitched.rounds)
    behind = answer_own(turn.shown)
    sent, _ = _splice([_QUESTION, *turn.shown, *behind], turn.shown, stitched)
    assert sent == [*_tell(turn, stitched), *behind]
    assert find_violation(json.loads(make_request(sent).data)) is None


@given(draw_turns())
def test_the_model_goes_on_from_the_same_items(turn: Turn) -> None:
    stitched = _run(turn)
    body = make_request([_QUESTION])
    data = insert(body, RECALL.continue_reply(body, stitched.answered))
    sent = json.loads(data)["input"]
    assert sent == _tell(turn, stitched)[: len(sent)]
    assert find_violation(json.loads(data)) is None


@given(draw_turns())
def test_a_client_that_drops_reasoning_has_its_calls_at_the_same_places(turn: Turn) -> None:
    stitched = _run(turn)
    kept = [item for item in turn.shown if item["type"] != "reasoning"]
    assume(kept and stitched.rounds)
    behind = answer_own(kept)
    sent, _ = _splice([_QUESTION, *kept, *behind], kept, stitched)
    bare = replace(
        turn, responses=[[i for i in items if i["type"] != "reasoning"] for items in turn.responses]
    )
    assert sent == [*_tell(bare, stitched), *behind]


@given(draw_turns())
def test_later_requests_begin_with_the_same_bytes(turn: Turn) -> None:
    assume(turn.shown)
    stitched = _run(turn)
    assume(stitched.rounds)
    items = [_QUESTION, *turn.shown, *answer_own(turn.shown)]
    _, first = _splice(items, turn.shown, stitched)
    more: list[Item] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    _, second = _splice(items, turn.shown, stitched, more)
    assert second.startswith(first)


@given(draw_turns())
def test_nothing_is_inserted_into_another_reply(turn: Turn) -> None:
    stitched = _run(turn)
    assume(turn.shown and stitched.rounds)
    other = [*turn.shown, say("other", "Something else.")]
    assert _splice([_QUESTION, *other, *answer_own(other)], other, stitched) is None


def test_reasoning_that_was_dropped_in_part_has_the_calls_before_the_reply() -> None:
    first, second = say("a", "Hm."), say("b", "Here.")
    turn = Turn([[think("1", first), first, think("2", recall("r")), recall("r")], [second]])
    stitched = _run(turn)
    kept = turn.shown[1:]
    sent, _ = _splice([_QUESTION, *kept, *answer_own([])], kept, stitched)
    assert [item.get("type") for item in sent[1:3]] == ["function_call", "function_call_output"]
    assert sent[3:6] == kept


def test_items_without_ids_and_texts_as_strings_are_the_same_reply() -> None:
    turn = Turn([[say("a", "Let me look."), recall("r")], [say("b", "It is here.")]])
    texts = [item["content"][0]["text"] for item in turn.shown]
    kept: list[Item] = [{"type": "message", "role": "assistant", "content": text} for text in texts]
    sent, _ = _splice([_QUESTION, *kept, *answer_own([])], kept, _run(turn))
    assert [item.get("type") for item in sent[1:5]] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]


@pytest.mark.parametrize(
    "reply",
    [
        {"type": "message", "role": "user", "content": "x"},
        {"type": "message", "role": "assistant", "content": 7},
        {"type": "message", "role": "assistant", "content": [7]},
        {"type": "function_call_output", "call_id": "a", "output": "x"},
    ],
)
def test_odd_replies_stay_as_they_are(reply: Item) -> None:
    rounds = [RecallRound(call="{}", results="{}", shown=9, said=9)]
    body = make_request([_QUESTION, reply, _QUESTION])
    mark = ReplyMark(calls=("a",))
    assert RECALL.splice(body, 1, 2, rounds, mark) is None


def test_an_item_of_an_unknown_kind_is_a_part_of_the_reply() -> None:
    own = call("look", "own")
    turn = Turn([[recall("r")], [{"type": "odd_item", "id": "odd_1"}, own]])
    stitched = stitch([render([recall("r")]), render([own], 1)])
    items = [_QUESTION, *turn.shown, *answer_own([own])]
    sent, _ = _splice(items, turn.shown, stitched)
    assert [item.get("type") for item in sent[1:4]] == ["function_call", "function_call_output", "odd_item"]


@requires_shared
def test_any_reply_of_real_clients_takes_a_call_at_any_place() -> None:
    inserted = 0
    for file in sorted((SHARED / "data" / "captures").glob("*/*_responses.json")):
        asked = json.loads(file.read_text("utf-8"))["body"]
        if any(item.get("type") == "item_reference" for item in asked["input"]):
            continue
        body = parse_body(json.dumps(asked, ensure_ascii=False).encode())
        for index, place in enumerate(body.places):
            items = parse_items(body.data[place.start : place.end])
            if role_of(items[-1]) != "assistant":
                continue
            for shown in range(len(items) + 1):
                said = sum(not is_thought(item) for item in items[:shown])
                each = RecallRound(
                    call=json.dumps(recall("r")),
                    results='{"type":"function_call_output","call_id":"r","output":"found"}',
                    shown=shown,
                    said=said,
                )
                found = RECALL.splice(body, index, index + 1, [each], mark_items(items))
                assert found is not None
                (insertion,) = found
                data = insert(body, found)
                at = insertion.at
                assert data == body.data[:at] + insertion.new + body.data[at:]
                inserted += 1
                assert find_violation(json.loads(data), Rules(foreign_secrets=True)) is None
    assert inserted > 50
