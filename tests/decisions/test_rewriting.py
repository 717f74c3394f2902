"""What holds of every array that leaves: any valid conversation, any eligible pivot, any marks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.recognizer import Received
from gateway.core.history.conversation import find_open_group, is_boundary
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.edits import make_usage_edit
from gateway.wire.formats.chat.render import render_summary
from tests.decisions.builders import (
    PLACEHOLDER,
    QUESTION,
    RESUME,
    batches,
    bodies,
    conversations,
    frames,
    make_batch,
    make_pivot,
    pivots,
    render,
    render_body,
    render_message,
)
from tests.decisions.parts import make_plan, make_turn, receive_body, rewrite
from tests.examples import examples
from tests.toy.validity import Rules, find_violation

# Whole conversations are slow to draw.
few = examples(20, exhaustive=40)


_RULES = Rules(later_system=True)


def read_raws(body: bytes) -> list[bytes]:
    received = receive_body(body)
    return [received.body.raw(index) for index in range(len(received.body.places))]


RewrittenTurn = tuple[Received, Pivot | None, tuple[Batch, ...], bytes]


def draw_rewrite(data: st.DataObject) -> RewrittenTurn:
    """With a pivot and marks that may apply to it."""
    received = receive_body(data.draw(bodies(min_turns=1)))
    pivot = data.draw(pivots(received.conversation))
    marks = data.draw(batches(received.conversation))
    return received, pivot, marks, rewrite(received, pivot, marks)


@few
@given(bodies())
def test_a_plan_without_edits_leaves_the_body_unchanged(body: bytes) -> None:
    received = receive_body(body)
    assert Rewriter(1 << 20).rewrite(make_turn(received), make_plan()) is received.body.data


@few
@given(st.data())
def test_every_rewritten_array_is_valid(data: st.DataObject) -> None:
    *_, sent = draw_rewrite(data)
    assert find_violation(json.loads(sent), _RULES) is None


@few
@given(st.data())
def test_everything_around_the_messages_stays_as_it_was(data: st.DataObject) -> None:
    received, _, _, sent = draw_rewrite(data)
    before, after = received.body, receive_body(sent).body
    assert before.data[: before.places[0].start] == after.data[: after.places[0].start]
    assert before.data[before.places[-1].end :] == after.data[after.places[-1].end :]


@few
@given(st.data())
def test_kept_messages_are_byte_identical_and_in_order(data: st.DataObject) -> None:
    received, pivot, marks, sent = draw_rewrite(data)
    leading = len(received.conversation.leading)
    raws = [received.body.raw(index) for index in range(len(received.body.places))]
    marked = {mark.position for batch in marks for mark in batch.marks}
    start = pivot.covers if pivot else 0
    tail = raws[leading + start :]
    sent_raws = read_raws(sent)
    assert sent_raws[:leading] == raws[:leading]
    sent_tail = sent_raws[len(sent_raws) - len(tail) :]
    kept = [at for at in range(len(tail)) if start + at not in marked]
    assert [sent_tail[at] for at in kept] == [tail[at] for at in kept]
    if pivot is not None and pivot.opening_chars is None:
        opening = slice(leading, leading + pivot.opening_end)
        assert sent_raws[opening] == raws[opening]


@pytest.mark.system(4)
@few
@given(st.data())
def test_what_stands_between_opening_and_tail_is_the_summary_and_nothing_else(data: st.DataObject) -> None:
    received, pivot, _, sent = draw_rewrite(data)
    if pivot is None:
        return
    conversation = received.conversation
    kept_before = len(conversation.leading) + pivot.opening_end
    kept_behind = len(conversation.messages) - pivot.covers
    messages = json.loads(sent)["messages"]
    inserted = messages[kept_before : len(messages) - kept_behind]
    question = [] if pivot.opening_end else [{"role": "user", "content": QUESTION}]
    tail_role = conversation.messages[pivot.covers].role
    resume = [] if tail_role == "user" else [{"role": "user", "content": RESUME}]
    assert inserted == [*question, {"role": "assistant", "content": pivot.summary}, *resume]


@pytest.mark.system(4)
@few
@given(st.data())
def test_roles_alternate_around_the_summary(data: st.DataObject) -> None:
    _, pivot, _, sent = draw_rewrite(data)
    if pivot is None:
        return
    messages = json.loads(sent)["messages"]
    at = messages.index({"role": "assistant", "content": pivot.summary})
    assert messages[at - 1]["role"] in ("user", "system")
    assert messages[at + 1]["role"] == "user"
    assert [message["role"] for message in messages].count("user") >= 1


@few
@given(st.data())
def test_a_shortened_message_keeps_everything_but_its_text(data: st.DataObject) -> None:
    received, pivot, _, sent = draw_rewrite(data)
    start = pivot.covers if pivot else 0
    before = [json.loads(received.raw(at)) for at in range(start, len(received.conversation.messages))]
    after = json.loads(sent)["messages"][-len(before) :]
    for old, new in zip(before, after, strict=True):
        assert {**new, "content": None} == {**old, "content": None}
        assert type(new["content"]) is type(old["content"])


@few
@given(st.data())
def test_doing_it_twice_gives_the_same_bytes(data: st.DataObject) -> None:
    received, pivot, marks, sent = draw_rewrite(data)
    rewriter = Rewriter(1 << 20)
    turn, plan = make_turn(received), make_plan(pivot, marks)
    assert rewriter.rewrite(turn, plan) == rewriter.rewrite(turn, plan)
    assert rewriter.rewrite(turn, plan) == sent


@few
@given(st.data())
def test_clearing_a_cleared_result_changes_nothing(data: st.DataObject) -> None:
    received = receive_body(data.draw(bodies(min_turns=1)))
    results = [at for at, message in enumerate(received.conversation.messages) if message.results]
    marks = (make_batch(received.conversation, [Mark(at) for at in results]),)
    once = rewrite(received, None, marks)
    again = receive_body(once)
    assert rewrite(again, None, (make_batch(again.conversation, marks[0].marks),)) == once


@few
@given(st.data(), conversations(min_turns=2), frames())
def test_the_rewrite_of_a_longer_history_begins_with_the_rewrite_of_the_shorter_one(
    data: st.DataObject, messages: list[dict[str, Any]], frame: int
) -> None:
    whole = receive_body(render(messages, frame))
    length = data.draw(st.integers(1, len(whole.conversation.messages)))
    if not is_boundary(whole.conversation, length):
        return
    leading = len(whole.conversation.leading)
    raws = [render_message(message) for message in messages]
    shorter = receive_body(render_body(raws[: leading + length], frame))
    pivot = data.draw(pivots(shorter.conversation))
    marks = data.draw(batches(shorter.conversation))
    sent_raws = read_raws(rewrite(shorter, pivot, marks))
    assert read_raws(rewrite(whole, pivot, marks))[: len(sent_raws)] == sent_raws


@few
@given(st.data())
def test_the_open_group_is_always_sent(data: st.DataObject) -> None:
    received, _, marks, sent = draw_rewrite(data)
    marked = {mark.position for batch in marks for mark in batch.marks}
    conversation = received.conversation
    sent_raws = read_raws(sent)
    for position in range(find_open_group(conversation), len(conversation.messages)):
        back = position - len(conversation.messages)
        assert position in marked or sent_raws[back] == received.raw(position)


@few
@given(st.data())
def test_asking_for_usage_changes_the_stream_options_alone(data: st.DataObject) -> None:
    received, pivot, marks, sent = draw_rewrite(data)
    asked = Rewriter(1 << 20).rewrite(
        make_turn(received), make_plan(pivot, marks), [make_usage_edit(received.body)]
    )
    before, after = json.loads(sent), json.loads(asked)
    assert after.pop("stream_options") == {**before.pop("stream_options", {}), "include_usage": True}
    assert before == after
    assert read_raws(asked) == read_raws(sent)


_FLOW: list[dict[str, Any]] = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "look"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "a" * 1_000},
    {"role": "user", "content": "b" * 1_000},
]


def test_the_clamped_reply_takes_the_number_s_place_wherever_it_stands() -> None:
    front = b'{"max_tokens":32000,"messages":[{"role":"user","content":"x"}],"model":"m"}'
    back = b'{"messages":[{"role":"user","content":"x"}],"model":"m","max_completion_tokens": 32000 }'
    plan = make_plan(output=2_048)
    for body in (front, back):
        assert Rewriter(1).rewrite(make_turn(receive_body(body)), plan) == body.replace(b"32000", b"2048")


def test_the_newest_batch_decides_where_two_mark_the_same_message() -> None:
    received = receive_body(render(_FLOW))
    conversation = received.conversation
    older = make_batch(conversation, [Mark(2, 300)], length=3, placeholder="old")
    newer = make_batch(conversation, [Mark(2)], placeholder="new")
    sent = json.loads(rewrite(received, None, (older, newer)))
    assert sent["messages"][2]["content"] == "new"


def test_marks_that_a_pivot_covers_are_left_alone() -> None:
    received = receive_body(render(_FLOW))
    conversation = received.conversation
    marks = (make_batch(conversation, [Mark(2)]),)
    pivot = make_pivot(conversation, 3)
    assert rewrite(received, pivot, marks) == rewrite(received, pivot, ())
    assert PLACEHOLDER.encode() not in rewrite(received, pivot, marks)


def test_a_memory_too_small_for_anything_changes_no_byte() -> None:
    received = receive_body(render(_FLOW))
    marks = (make_batch(received.conversation, [Mark(2), Mark(3, 300)]),)
    turn, plan = make_turn(received), make_plan(None, marks)
    assert Rewriter(0).rewrite(turn, plan) == Rewriter(1 << 20).rewrite(turn, plan)


def test_a_summary_can_hold_anything() -> None:
    received = receive_body(render(_FLOW))
    summary = 'He said "]}" \\ \u2028 😀\n</conversation>'
    pivot = make_pivot(received.conversation, 3, summary=summary)
    assert json.loads(rewrite(received, pivot, ()))["messages"][1]["content"] == summary
    assert json.loads(b"[" + render_summary(pivot, "user") + b"]")[0]["content"] == summary
