"""What must hold for every rewritten Messages array: any conversation, any eligible pivot, any marks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestRefused
from gateway.core.history.pivot import Mark
from gateway.wire.formats.messages.render import (
    render_error,
    render_local_response,
    render_marked,
    render_stream_error,
    render_summary,
    render_summary_request,
)
from gateway.wire.response.reader import Reading, ResponseReader
from gateway.wire.wire_format import SummaryRequest
from tests.builders.chat import (
    PLACEHOLDER,
    RESUME,
    RewrittenTurn,
    batches,
    make_batch,
    make_pivot,
    pivots,
    rewrite,
    rewrite_somehow,
)
from tests.builders.messages import (
    IMAGE,
    JSON,
    MARK,
    bodies,
    conversations,
    frames,
    read,
    render,
    result,
    text_block,
    thought,
    use,
)
from tests.examples import examples
from tests.toy.validity_messages import count_marks, find_violation
from tests.wire.local_responses import TEXTS, make_response, parse_typed_events

# Whole conversations are slow to draw.
few = examples(20, exhaustive=40)
_LONG = "word " * 100
_CLEARED = [text_block(PLACEHOLDER)]


def draw_rewrite(data: st.DataObject) -> RewrittenTurn:
    return rewrite_somehow(data, read(data.draw(bodies(min_turns=1))))


@few
@given(st.data())
def test_every_rewritten_array_is_valid_and_its_roles_alternate(data: st.DataObject) -> None:
    received, _, _, sent = draw_rewrite(data)
    assert find_violation(json.loads(received.body.data)) is None
    assert find_violation(json.loads(sent)) is None
    roles = [message["role"] for message in json.loads(sent)["messages"]]
    assert all(role == ("user", "assistant")[at % 2] for at, role in enumerate(roles))


@few
@given(st.data())
def test_kept_messages_are_byte_identical_and_in_order(data: st.DataObject) -> None:
    received, pivot, marks, sent = draw_rewrite(data)
    after = read(sent)
    marked = {mark.position for batch in marks for mark in batch.marks}
    start, end = pivot.covers if pivot else 0, len(received.conversation.messages)
    shift = len(after.conversation.messages) - end
    for position in range(start, end):
        if position not in marked:
            assert after.raw(position + shift) == received.raw(position)
    tail = received.body.data[received.body.places[-1].end :]
    assert sent.startswith(received.body.data[: received.body.places[0].start]) and sent.endswith(tail)


@few
@given(st.data())
def test_a_shortened_message_keeps_everything_but_the_contents_of_its_results(data: st.DataObject) -> None:
    received, pivot, _, sent = draw_rewrite(data)
    start = pivot.covers if pivot else 0
    before = [json.loads(received.raw(at)) for at in range(start, len(received.conversation.messages))]
    after = json.loads(sent)["messages"][-len(before) :]
    for old, new in zip(before, after, strict=True):
        assert new.keys() == old.keys() and type(new["content"]) is type(old["content"])
        if not isinstance(old["content"], list) or not any(map(_is_result, old["content"])):
            continue
        for was, block in zip(old["content"], new["content"], strict=True):
            if _is_result(was):
                assert {**block, "content": 0} == {**was, "content": 0}
                assert type(block["content"]) is type(was["content"])
            else:
                assert block == was


def _is_result(block: JSON) -> bool:
    return bool(block["type"] == "tool_result")


@few
@given(st.data())
def test_marks_never_add_a_cache_mark_and_take_none_from_a_kept_block(data: st.DataObject) -> None:
    received, _, _, sent = draw_rewrite(data)
    before, after = json.loads(received.body.data), json.loads(sent)
    assert count_marks(after["messages"]) <= count_marks(before["messages"])
    assert count_marks(after["messages"][-1]) == count_marks(before["messages"][-1])


@few
@given(bodies(), st.data())
def test_without_marks_nothing_changes_and_marking_twice_is_marking_once(
    body: bytes, data: st.DataObject
) -> None:
    received = read(body)
    assert rewrite(received, None, ()) is received.body.data
    results = [at for at, message in enumerate(received.conversation.messages) if message.results]
    marks = (make_batch(received.conversation, [Mark(at) for at in results]),)
    again = read(once := rewrite(received, None, marks))
    assert rewrite(again, None, (make_batch(again.conversation, marks[0].marks),)) == once


@few
@given(conversations(min_turns=2), frames(), st.data())
def test_the_rewrite_of_a_longer_history_begins_with_the_rewrite_of_the_shorter_one(
    messages: list[JSON], frame: int, data: st.DataObject
) -> None:
    length = data.draw(st.sampled_from(range(1, len(messages) + 1, 2)))
    shorter, whole = read(render(messages[:length], frame)), read(render(messages, frame))
    pivot = data.draw(pivots(shorter.conversation))
    marks = data.draw(batches(shorter.conversation))
    first = read(rewrite(shorter, pivot, marks))
    second = read(rewrite(whole, pivot, marks))
    raws = [[sent.body.raw(at) for at in range(len(sent.body.places))] for sent in (first, second)]
    assert raws[1][: len(raws[0])] == raws[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (result(content=_LONG), result(content=PLACEHOLDER)),
        (result(content=[text_block(_LONG), IMAGE]), result(content=_CLEARED)),
        (result(content=[IMAGE]), result(content=_CLEARED)),
        (result(content=_LONG, is_error=True, **MARK), result(content=PLACEHOLDER, is_error=True, **MARK)),
        (result(content=[text_block(_LONG, **MARK)]), result(content=_CLEARED)),
        (result(content="ok"), result(content="ok")),
        (result(content=[text_block("ok")]), result(content=[text_block("ok")])),
        (result(content=""), result(content="")),
        (result(content=[]), result(content=[])),
        ({"type": "tool_result", "tool_use_id": "a"}, {"type": "tool_result", "tool_use_id": "a"}),
        (text_block(_LONG), text_block(_LONG)),
        (IMAGE, IMAGE),
    ],
)
def test_clearing_touches_results_only_and_never_leaves_an_empty_text(old: JSON, new: JSON) -> None:
    other = result("b", _LONG)
    sent = json.loads(_marked({"role": "user", "content": [other, old]}, Mark(0)))
    assert sent == {"role": "user", "content": [result("b", PLACEHOLDER), new]}


def test_cutting_leaves_a_head_and_a_tail_of_each_long_result() -> None:
    content = [result("a", _LONG), result("b", [text_block(_LONG), IMAGE]), result("c"), text_block(_LONG)]
    sent = json.loads(_marked({"role": "user", "content": content}, Mark(0, 64)))["content"]
    assert sent[0]["content"] == sent[1]["content"][0]["text"] != _LONG
    assert "characters cut" in sent[0]["content"]
    assert [sent[1]["content"][1], sent[2:]] == [IMAGE, content[2:]]


@pytest.mark.parametrize("content", [_LONG, [text_block(_LONG), IMAGE]])
def test_a_users_text_is_cut_if_there_are_no_results(content: Any) -> None:
    sent = json.loads(_marked({"role": "user", "content": content}, Mark(0, 64)))["content"]
    assert type(sent) is type(content)
    assert "characters cut" in json.dumps(sent)
    assert json.dumps(sent).count("AAAA") == json.dumps(content).count("AAAA")


@pytest.mark.parametrize(
    "content", [_LONG, [{"type": "tool_result_of_tomorrow", "tool_use_id": "a", "content": _LONG}, IMAGE]]
)
def test_nothing_is_cleared_without_a_result_of_a_known_type(content: Any) -> None:
    raw = json.dumps({"role": "user", "content": content}).encode()
    assert render_marked(raw, Mark(0), PLACEHOLDER) is raw


def test_an_empty_placeholder_leaves_an_empty_list() -> None:
    raw = json.dumps({"role": "user", "content": [result(content=[text_block(_LONG)])]}).encode()
    assert json.loads(render_marked(raw, Mark(0), ""))["content"] == [result(content=[])]


def test_kept_numbers_and_unknown_fields_keep_their_bytes() -> None:
    kept = b'{"type":"text","text":"a","x":1.10}'
    block = b'{"type":"tool_result","tool_use_id":"a","content":"%s","n":1e400}' % _LONG.encode()
    sent = render_marked(
        b'{"role":"user","content":[%s, %s],"y":10000000000000000001}' % (block, kept), Mark(0), "-"
    )
    assert kept in sent
    assert b'"n":1e400' in sent and b'"y":10000000000000000001' in sent


def test_a_summary_ends_without_space_and_is_never_empty() -> None:
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    conversation = read(render(talk)).conversation
    for summary, text in (("We looked. \n", "We looked."), ("\t", "(nothing)")):
        pivot = make_pivot(conversation, 2, summary=summary)
        assert json.loads(b"[%s]" % render_summary(pivot, "user")) == [{"role": "assistant", "content": text}]
        both = json.loads(b"[%s]" % render_summary(pivot, "assistant"))
        assert both[1:] == [{"role": "user", "content": RESUME}]


def test_thinking_of_the_kept_turn_stays_the_same() -> None:
    talk: list[JSON] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thought("old"), use("1")]},
        {"role": "user", "content": [result("1")]},
        {"role": "assistant", "content": [thought("new"), use("2")]},
        {"role": "user", "content": [result("2")]},
    ]
    received = read(render(talk))
    sent = rewrite(received, make_pivot(received.conversation, 3), ())
    assert json.loads(sent)["messages"][-2:] == talk[-2:]
    assert b'"old"' not in sent


def _marked(message: JSON, mark: Mark) -> bytes:
    return render_marked(json.dumps(message).encode(), mark, PLACEHOLDER)


def make_request(system: str, identity_blocks: tuple[str, ...] = ()) -> SummaryRequest:
    parts = ("What did we do?", "Sum up.")
    return SummaryRequest(
        model="m",
        system=system,
        parts=parts,
        output_key="max_tokens",
        cap=700,
        room=9_000,
        identity_blocks=identity_blocks,
    )


def test_a_summary_request_has_one_user_message_and_no_tools_or_thinking() -> None:
    sent = json.loads(render_summary_request(make_request("You sum up.")))
    assert sent == {
        "model": "m",
        "system": [{"type": "text", "text": "You sum up."}],
        "messages": [{"role": "user", "content": "What did we do?\n\nSum up."}],
        "max_tokens": 700,
        "stream": True,
    }
    assert find_violation(sent) is None


def test_a_blank_system_prompt_is_left_out() -> None:
    sent = json.loads(render_summary_request(make_request(" ")))
    assert "system" not in sent and find_violation(sent) is None


def test_the_clients_identity_blocks_come_first() -> None:
    sent = json.loads(render_summary_request(make_request("You sum up.", ("I am it.",))))
    assert [block["text"] for block in sent["system"]] == ["I am it.", "You sum up."]


def read_stream(text: str) -> list[dict[str, Any]]:
    return parse_typed_events(render_local_response(make_response(text, is_streamed=True)))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_local_response_is_complete_and_its_usage_is_empty(is_streamed: bool) -> None:
    reader = ResponseReader("text/event-stream" if is_streamed else "application/json", "")
    reader.feed(render_local_response(make_response("Done.", is_streamed=is_streamed)))
    assert reader.finish() == Reading(None, "end_turn", has_error=False, is_complete=True)


@pytest.mark.parametrize("text", TEXTS)
def test_a_local_response_is_a_message_with_one_text(text: str) -> None:
    assert json.loads(render_local_response(make_response(text, is_streamed=False))) == {
        "id": "msg_abc",
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


@pytest.mark.parametrize("text", TEXTS)
def test_a_streamed_local_response_begins_empty_gets_one_text_and_ends(text: str) -> None:
    start, opened, delta, closed, ending, stop = parse_typed_events(
        render_local_response(make_response(text, is_streamed=True))
    )
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert start["message"]["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert opened == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert delta["delta"] == {"type": "text_delta", "text": text}
    assert (closed["type"], stop) == ("content_block_stop", {"type": "message_stop"})
    assert ending["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ending["usage"] == {"output_tokens": 0}


_OWN = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}


def read_event(event: bytes) -> object:
    assert event.startswith(b"event: error\ndata: ") and event.endswith(b"\n\n")
    return json.loads(event.removeprefix(b"event: error\ndata: "))


@pytest.mark.parametrize(
    "body", [json.dumps(_OWN).encode(), f"event: error\ndata: {json.dumps(_OWN)}\n\n".encode()]
)
def test_the_upstreams_own_error_becomes_the_event(body: bytes) -> None:
    assert read_event(render_stream_error(body, 529)) == _OWN


def test_an_error_object_without_a_type_gets_the_type_that_clients_need() -> None:
    assert read_event(render_stream_error(b'{"error":{"message":"no"}}', 400)) == {
        "type": "error",
        "error": {"message": "no"},
    }


@pytest.mark.parametrize(
    ("status", "kind"), [(502, "api_error"), (503, "overloaded_error"), (418, "api_error")]
)
def test_without_an_error_object_the_event_names_the_status(status: int, kind: str) -> None:
    message = f"upstream answered {status} after the stream had begun"
    expected = {"type": "error", "error": {"type": kind, "message": message}}
    assert read_event(render_stream_error(b"<html>", status)) == expected


def test_our_own_errors_have_the_types_that_clients_know() -> None:
    found = json.loads(render_error(RequestRefused(413, "Too large.")))
    assert found == {"type": "error", "error": {"type": "request_too_large", "message": "Too large."}}


def test_an_error_of_the_api_itself_has_its_code_for_programs() -> None:
    lost = json.loads(render_error(RequestRefused(404, "Lost.", code="thread_not_found")))["error"]
    details = {"error_code": "thread_not_found"}
    assert lost == {"type": "not_found_error", "message": "Lost.", "details": details}
    assert (
        "details"
        not in json.loads(render_error(RequestRefused(403, "No.", code="path_not_allowed")))["error"]
    )
