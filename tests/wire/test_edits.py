import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.pivot import find_eligible_pivots
from gateway.core.history.view import make_view
from gateway.wire.edits import Edit, apply_edits, make_output_edit, make_usage_edit, make_view_edits
from gateway.wire.formats.chat.render import render_summary
from gateway.wire.formats.chat.request import parse_body
from tests.builders.chat import JSON, converse, make_pivot, read, render, rewrite
from tests.builders.trimmed import continue_trimmed, say


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[bytes], list[bytes | None]]:
    """Pieces of a body, and the replacement of each; None leaves the piece."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=5), max_size=8))
    return pieces, [draw(st.one_of(st.none(), st.binary(max_size=5))) for _ in pieces]


def test_without_edits_the_same_object_is_returned() -> None:
    data = b"abc"
    assert apply_edits(data, []) is data


def test_insertions_at_one_place_keep_their_order() -> None:
    edits = [Edit(1, 1, b"z"), Edit(1, 2, b""), Edit(1, 1, b"y"), Edit(0, 0, b"x")]
    assert apply_edits(b"abc", edits) == b"xazyc"


@given(edited(), st.randoms())
def test_only_edited_bytes_change_and_the_order_of_the_edits_does_not_matter(
    case: tuple[list[bytes], list[bytes | None]], rng: Random
) -> None:
    pieces, replacements = case
    edits, at = [], 0
    for piece, new in zip(pieces, replacements, strict=True):
        if new is not None:
            edits.append(Edit(at, at + len(piece), new))
        at += len(piece)
    rng.shuffle(edits)
    expected = b"".join(
        piece if new is None else new for piece, new in zip(pieces, replacements, strict=True)
    )
    assert apply_edits(b"".join(pieces), edits) == expected


@pytest.mark.parametrize(("at", "expected"), [(0, b"Xabc"), (1, b"aXbc"), (3, b"abcX")])
def test_an_empty_range_inserts(at: int, expected: bytes) -> None:
    assert apply_edits(b"abc", [Edit(at, at, b"X")]) == expected


def test_an_insertion_may_touch_a_replacement() -> None:
    assert apply_edits(b"abc", [Edit(1, 2, b"B"), Edit(1, 1, b"-"), Edit(2, 2, b"+")]) == b"a-B+c"


def test_overlapping_edits_raise_an_error() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits(b"abcd", [Edit(0, 2, b""), Edit(1, 3, b"")])


_TALK: list[JSON] = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "More."},
]


def test_a_pivot_that_covers_everything_is_followed_by_the_resume_text() -> None:
    received = read(render(_TALK))
    view = make_view(make_pivot(received.conversation, 3), ())
    sent = apply_edits(
        received.body.data, make_view_edits(received.body, received.conversation, view, {}, render_summary)
    )
    assert [message["role"] for message in json.loads(sent)["messages"]] == ["user", "assistant", "user"]


def test_only_messages_that_the_view_marks_are_replaced() -> None:
    received = read(render(_TALK))
    edits = make_view_edits(
        received.body, received.conversation, make_view(None, ()), {0: b"{}", 1: b"{}"}, render_summary
    )
    assert edits == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"messages":[]}', b'{"messages":[],"stream_options":{"include_usage":true}}'),
        (b'{"messages":[]} \n', b'{"messages":[],"stream_options":{"include_usage":true}} \n'),
        (
            b'{"stream_options":null,"messages":[]}',
            b'{"stream_options":{"include_usage":true},"messages":[]}',
        ),
        (b'{"messages":[],"stream_options":{}}', b'{"messages":[],"stream_options":{"include_usage":true}}'),
        (
            b'{"messages":[],"stream_options":{"x":1,"include_usage":false}, "y": 1.10}',
            b'{"messages":[],"stream_options":{"x":1,"include_usage":true}, "y": 1.10}',
        ),
        (
            b'{"messages":[{"role":"user","content":"}"}],"a":{}}',
            b'{"messages":[{"role":"user","content":"}"}],"a":{},"stream_options":{"include_usage":true}}',
        ),
    ],
)
def test_usage_is_requested_and_no_other_byte_changes(before: bytes, after: bytes) -> None:
    assert apply_edits(before, [make_usage_edit(parse_body(before))]) == after


def test_the_limit_of_the_reply_is_replaced_in_its_place() -> None:
    body = parse_body(b'{"max_tokens": 32000, "messages":[], "n": 32000}')
    assert apply_edits(body.data, [make_output_edit(body, 1_024)]) == body.data.replace(b"32000", b"1024", 1)


def test_a_request_without_a_limit_for_its_reply_cannot_get_one() -> None:
    with pytest.raises(ValueError, match="does not limit"):
        make_output_edit(parse_body(b'{"messages":[]}'), 1_024)


@pytest.mark.parametrize(("dropped", "keeps_task"), [(4, True), (4, False), (9, True), (9, False)])
def test_a_summary_takes_the_place_of_what_a_client_still_sends_of_its_messages(
    dropped: int, keeps_task: bool
) -> None:
    """Also if it sends nothing of them any more: then the summary is inserted."""
    whole, covers = say(6), 9
    received = continue_trimmed(say(5), [*(whole[:1] if keeps_task else []), *whole[dropped:]])
    pivot = make_pivot(converse(whole), covers, opening="Task t", resume="Go on.")
    [placed] = find_eligible_pivots(received.conversation, [pivot])
    sent = json.loads(rewrite(received, placed, ()))["messages"]
    task = whole[0] if keeps_task else {"role": "user", "content": "Task t"}
    assert sent[:3] == [
        task,
        {"role": "assistant", "content": pivot.summary},
        {"role": "user", "content": "Go on."},
    ]
    assert sent[3:] == whole[covers:]
