"""Names of stored things in requests and responses."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.wire.formats.responses.names import find_given_names, find_used_names
from gateway.wire.sse import SseEvent
from gateway.wire.structure import UNBOUNDED


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "input": "hi"} | fields).encode()


READABLE = [
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


@pytest.mark.parametrize(("data", "names"), READABLE)
def test_every_name_in_a_request_is_found(data: bytes, names: set[str]) -> None:
    assert find_used_names(data) == names


UNREADABLE = [
    b'{"input":"x","input":[{"id":"msg_1"}]}',
    rb'{"input":"x","input":[{"\u0069d" : "msg_1"}]}',
    b'{"input":[{"type":"image_generation_call","id":"ig_1"}],"a":NaN}',
    b'{"input":"x","previous_response_id":"r","previous_response_id":null}',
    b'{"previous_response_id":"r"}',
    b'{"input":"x","previous_response_id":7}',
    b'{"input":"x","previous_response_id":"r",}',
    rb'{"input":"x","\u0070revious\u005fresponse_id":"r",}',
    '{"input":"x","previous_response_id":"r"}'.encode("utf-16"),
    b'{"input":[{"type":"item_reference","id":"r"}],"a":NaN}',
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_an_unreadable_body_that_may_hold_a_name_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        find_used_names(data)


def test_an_unreadable_body_without_names_is_none_of_our_business() -> None:
    assert find_used_names(rb'{"input":"a \u003c b",}') == set()


@given(st.binary())
def test_nothing_but_unreadable_is_raised(data: bytes) -> None:
    try:
        find_used_names(data)
    except Unreadable:
        pass


def test_an_event_names_the_response_and_its_items() -> None:
    created = {"type": "response.created", "response": {"id": "resp_1", "output": []}}
    added = {"type": "response.output_item.added", "item": {"id": "msg_1", "type": "message"}}
    delta = {"type": "response.output_text.delta", "item_id": "msg_2", "delta": "x"}
    whole = {"id": "resp_2", "object": "response", "output": [{"id": "rs_1"}, {"type": "x"}]}
    names = [
        find_given_names(SseEvent(str(event.get("type", "message")), json.dumps(event).encode()))
        for event in (created, added, delta, whole)
    ]
    assert names == [{"resp_1"}, {"msg_1"}, set(), {"resp_2", "rs_1"}]


@given(st.binary())
def test_an_event_that_cannot_be_read_names_nothing(data: bytes) -> None:
    assert find_given_names(SseEvent("message", b"x" + data)) == set()


def test_a_body_beyond_its_bounds_is_refused_only_if_it_may_hold_a_name() -> None:
    bounds = replace(UNBOUNDED, messages=2)
    many = b'{"input":[{"role":"user"},{"role":"user"},{"role":"user"}]}'
    assert find_used_names(many, bounds) == set()
    with pytest.raises(Unreadable):
        find_used_names(many.replace(b"user", b"item_reference"), bounds)
