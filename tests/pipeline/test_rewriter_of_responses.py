"""What must hold for every Responses array that leaves: any valid input, any eligible pivot, any marks."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.recognizer import Recognizer
from gateway.wire.formats.responses import RESPONSES
from tests.builders.chat import (
    RewrittenTurn,
    render_message,
    rewrite,
    rewrite_somehow,
)
from tests.builders.responses import bodies, conversations, frames, read, render_body
from tests.examples import examples
from tests.toy.validity import Rules
from tests.toy.validity_responses import find_violation

# Whole conversations are slow to draw.
few = examples(20, exhaustive=60)
_RULES = Rules(later_system=True, foreign_secrets=True)


def draw_rewrite(data: st.DataObject) -> RewrittenTurn:
    return rewrite_somehow(data, read(data.draw(bodies(min_turns=1))))


@few
@given(bodies())
def test_the_drawn_conversations_are_valid(body: bytes) -> None:
    assert find_violation(json.loads(body), _RULES) is None


@few
@given(bodies())
def test_untouched_in_is_untouched_out_and_the_very_same_object(body: bytes) -> None:
    received = read(body)
    assert rewrite(received, None, ()) is received.body.data


@few
@given(st.data())
def test_every_rewritten_array_is_valid(data: st.DataObject) -> None:
    *_, sent = draw_rewrite(data)
    assert find_violation(json.loads(sent), _RULES) is None


@few
@given(st.data())
def test_everything_around_the_items_stays_as_it_was(data: st.DataObject) -> None:
    received, _, _, sent = draw_rewrite(data)
    before, after = received.body, read(sent).body
    assert before.data[: before.places[0].start] == after.data[: after.places[0].start]
    assert before.data[before.places[-1].end :] == after.data[after.places[-1].end :]


@few
@given(st.data())
def test_kept_items_are_byte_identical_and_in_order(data: st.DataObject) -> None:
    received, pivot, marks, sent = draw_rewrite(data)
    marked = {mark.position for batch in marks for mark in batch.marks}
    start = pivot.covers if pivot else 0
    tail = [received.raw(at) for at in range(start, len(received.conversation.messages))]
    body = read(sent).body
    raws = [body.raw(index) for index in range(len(body.places))][-len(tail) :]
    kept = [at for at in range(len(tail)) if start + at not in marked]
    assert [raws[at] for at in kept] == [tail[at] for at in kept]


@few
@given(st.data())
def test_a_longer_input_is_read_like_the_shorter_one_and_what_was_added(data: st.DataObject) -> None:
    """However little the second body brings, and wherever in a reply the first one ended."""
    items = data.draw(conversations(min_turns=2))
    raws = [render_message(item) for item in items]
    frame = data.draw(frames())
    recognizer = Recognizer(1 << 20, 1 << 20, 8)
    for end in sorted(data.draw(st.sets(st.integers(1, len(raws)), min_size=1, max_size=4))):
        body = render_body(raws[:end], frame)
        assert recognizer.recognize("t", RESPONSES, body).conversation == read(body).conversation
        assert recognizer.recognize("t", RESPONSES, body).body.places == read(body).body.places


@few
@given(conversations(min_turns=1))
def test_reasoning_that_a_client_drops_changes_no_chain(items: list[dict[str, object]]) -> None:
    """Nor do ids, or a type that messages may leave out."""
    plain = [
        {
            key: value
            for key, value in item.items()
            if key not in ("id", "status") or "mcp" in str(item["type"])
        }
        for item in ({"type": "message", **item} for item in items)
        if item["type"] != "reasoning"
    ]
    sent = [render_message(item) for item in items]
    bare = [render_message(item) for item in plain]
    assert read(render_body(sent)).conversation.chain == read(render_body(bare)).conversation.chain
