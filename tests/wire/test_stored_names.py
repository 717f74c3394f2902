"""Requests that name what an upstream stores, and responses that give the names."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.body import UNBOUNDED
from gateway.wire.reading import ResponseDocument, ResponseFacts
from gateway.wire.references import Expanded, NamedHistory, StoredHistory, StoredResponse
from gateway.wire.registry import FORMATS
from gateway.wire.sse import SseEvent
from tests.wire.recorded import parse_stream
from tests.wire.shapes import A_REPLY, SHAPES, THINKING

_SAID = b'{"type":"message","role":"assistant","id":"msg_1","content":[]}'
_ASKED = b'{"role":"user","content":"first"}'
_FIRST = b'{"model":"m","system":"S","tools":[{"name":"look"}],"messages":[{"role":"user","content":"a"}]}'


class OneOfEach:
    """Knows one response and one item."""

    def find_response(self, name: str) -> NamedHistory | None:
        return NamedHistory(_FIRST, [_ASKED, _SAID]) if name in ("resp_1", "msg_1") else None

    def find_item(self, name: str) -> bytes | None:
        return _SAID if name == "msg_1" else None


def history(name: str) -> StoredHistory:
    found = FORMATS[name].stored_history
    assert found is not None
    return found


def read(event: SseEvent) -> list[ResponseDocument]:
    """As a response is read."""
    return ResponseFacts().note(event)


def find_used(name: str, data: bytes) -> set[str]:
    return history(name).find_used_paths(data, UNBOUNDED)


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "input": "hi"} | fields).encode()


def threaded(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "b"}]} | fields).encode()


def continued(name: object) -> dict[str, object]:
    return {"type": "continue", "previous_message_id": name}


_GO_ON = threaded(thread=continued("msg_1"))
_NAMED = [
    (body(), set()),
    (body(previous_response_id=None, conversation=None), set()),
    (body(previous_response_id="resp_1"), {"responses/resp_1"}),
    (body(Previous_Response_ID="resp_1"), {"responses/resp_1"}),
    (body(conversation="conv_1"), {"conversations/conv_1"}),
    (body(conversation={"id": "conv_1"}), {"conversations/conv_1"}),
    (
        body(input=[{"type": "item_reference", "id": "msg_1"}, {"id": "msg_2"}]),
        {"responses/msg_1", "responses/msg_2"},
    ),
    (body(input=[{"type": "message", "role": "user", "id": "msg_1", "content": "item_reference"}]), set()),
    (body(input=[{"type": "function_call", "id": "fc_1", "call_id": "c"}, {"role": "user"}]), set()),
    (body(input=[{"type": "image_generation_call", "id": "ig_1"}]), {"responses/ig_1"}),
    (body(input=[{"type": "image_generation_call", "id": "ig_1", "result": "iVBORw0"}]), set()),
    (body(input=[{"type": "reasoning", "id": "rs_1", "summary": [], "content": None}]), {"responses/rs_1"}),
    (body(input=[{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}]), set()),
    (body(input=[{"type": "message", "role": "assistant", "id": "msg_1", "content": []}]), set()),
    (rb'{"input":"x","previous\u005fresponse\u005fid":"r"}', {"responses/r"}),
    (rb'{"input":[{"type":"item\u005freference","id":"r"}]}', {"responses/r"}),
    (rb'{"input":[{"role":"user","content":"\ud83d"}],"previous_response_id":"r"}', {"responses/r"}),
]
_HIDING = [
    *(b'{"input":"x","input":[{"id":"msg_1"}]}', rb'{"input":"x","input":[{"\u0069d" : "msg_1"}]}'),
    b'{"input":[{"type":"image_generation_call","id":"ig_1"}],"a":NaN}',
    b'{"input":"x","previous_response_id":"r","previous_response_id":null}',
    *(b'{"previous_response_id":"r"}', b'{"input":"x","previous_response_id":7}'),
    b'{"input":"x","previous_response_id":"r",}',
    rb'{"input":"x","\u0070revious\u005fresponse_id":"r",}',
    '{"input":"x","previous_response_id":"r"}'.encode("utf-16"),
    b'{"input":[{"type":"item_reference","id":"r"}],"a":NaN}',
]
_NAMED_IN_THREADS: list[tuple[bytes, set[str]]] = [
    (_GO_ON, {"messages/msg_1"}),
    (threaded(), set()),
    (threaded(thread={"type": "create"}), set()),
    (threaded(thread=continued(None)), set()),
    # Only compared with, never read from.
    (threaded(diagnostics={"previous_message_id": "msg_1"}), set()),
    (threaded(messages=[{"role": "user", "content": '"thread": {"previous_message_id": "msg_1"}'}]), set()),
    (b"not json", set()),
    # In another spelling.
    (_GO_ON.replace(b"previous", b"previou\\u0073"), {"messages/msg_1"}),
    (threaded(THREAD=continued("msg_1")), {"messages/msg_1"}),
    (threaded(thread={"Previous_Message_Id": "msg_1"}), {"messages/msg_1"}),
]
_HIDING_IN_THREADS = [
    *(threaded(thread=continued(7)), _GO_ON[:-1], _GO_ON[:-1] + b',"thread":null}'),
    _GO_ON.decode().encode("utf-16"),
]


@pytest.mark.parametrize(
    ("name", "data", "names"),
    [*(("responses", *row) for row in _NAMED), *(("messages", *row) for row in _NAMED_IN_THREADS)],
)
def test_every_name_in_a_request_is_found(name: str, data: bytes, names: set[str]) -> None:
    assert find_used(name, data) == names


@pytest.mark.parametrize(
    ("name", "data"),
    [*(("responses", row) for row in _HIDING), *(("messages", row) for row in _HIDING_IN_THREADS)],
)
def test_a_body_that_may_hide_a_name_is_unreadable(name: str, data: bytes) -> None:
    with pytest.raises(Unreadable):
        find_used(name, data)


def test_an_unreadable_body_without_names_is_none_of_our_business() -> None:
    assert find_used("responses", rb'{"input":"a \u003c b",}') == set()
    bounds = replace(UNBOUNDED, messages=2)
    many = b'{"input":[{"role":"user"},{"role":"user"},{"role":"user"}]}'
    assert history("responses").find_used_paths(many, bounds) == set()
    with pytest.raises(Unreadable):
        history("responses").find_used_paths(many.replace(b"user", b"item_reference"), bounds)


@pytest.mark.parametrize("name", ["messages", "responses"])
@given(data=st.binary(max_size=60))
def test_no_bytes_raise_anything_but_that(name: str, data: bytes) -> None:
    stored = history(name)
    for noise in (data, b'{"previous_response_id":' + data, b'{"thread":' + data, b'{"cache_control"' + data):
        with suppress(Unreadable):
            find_used(name, noise)
        stored.find_names(noise)
        stored.expand(noise, OneOfEach())
        stored.find_given_names(read(SseEvent("message_start", noise)))
        stored.collect().feed(read(SseEvent("message", noise)))


def test_an_event_names_the_response_and_its_items() -> None:
    def given_names(name: str, event: Any) -> set[str]:
        data = json.dumps(event).encode()
        return history(name).find_given_names(read(SseEvent(str(event.get("type", "message")), data)))

    for event, names in (
        ({"type": "response.created", "response": {"id": "resp_1", "output": []}}, {"resp_1"}),
        ({"type": "response.output_item.added", "item": {"id": "msg_1", "type": "message"}}, {"msg_1"}),
        ({"type": "response.output_text.delta", "item_id": "msg_2", "delta": "x"}, set()),
        ({"id": "resp_2", "object": "response", "output": [{"id": "rs_1"}, {}]}, {"resp_2", "rs_1"}),
    ):
        assert given_names("responses", event) == names
    for event, names in (
        ({"type": "message_start", "message": {"id": "msg_1", "content": []}}, {"msg_1"}),
        ({"type": "message", "id": "msg_2", "content": [{"type": "tool_use", "id": "t"}]}, {"msg_2"}),
        ({"type": "content_block_start", "id": "x"}, set()),
    ):
        assert given_names("messages", event) == names


def expand_surely(name: str, data: bytes) -> Expanded:
    expanded = history(name).expand(data, OneOfEach())
    assert expanded is not None
    return expanded


_EXPANDED = [
    (
        b'{"model":"m","previous_response_id":"resp_1","input":"go on"}',
        b'{"model":"m","input":[%s,%s,{"role":"user","content":"go on"}]}',
    ),
    (
        b'{"input": [ {"role":"user","content":"x"} ] , "previous_response_id" : "resp_1" }',
        b'{"input": [%s,%s,{"role":"user","content":"x"}]  }',
    ),
    (b'{"previous_response_id":"resp_1" , "input":[]}', b'{ "input":[%s,%s]}'),
]


@pytest.mark.parametrize(("data", "expected"), _EXPANDED)
def test_names_are_replaced_by_what_they_stand_for(data: bytes, expected: bytes) -> None:
    expanded = expand_surely("responses", data)
    assert (expanded.data, expanded.previous) == (expected % (_ASKED, _SAID), "resp_1")


def test_a_reference_is_replaced_by_its_item_and_the_own_items_are_listed() -> None:
    data = b'{"input":[{"type":"item_reference","id":"msg_1"},{"role":"user","content":"x"}]}'
    expanded = expand_surely("responses", data)
    assert expanded.data == data.replace(b'{"type":"item_reference","id":"msg_1"}', _SAID)
    assert expanded.previous is None
    assert history("responses").list_items(expanded.own) == [_SAID, b'{"role":"user","content":"x"}']
    named = expand_surely("responses", b'{"previous_response_id":"resp_1","input":"go on"}')
    assert history("responses").list_items(named.own) == [b'{"role":"user","content":"go on"}']
    assert history("responses").may_be_name(b'{"type": "item_reference", "id": "msg_1"}')
    assert not history("responses").may_be_name(
        b'{"type":"compaction","encrypted_content":"item_reference="}'
    )


def test_a_thread_that_goes_on_is_written_out_as_the_request_that_begins_one() -> None:
    expanded = expand_surely("messages", threaded(max_tokens=9, thread=continued("msg_1")))
    assert expanded.previous == "msg_1"
    assert json.loads(expanded.data) == {
        **json.loads(_FIRST),
        "max_tokens": 9,
        "messages": [json.loads(_ASKED), json.loads(_SAID), {"role": "user", "content": "b"}],
        "thread": {"type": "create"},
    }
    assert history("messages").list_items(expanded.own) == [b'{"role": "user", "content": "b"}']
    resumed = expand_surely("messages", threaded(messages=[], thread=continued("msg_1")))
    assert json.loads(resumed.data)["messages"] == [json.loads(_ASKED), json.loads(_SAID)]


@pytest.mark.parametrize("data", [b'{"input":"x","store":true}', b'{"input":"\\"previous_response_id\\""}'])
def test_a_request_without_names_is_the_same_object(data: bytes) -> None:
    expanded = expand_surely("responses", data)
    assert expanded.data is data and expanded.previous is None


_UNKNOWN = [
    *(b'{"previous_response_id":"resp_2","input":"x"}', b'{"previous_response_id":7,"input":"x"}'),
    *(b'{"input":[{"type":"item_reference","id":"msg_2"}]}', b'{"input":[{"type":"item_reference"}]}'),
    b'{"conversation":"conv_1","input":"x"}',
    b'{"conversation":{"id":"conv_1"},"previous_response_id":"resp_1","input":"x"}',
    b'{"previous_response_id":"resp_1"}',
    b'{"previous_response_id":"resp_1","input":"x","input":"y"}',
    b'{"user":"previous_response_id","previous\\u005fresponse_id":"resp_1","input":"x"}',
    b'"previous_response_id"',
]
_UNKNOWN_IN_THREADS = [
    threaded(thread=continued("msg_2")),
    threaded(thread=continued(7)),
    # They belong to the thread; the API refuses them, too.
    threaded(thread=continued("msg_1"), system="T"),
    threaded(thread=continued("msg_1"), tools=[]),
    b'{"thread":{"type":"fork","previous_message_id":"msg_1"},"messages":[]}',
    b'{"thread":{"type":"continue"},"messages":[]}',
    b"{",
]


@pytest.mark.parametrize(
    ("name", "data"),
    [*(("responses", row) for row in _UNKNOWN), *(("messages", row) for row in _UNKNOWN_IN_THREADS)],
)
def test_what_is_unknown_or_not_understood_is_not_expanded(name: str, data: bytes) -> None:
    assert history(name).expand(data, OneOfEach()) is None


def test_too_much_is_reported() -> None:
    class TooMuch(OneOfEach):
        def find_response(self, name: str) -> NamedHistory | None:
            raise BeyondBounds("too much")

    for name, data in (("messages", _GO_ON), ("responses", b'{"previous_response_id":"r","input":"x"}')):
        with pytest.raises(BeyondBounds):
            history(name).expand(data, TooMuch())


def test_a_cache_mark_is_for_the_request_that_brings_it() -> None:
    """As the SDKs do when they send an answered message again."""
    mark: dict[str, object] = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "x"}
    marked = {"type": "tool_result", "tool_use_id": "c", "content": [text | mark]} | mark
    # Arguments of a call are not looked into.
    call = {"type": "tool_use", "id": "c", "name": "n", "input": mark}
    for block, kept in (
        (marked, {"type": "tool_result", "tool_use_id": "c", "content": [text]}),
        (text | mark, text),
        (call | mark, call),
    ):
        data = json.dumps({"messages": [{"role": "user", "content": [block]}]}).encode()
        (item,) = history("messages").list_items(data)
        assert json.loads(item)["content"] == [kept]
    for raw in (_SAID, b'{"role":"user","content":"cache_control"}'):
        assert history("messages").list_items(b'{"messages":[%s]}' % raw) == [raw]


def collect(name: str, *events: SseEvent) -> list[StoredResponse]:
    collector = history(name).collect()
    return [found for event in events if (found := collector.feed(read(event))) is not None]


@pytest.mark.parametrize("name", ["messages", "responses"])
def test_a_streamed_response_is_stored_as_the_whole_one(name: str) -> None:
    """Texts, thoughts and calls, however they are cut into pieces."""
    shape = SHAPES[name]
    (streamed,) = collect(name, *parse_stream(shape.stream(A_REPLY)))
    (whole,) = collect(name, SseEvent("", shape.answer(A_REPLY, **THINKING)))
    assert [json.loads(item) for item in streamed.items] == [json.loads(item) for item in whole.items]
    assert (streamed.name, streamed.names) == (whole.name, whole.names)
    assert whole.name and str(A_REPLY.text) in json.dumps(
        [json.loads(item) for item in whole.items], ensure_ascii=False
    )


_CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0}


def block_events(index: int, begun: object, *deltas: object) -> list[dict[str, object]]:
    events: list[dict[str, object]] = [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]
    return events


def stream(*blocks: list[dict[str, object]], name: str = "msg_1") -> list[dict[str, object]]:
    message = {"id": name, "type": "message", "role": "assistant", "content": []}
    return [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        *(event for block in blocks for event in block),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


def read_blocks(events: Sequence[object]) -> Any:
    (response,) = collect("messages", *map(as_event, events))
    assert (response.name, response.names) == ("msg_1", (None,))
    message = json.loads(response.items[0])
    assert message["role"] == "assistant"
    return message["content"]


def as_event(value: object) -> SseEvent:
    return SseEvent("message", json.dumps(value).encode())


def test_a_stream_is_put_together_block_by_block() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    events = stream(
        block_events(
            0,
            thinking,
            {"type": "thinking_delta", "thinking": "Let "},
            {"type": "thinking_delta", "thinking": "me."},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        block_events(
            1,
            {"type": "text", "text": "", "citations": [_CITATION]},
            {"type": "text_delta", "text": "So "},
            {"type": "citations_delta", "citation": _CITATION},
            {"type": "text_delta", "text": "é\u2028"},
            {"type": "citations_delta", "citation": _CITATION},
        ),
        block_events(2, {"type": "redacted_thinking", "data": "x"}),
        block_events(
            3,
            call,
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"path": "a", "n'},
            {"type": "input_json_delta", "partial_json": '": 1.0}'},
        ),
        block_events(4, call | {"id": "toolu_2"}, {"type": "input_json_delta", "partial_json": ""}),
        block_events(
            5,
            {"type": "compaction", "content": None},
            {"type": "compaction_delta", "content": "sum", "encrypted_content": "e"},
        ),
    )
    assert read_blocks(events) == [
        {"type": "thinking", "thinking": "Let me.", "signature": "c2ln"},
        {"type": "text", "text": "So é\u2028", "citations": [_CITATION] * 3},
        {"type": "redacted_thinking", "data": "x"},
        call | {"input": {"path": "a", "n": 1.0}},
        call | {"id": "toolu_2"},
        {"type": "compaction", "content": "sum", "encrypted_content": "e"},
    ]


def test_a_whole_body_is_taken_as_it_is() -> None:
    content = [{"type": "text", "text": "said"}, {"type": "unheard_of", "x": [1.50]}]
    body = {"type": "message", "id": "msg_1", "content": content, "stop_reason": "end_turn"}
    assert read_blocks([body]) == content


def test_a_reply_without_content_adds_no_message() -> None:
    """The API would refuse it in a later request."""
    for events in (stream(), [{"type": "message", "id": "msg_1", "content": []}]):
        assert collect("messages", *map(as_event, events)) == [StoredResponse("msg_1", (), ())]


_UNCERTAIN = [
    stream()[:-1],
    [*stream()[:2], {"type": "error", "error": {}}, {"type": "message_stop"}],
    stream(block_events(0, {"type": "text", "text": ""}, {"type": "unheard_of_delta", "text": "x"})),
    # Cut inside of its arguments.
    stream(
        block_events(
            0, {"type": "tool_use", "input": {}}, {"type": "input_json_delta", "partial_json": '{"a'}
        )
    ),
    stream(block_events(1, {"type": "text", "text": ""})),
    stream(block_events(0, {"type": "text", "text": ""})[:-1]),
    [{"type": "message", "content": []}],
    [{"type": "unheard_of"}, *stream()],
    [{"type": "message", "id": "m", "content": [{"type": "text", "text": "x" * (4 << 20)}]}],
]


@pytest.mark.parametrize("events", _UNCERTAIN)
def test_a_response_that_is_not_put_together_for_certain_is_none(events: list[object]) -> None:
    assert collect("messages", *map(as_event, events)) == []


def event(kind: str, **fields: object) -> SseEvent:
    return SseEvent(kind, json.dumps({"type": kind, **fields}).encode())


_ITEMS: list[dict[str, object]] = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "message", "id": "msg_1"},
]
_RESPONSE = {"object": "response", "id": "resp_9", "status": "completed", "output": _ITEMS}
_ENCODED = tuple(json.dumps(item).encode() for item in _ITEMS)
_EXPECTED = StoredResponse("resp_9", _ENCODED, ("rs_1", "msg_1"))


def test_items_are_collected_one_by_one_or_from_the_last_event() -> None:
    events = [
        event("response.created", response={**_RESPONSE, "status": "in_progress", "output": []}),
        event("response.output_text.delta", delta="response.completed"),
        *(event("response.output_item.done", item=item) for item in _ITEMS),
        event("response.completed", response={**_RESPONSE, "output": []}),
    ]
    assert collect("responses", *events[:-1]) == []
    assert collect("responses", *events) == [_EXPECTED]
    assert collect("responses", event("response.completed", response=_RESPONSE)) == [_EXPECTED]


_INCOMPLETE = [
    event("response.failed", response={**_RESPONSE, "status": "failed"}),
    SseEvent("", json.dumps({**_RESPONSE, "status": "queued"}).encode()),
    *(SseEvent("", b'{"error":{}}'), SseEvent("", b"<html>"), SseEvent("", b"[")),
    *(SseEvent("response.completed", b"response.completed"), event("response.output_item.done")),
]


@pytest.mark.parametrize("one", _INCOMPLETE)
def test_nothing_is_collected_from_an_incomplete_response(one: SseEvent) -> None:
    assert collect("responses", one) == []
