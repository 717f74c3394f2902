from dataclasses import replace as with_fields

import pytest
from msgspec.structs import replace

from gateway.conversations.recall_places import RecallPlaces
from gateway.conversations.recognizer import Received
from gateway.core.history.recall import Recall, RecallRound, ReplyMark
from gateway.wire.edits import Edit, apply_edits
from tests.builders.chat import JSON, read, render
from tests.builders.recalls import SPLICING, make_recall

_TALK: list[JSON] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]


def receive(messages: list[JSON]) -> Received:
    received = read(render(messages))
    return replace(received, format=with_fields(received.format, recall=SPLICING))


_RECEIVED = receive(_TALK)
_CONVERSATION = _RECEIVED.conversation
_REPLY = make_recall(_CONVERSATION, 1)
_CALL = b'{"role":"user","content":"CALL"}'
_LAST = make_recall(_CONVERSATION, 3)


def send(recalls: list[Recall], rendered: dict[int, bytes], places: RecallPlaces | None = None) -> bytes:
    body = _RECEIVED.body
    edits, sent = (places or RecallPlaces()).make_edits(_RECEIVED, recalls, rendered)
    slices = {position: body.places[position + 1] for position in sent}
    replaced = [Edit(slices[at].start, slices[at].end, new) for at, new in sent.items()]
    return apply_edits(body.data, [*replaced, *edits])


def test_what_a_reply_called_for_stands_at_that_reply() -> None:
    sent = send([_REPLY, _LAST], {})
    a, b, c, d = (_RECEIVED.raw(position) for position in range(4))
    assert sent.index(a) < sent.index(_CALL + b"," + b)
    assert c[:-1] + b',"_":"RESULTS"}' in sent
    assert _CALL + b"," + d in sent


@pytest.mark.parametrize("recall", [make_recall(_CONVERSATION, 1, reply=ReplyMark(text="other")), None])
def test_nothing_is_inserted_for_a_reply_that_was_not_shown(recall: Recall | None) -> None:
    recall = recall or make_recall(_CONVERSATION, 2)
    assert not RecallPlaces().has_place(_RECEIVED, recall)
    assert send([recall], {}) == _RECEIVED.body.data


def test_what_was_found_stands_before_its_message() -> None:
    rounds = (RecallRound(call='{"x":1}', results=""),)
    recall = make_recall(_CONVERSATION, 3, position=2, kind="found", reply=None, rounds=rounds)
    sent = send([recall], {})
    assert b'{"x":1},' + _RECEIVED.raw(2) in sent
    assert len(sent) == len(_RECEIVED.body.data) + len(b'{"x":1},')


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_message_that_is_sent_shorter_keeps_what_belongs_into_it(at: int) -> None:
    """Whichever message it is, the array is what it is with that message received so."""
    short: JSON = {**_TALK[at + 1], "content": ""}
    rendered = {at: read(render([short])).body.raw(0)}
    expected = read(send([_REPLY, _LAST], {})).body
    shortened = read(send([_REPLY, _LAST], rendered)).body
    received = read(render([*_TALK[: at + 1], short, *_TALK[at + 2 :]]))
    assert len(shortened.places) == len(expected.places)
    for index in range(len(expected.places)):
        raw, was = shortened.raw(index), expected.raw(index)
        if raw != was:
            plain = was.replace(b',"_":"RESULTS"', b"")
            assert plain == _RECEIVED.raw(at)
            assert raw.replace(b',"_":"RESULTS"', b"") == received.raw(at)
            assert (b"RESULTS" in raw) == (b"RESULTS" in was)
            break
    else:
        pytest.fail("no message was shortened")


def test_several_recalls_may_belong_into_one_shortened_message() -> None:
    other = make_recall(_CONVERSATION, 1, rounds=(RecallRound(call="MORE", results="OTHERS"),))
    sent = send([_REPLY, other], {2: b"{}"})
    assert b'{,"_":"RESULTS","_":"OTHERS"}' in sent


def test_what_was_found_is_remembered_for_the_same_bytes_alone() -> None:
    """The array is the same with and without what is remembered, also after the messages have changed."""
    places = RecallPlaces()
    cases: list[dict[int, bytes]] = [{}, {2: b"{}"}, {}, {2: b'{"a":1}'}, {1: b"{}", 2: b"{}"}]
    for rendered in cases:
        assert send([_REPLY, _LAST], rendered, places) == send([_REPLY, _LAST], rendered)
    assert places.has_place(_RECEIVED, _REPLY)
    places.clear()
    assert places.has_place(_RECEIVED, _REPLY)


def test_a_format_without_the_tool_has_no_place_for_what_it_recalled() -> None:
    plain = replace(_RECEIVED, format=with_fields(_RECEIVED.format, recall=None))
    assert not RecallPlaces().has_place(plain, _REPLY)
