"""What holds of every array that leaves: any valid conversation, any eligible pivot, any marks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.reading import Received
from gateway.core.history.conversation import is_boundary
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.planning.rewrite import Rewriter
from tests.builders.chat import make_plan, make_turn, rewrite
from tests.decisions.builders import (
    QUESTION,
    RESUME,
    batches,
    bodies,
    conversations,
    frames,
    make_batch,
    pivots,
    render,
    render_body,
    render_message,
)
from tests.decisions.parts import receive_body
from tests.examples import examples

# Whole conversations are slow to draw.
few = examples(20, exhaustive=40)


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
    if pivot is not None:
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
