"""What is changed in a body or a stream, and that every other byte stays where it is."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.reading import Received
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import FoundExchange, Mark, find_eligible_pivots
from gateway.planning.rewrite import Rewriter
from gateway.wire.arrays import Arrays, ArrayWindow
from gateway.wire.body import UNBOUNDED
from gateway.wire.edits import Edit, apply_edits, encode_json, make_output_edit, make_usage_edit
from gateway.wire.registry import CHAT
from gateway.wire.sse import UsageChunkFilter
from tests.builders.chat import make_plan, make_turn, rewrite
from tests.builders.trimmed import continue_trimmed, say
from tests.decisions.builders import (
    JSON,
    QUESTION,
    RESUME,
    batches,
    converse,
    make_batch,
    make_pivot,
    make_recall,
    pivots,
)
from tests.examples import examples
from tests.shared_data import requires_shared
from tests.wire.recorded import (
    RecordedResponse,
    cut,
    cut_anywhere,
    draw_cuts,
    load_responses,
    load_some_responses,
)
from tests.wire.shapes import Shape, in_each_format

few = examples(20, exhaustive=40)
_TEXTS = st.text(st.characters(exclude_categories=()), max_size=6)
_OBJECTS = st.dictionaries(_TEXTS, st.integers() | _TEXTS | st.lists(_TEXTS, max_size=2), max_size=5)


@given(_OBJECTS)
def test_halves_of_surrogate_pairs_are_encoded(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    assert json.loads(encode_json(json.loads(raw))) == json.loads(raw)


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[bytes], list[bytes | None]]:
    """Pieces of a body, and the replacement of each; None leaves the piece."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=5), max_size=8))
    return pieces, [draw(st.one_of(st.none(), st.binary(max_size=5))) for _ in pieces]


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


def test_overlapping_edits_raise_an_error() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits(b"abcd", [Edit(0, 2, b""), Edit(1, 3, b"")])


_TALK: list[JSON] = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "More."},
]


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
    assert apply_edits(before, [make_usage_edit(CHAT.parse_body(before))]) == after


@in_each_format
@given(data=st.data())
@few
def test_a_body_without_edits_is_the_same_object(shape: Shape, data: st.DataObject) -> None:
    body = data.draw(shape.bodies())
    assert apply_edits(body, []) is body
    assert rewrite(shape.read(body), None, ()) is body


@in_each_format
@pytest.mark.parametrize("is_behind", [False, True])
def test_the_limit_of_the_reply_is_replaced_in_its_place(shape: Shape, is_behind: bool) -> None:
    limit, items = b'"%s": 32000' % shape.wire.output_key.encode(), b'"%s":[]' % shape.array.encode()
    parts = [items, limit] if is_behind else [limit, items]
    body = shape.wire.parse_body(b'{%s, "n": 32000}' % b", ".join(parts), UNBOUNDED)
    assert apply_edits(body.data, [make_output_edit(body, 1_024)]) == body.data.replace(b"32000", b"1024", 1)
    bare = shape.wire.parse_body(b"{%s}" % items, UNBOUNDED)
    with pytest.raises(ValueError, match="does not limit"):
        make_output_edit(bare, 1_024)


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


_WHOLE = ArrayWindow(0, 1_000, 1 << 20)


def show(received: Received, plan: Plan, window: ArrayWindow = _WHOLE) -> Arrays:
    return Rewriter(1 << 20).show(make_turn(received), plan, window)


def list_raws(received: Received) -> list[bytes]:
    return [received.body.raw(at) for at in range(len(received.body.places))]


def read_sent(received: Received, plan: Plan) -> list[bytes]:
    """Of the body that goes upstream."""
    body = Rewriter(1 << 20).rewrite(make_turn(received), plan)
    again = received.format.parse_body(body, UNBOUNDED)
    return [again.raw(at) for at in range(len(again.places))]


@few
@in_each_format
@given(data=st.data())
def test_what_is_shown_as_sent_is_what_is_sent(shape: Shape, data: st.DataObject) -> None:
    received = shape.read(data.draw(shape.bodies()))
    plan = make_plan(data.draw(pivots(received.conversation)), data.draw(batches(received.conversation)))
    arrays = show(received, plan)
    assert [row.raw for row in arrays.sent] == read_sent(received, plan)
    assert [row.raw for row in arrays.received] == list_raws(received)
    assert arrays.end is None


@in_each_format
def test_what_was_found_stands_before_its_message(shape: Shape) -> None:
    received = shape.read(shape.render(shape.talk, 0))
    last, plan = len(received.conversation.messages) - 1, make_plan(make_pivot(received.conversation, 4))
    written = shape.wire.write_turns([("user", "Found."), ("assistant", "Noted.")])
    recall = make_recall(received.conversation, last, rounds=(FoundExchange(call=written.decode()),))
    before, arrays = read_sent(received, plan), show(received, replace(plan, recalls=(recall,)))
    sent = [row.raw for row in arrays.sent]
    assert sent == read_sent(received, replace(plan, recalls=(recall,)))
    assert [*sent[:-3], sent[-1]] == before and b"[%s]" % b",".join(sent[-3:-1]) == b"[%s]" % written
    found = [(row.position, row.role, row.kind) for row in arrays.sent[-3:]]
    assert found[:2] == [(None, "user", "recalled"), (None, "assistant", "recalled")]
    assert (found[2][2], arrays.inserted) == ("message", 2)


@in_each_format
def test_each_message_has_its_fate_and_its_kind(shape: Shape) -> None:
    received = shape.read(shape.render(shape.talk, 0))
    arrays = show(received, make_plan(make_pivot(received.conversation, 4)))
    assert [row.fate for row in arrays.received] == ["sent", "folded", "folded", "folded", "sent"]
    assert [(row.position, row.role, row.kind) for row in arrays.sent] == [
        (0, "user", "message"),
        (None, "assistant", "summary"),
        (4, "user", "message"),
    ]
    sent = show(received, make_plan(make_pivot(received.conversation, 1, opening_end=0))).sent
    assert [(row.kind, row.role) for row in sent[:3]] == [
        ("question", "user"),
        ("summary", "assistant"),
        ("resume", "user"),
    ]
    assert QUESTION.encode() in sent[0].raw and RESUME.encode() in sent[2].raw
    for keep_chars, name in ((None, "cleared"), (64, "shortened")):
        batch = make_batch(received.conversation, [Mark(2, keep_chars)])
        arrays = show(received, make_plan(None, (batch,)))
        assert (arrays.received[2].fate, arrays.sent[2].kind) == (name, name)
        assert arrays.received[2].raw == received.raw(2) != arrays.sent[2].raw


EXTRA = b'data: {"choices":[],"usage":{"prompt_tokens":1}}'
TEXT = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}'
AZURE = b'data: {"choices":[],"prompt_filter_results":[]}'
NULL = b'data: {"choices":[],"usage":null}'
SPACED_NULL = b'data: {"choices": [], "usage": null}'
WITH_CHOICES = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}'
DONE = b"data: [DONE]"


def _filter(*chunks: bytes) -> bytes:
    usage_filter = UsageChunkFilter()
    return b"".join([usage_filter.feed(chunk) for chunk in chunks]) + usage_filter.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "extra",
    [
        *(EXTRA, EXTRA.replace(b"data: ", b"data:")),
        b'data: { "usage" : {"prompt_tokens" : 1}, "choices" : [ ] }',
        *(b"id: 7{end}" + EXTRA, EXTRA + b"{end}event: x"),
    ],
)
def test_exactly_the_usage_chunk_is_removed(end: bytes, extra: bytes) -> None:
    blank = end + end
    before = TEXT + blank + AZURE + blank + NULL + blank + SPACED_NULL + blank + WITH_CHOICES + blank
    after = DONE + blank + b": bye" + blank
    stream = before + extra.replace(b"{end}", end) + blank + after
    for chunks in ([stream], cut(stream, 1), cut(stream, 7), stream.splitlines(keepends=True)):
        assert _filter(*chunks) == before + after


@pytest.mark.parametrize(
    "kept",
    [
        *(EXTRA + b"\n" + DONE + b"\n\n", TEXT + b"\n" + EXTRA + b"\n\n"),
        b'data: {"choices":[],\ndata: "usage":{}}\n\n',
        b'data: {"choices":[],"usage":{"note":"' + b"x" * 70_000 + b'"}}\n\n',
        b"id: " + b"x" * 70_000 + b"\n" + EXTRA + b"\n\n",
        *(
            b'data: {"choices":[],"usage":{"a":NaN}}\n\n',
            b'data: {"choices":{},"usage":{}}\n\n',
            b'data: {"choices": [{"delta": {}}], "usage": {"prompt_tokens": 1}}\n\n',
        ),
        *(b'data: {"usage":{}}\n\n', b'data: {"choices":[],"usage":7}\n\n'),
        *(b"data: " + b'{"usage":' * 5_000 + b"\n\n", b"xdata: " + EXTRA + b"\n\n"),
    ],
)
def test_chunks_that_resemble_the_usage_chunk_stay(kept: bytes) -> None:
    for chunks in ([kept], cut(kept, max(7, len(kept) // 99)), cut_anywhere(kept, 4)):
        assert _filter(*chunks) == kept


def test_the_usage_chunk_is_removed_at_the_end_of_a_stream_without_a_blank_line() -> None:
    assert _filter(TEXT + b"\n\n" + EXTRA) == TEXT + b"\n\n"
    assert _filter(TEXT + b"\n\n" + EXTRA + b"\n") == TEXT + b"\n\n"


def test_a_keep_alive_waits_for_no_event() -> None:
    usage_filter = UsageChunkFilter()
    assert usage_filter.feed(b": alive\n") == b": alive\n"
    assert usage_filter.feed(b"\n: again\n\nda") == b"\n: again\n\n"


def test_lines_of_other_events_are_sent_before_the_blank_line() -> None:
    usage_filter = UsageChunkFilter()
    assert usage_filter.feed(TEXT + b"\n") == TEXT + b"\n"
    assert usage_filter.feed(TEXT + b"\n" + TEXT[:9]) == TEXT + b"\n" + TEXT[:9]


_PIECES = st.sampled_from(
    [
        *(EXTRA, TEXT, AZURE, WITH_CHOICES, DONE, b"\n", b"\n", b"\r", b"\r\n", b"\n\n", b": c"),
        *(b"event: e", b"data", b"\xff"),
    ]
)


@given(st.lists(_PIECES, max_size=25).map(b"".join), st.data())
def test_cuts_never_change_what_is_removed(stream: bytes, data: st.DataObject) -> None:
    assert _filter(*draw_cuts(data, stream)) == _filter(stream) == _filter(*cut(stream, 1))


def check_recorded(response: RecordedResponse) -> None:
    events = response.body.split(b"\n\n")
    kept = [event for event in events if not (b'"choices":[]' in event and b'"usage":{' in event)]
    assert (len(kept) < len(events)) == ("usage_chunk_empty_choices" in response.flags), response.file
    for chunks in ([response.body], cut(response.body, 7), cut_anywhere(response.body, 5)):
        assert _filter(*chunks) == b"\n\n".join(kept), response.file


@requires_shared
def test_some_recorded_streams_lose_only_the_usage_chunk() -> None:
    for response in load_some_responses():
        if response.is_stream:
            check_recorded(response)


@requires_shared
@pytest.mark.exhaustive
def test_all_recorded_streams_lose_only_the_usage_chunk() -> None:
    for response in load_responses():
        if response.is_stream:
            check_recorded(response)
