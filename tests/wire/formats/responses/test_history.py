import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.formats.responses.history import (
    STORED_HISTORY,
    ItemCollector,
    expand,
    find_names,
    list_items,
)
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import Expanded, NamedHistory, StoredResponse, UsedNames

_SAID = b'{"type":"message","role":"assistant","id":"msg_1","content":[]}'
_ASKED = b'{"role":"user","content":"first"}'


class OneOfEach:
    """Knows one response and one item."""

    def find_response(self, name: str) -> NamedHistory | None:
        return NamedHistory(b"{}", [_ASKED, _SAID]) if name == "resp_1" else None

    def find_item(self, name: str) -> bytes | None:
        return _SAID if name == "msg_1" else None


def expand_all(body: bytes) -> Expanded:
    expanded = expand(body, OneOfEach())
    assert expanded is not None
    return expanded


def list_own(body: bytes) -> list[bytes]:
    own = expand_all(body).own
    assert own is not None
    return list_items(own)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{"model":"m","previous_response_id":"resp_1","input":"go on"}',
            b'{"model":"m","input":[%s,%s,{"role":"user","content":"go on"}]}',
        ),
        (
            b'{"input": [ {"role":"user","content":"x"} ] , "previous_response_id" : "resp_1" }',
            b'{"input": [%s,%s,{"role":"user","content":"x"}]  }',
        ),
        (b'{"previous_response_id":"resp_1" , "input":[]}', b'{ "input":[%s,%s]}'),
    ],
)
def test_names_are_replaced_by_what_they_stand_for(body: bytes, expected: bytes) -> None:
    expanded = expand_all(body)
    assert expanded.data == expected % (_ASKED, _SAID)
    assert expanded.previous == "resp_1"


def test_the_names_in_a_body_are_found_before_they_are_looked_up() -> None:
    named = b'{"previous_response_id":"r","input":[{"type":"item_reference","id":"a"},{"role":"user"}]}'
    assert find_names(named) == UsedNames("r", ("a",))
    assert find_names(b'{"input":"x"}') == UsedNames()
    assert find_names(b'{"conversation":"conv_1","input":"x"}') is None
    assert find_names(b'{"previous_response_id":7,"input":"x"}') is None
    assert find_names(b"[]") is None


def test_the_items_that_the_request_added_are_listed() -> None:
    named = b'{"previous_response_id":"resp_1","input":"go on"}'
    assert list_own(named) == [b'{"role":"user","content":"go on"}']
    body = b'{"input":[{"type":"item_reference","id":"msg_1"},{"role":"user","content":"x"}]}'
    expanded = expand_all(body)
    assert list_own(body) == [_SAID, b'{"role":"user","content":"x"}']
    assert expanded.data == body.replace(b'{"type":"item_reference","id":"msg_1"}', _SAID)
    assert expanded.previous is None


@pytest.mark.parametrize("body", [b'{"input":"x","store":true}', b'{"input":"\\"previous_response_id\\""}'])
def test_a_request_without_names_is_the_same_object(body: bytes) -> None:
    expanded = expand_all(body)
    assert expanded.data is body and expanded.previous is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"previous_response_id":"resp_2","input":"x"}',
        b'{"previous_response_id":7,"input":"x"}',
        b'{"input":[{"type":"item_reference","id":"msg_2"}]}',
        b'{"input":[{"type":"item_reference"}]}',
        b'{"conversation":"conv_1","input":"x"}',
        b'{"conversation":{"id":"conv_1"},"previous_response_id":"resp_1","input":"x"}',
        b'{"previous_response_id":"resp_1"}',
        b'{"previous_response_id":"resp_1","input":"x","input":"y"}',
        b'{"user":"previous_response_id","previous\\u005fresponse_id":"resp_1","input":"x"}',
        b'"previous_response_id"',
    ],
)
def test_a_request_with_an_unknown_name_is_not_expanded(body: bytes) -> None:
    assert expand(body, OneOfEach()) is None


@given(st.binary(max_size=60).map(lambda noise: b'{"previous_response_id":' + noise))
def test_no_body_raises_an_error(body: bytes) -> None:
    assert expand(body, OneOfEach()) is None


def test_only_a_reference_is_a_name() -> None:
    assert STORED_HISTORY.may_be_name(b'{"type": "item_reference", "id": "msg_1"}')
    assert not STORED_HISTORY.may_be_name(b'{"type":"compaction","encrypted_content":"item_reference="}')


def event(kind: str, **fields: object) -> SseEvent:
    return SseEvent(kind, json.dumps({"type": kind, **fields}).encode())


_ITEMS: list[dict[str, object]] = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "message", "id": "msg_1"},
]
_RESPONSE = {"object": "response", "id": "resp_9", "status": "completed", "output": _ITEMS}
_ENCODED = tuple(json.dumps(item).encode() for item in _ITEMS)
_EXPECTED = StoredResponse("resp_9", _ENCODED, ("rs_1", "msg_1"))


def test_items_are_collected_from_a_stream_one_by_one() -> None:
    items = ItemCollector()
    events = [
        event("response.created", response={**_RESPONSE, "status": "in_progress", "output": []}),
        event("response.output_text.delta", delta="response.completed"),
        *(event("response.output_item.done", item=item) for item in _ITEMS),
    ]
    assert [items.feed(event) for event in events] == [None] * 4
    assert items.feed(event("response.completed", response={**_RESPONSE, "output": []})) == _EXPECTED


def test_a_whole_body_and_a_last_event_hold_all_items() -> None:
    assert ItemCollector().feed(SseEvent("", json.dumps(_RESPONSE).encode())) == _EXPECTED
    assert ItemCollector().feed(event("response.completed", response=_RESPONSE)) == _EXPECTED


@pytest.mark.parametrize(
    "one",
    [
        event("response.failed", response={**_RESPONSE, "status": "failed"}),
        SseEvent("", json.dumps({**_RESPONSE, "status": "queued"}).encode()),
        SseEvent("", b'{"error":{}}'),
        SseEvent("", b"<html>"),
        SseEvent("", b"["),
        SseEvent("response.completed", b"response.completed"),
        event("response.output_item.done"),
    ],
)
def test_nothing_is_collected_from_an_incomplete_response(one: SseEvent) -> None:
    assert ItemCollector().feed(one) is None


def test_millions_of_spaces_behind_a_name_are_skipped_at_once() -> None:
    body = b'{"previous_response_id":"resp_1"' + b" " * 5_000_000 + b',"input":"a"}'

    expanded = expand(body, OneOfEach())
    assert expanded is not None
    assert expanded.data == b'{"input":[%s,%s,{"role":"user","content":"a"}]}' % (_ASKED, _SAID)
