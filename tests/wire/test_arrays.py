"""What is shown as sent is what was sent, message for message, whatever the plan."""

import json
from dataclasses import replace as with_fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.conversations.recognizer import Received
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import Mark
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.arrays import Arrays, ArrayWindow, ReceivedMessage, SentMessage, count_messages
from gateway.wire.structure import UNBOUNDED
from tests.builders import messages, responses
from tests.builders.chat import (
    JSON,
    PLACEHOLDER,
    QUESTION,
    RESUME,
    batches,
    bodies,
    make_batch,
    make_pivot,
    make_plan,
    make_turn,
    pivots,
    read,
    render,
)
from tests.builders.recalls import SPLICING, make_recall
from tests.examples import examples

few = examples(20, exhaustive=40)
_ANY_FORMAT = [
    bodies().map(read),
    messages.bodies().map(messages.read),
    responses.bodies().map(responses.read),
]
_WHOLE = ArrayWindow(0, 1_000, 1 << 20)
_TALK: list[JSON] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "A long result. " * 20},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "More."},
]


def show(received: Received, plan: Plan, window: ArrayWindow = _WHOLE) -> Arrays:
    return Rewriter(1 << 20).show(make_turn(received), plan, window)


@pytest.mark.parametrize("is_marked", [False, True])
def test_what_is_recalled_is_shown_where_it_is_sent(is_marked: bool) -> None:
    received = read(render(_TALK))
    received = replace(received, format=with_fields(received.format, recall=SPLICING))
    conversation = received.conversation
    marks = [make_batch(conversation, [Mark(2)])] if is_marked else []
    plan = with_fields(
        make_plan(None, marks),
        recalls=(make_recall(conversation, 1), make_recall(conversation, 3)),
    )
    arrays = show(received, plan)
    kinds = ["message", "message", "recalled", "message", "recalled", "recalled", "message", "recalled"]
    assert [row.kind for row in arrays.sent] == kinds
    assert [row.position for row in arrays.sent] == [None, 0, None, 1, 2, None, 3, 4]
    assert [json.loads(row.raw) for row in arrays.sent] == [
        json.loads(raw) for raw in read_sent(received, plan)
    ]
    whole, sent = count_messages(conversation, plan.view)
    assert (whole, sent + arrays.inserted) == (len(arrays.received), len(arrays.sent))


def list_raws(received: Received) -> list[bytes]:
    return [received.body.raw(at) for at in range(len(received.body.places))]


def read_sent(received: Received, plan: Plan) -> list[bytes]:
    """Of the body that goes upstream."""
    body = Rewriter(1 << 20).rewrite(make_turn(received), plan)
    again = received.format.parse_body(body, UNBOUNDED)
    return [again.raw(at) for at in range(len(again.places))]


@few
@given(st.data())
def test_what_is_shown_as_sent_is_what_is_sent(data: st.DataObject) -> None:
    received = data.draw(st.one_of(_ANY_FORMAT))
    plan = make_plan(data.draw(pivots(received.conversation)), data.draw(batches(received.conversation)))
    arrays = show(received, plan)
    assert [row.raw for row in arrays.sent] == read_sent(received, plan)
    assert [row.raw for row in arrays.received] == list_raws(received)
    assert arrays.end is None


@few
@given(st.data(), st.integers(1, 5), st.sampled_from([1, 300, 1 << 20]))
def test_windows_join_to_the_whole(data: st.DataObject, most: int, max_bytes: int) -> None:
    received = read(data.draw(bodies()))
    plan = make_plan(data.draw(pivots(received.conversation)), data.draw(batches(received.conversation)))
    whole = show(received, plan)
    at: int | None = 0
    rows: list[ReceivedMessage] = []
    sent: list[SentMessage] = []
    while at is not None:
        part = show(received, plan, ArrayWindow(at, most, max_bytes))
        assert 1 <= len(part.received) <= most
        rows += part.received
        sent += part.sent
        at = part.end
    assert (rows, sent) == (whole.received, whole.sent)


def test_each_message_has_its_fate_and_its_kind() -> None:
    received = read(render(_TALK))
    pivot = make_pivot(received.conversation, 4)
    arrays = show(received, make_plan(pivot))
    assert [(row.position, row.fate) for row in arrays.received] == [
        *((None, "sent"), (0, "sent"), (1, "folded"), (2, "folded"), (3, "folded"), (4, "sent"))
    ]
    assert [(row.position, row.role, row.kind) for row in arrays.sent] == [
        (None, "system", "message"),
        (0, "user", "message"),
        (None, "assistant", "summary"),
        (4, "user", "message"),
    ]


def test_the_messages_around_a_summary_have_names() -> None:
    received = read(render(_TALK))
    pivot = make_pivot(received.conversation, 1, opening_end=0)
    sent = show(received, make_plan(pivot)).sent
    assert [(row.kind, row.role) for row in sent[1:4]] == [
        ("question", "user"),
        ("summary", "assistant"),
        ("resume", "user"),
    ]
    assert QUESTION.encode() in sent[1].raw and RESUME.encode() in sent[3].raw


def test_a_cleared_and_a_shortened_message_are_told_apart() -> None:
    received = read(render(_TALK))
    for keep_chars, name in ((None, "cleared"), (10, "shortened")):
        batch = make_batch(received.conversation, [Mark(2, keep_chars)])
        arrays = show(received, make_plan(None, (batch,)))
        assert (arrays.received[3].fate, arrays.sent[3].kind) == (name, name)
        assert arrays.received[3].raw == received.raw(2) != arrays.sent[3].raw
    assert (
        PLACEHOLDER.encode()
        in show(received, make_plan(None, (make_batch(received.conversation, [Mark(2)]),))).sent[3].raw
    )


def test_behind_the_end_there_is_nothing() -> None:
    arrays = show(read(render(_TALK)), make_plan(), ArrayWindow(50, 5, 1 << 20))
    assert (arrays.received, arrays.sent, arrays.end) == ([], [], None)
