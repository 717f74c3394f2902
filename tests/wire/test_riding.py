"""A body that is ridden keeps every byte of its messages and gets one more behind them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.registry import FORMATS
from gateway.wire.riding import RiddenBody, RidingRequest, read_ridden, spare_tokens
from tests.builders.chat import bodies

ASKED = RidingRequest(message="Sum it up.", cap_tokens=1_000, room_tokens=50_000)


def ridden(data: bytes) -> RiddenBody:
    body = read_ridden(data, "messages")
    assert body is not None
    return body


@given(bodies(), st.text(max_size=20))
def test_only_the_end_of_the_array_changes(data: bytes, text: str) -> None:
    message = {"role": "user", "content": text}
    body = ridden(data)
    body.append(message)
    rendered, before = body.render(), json.loads(data)
    assert json.loads(rendered) == before | {"messages": [*before["messages"], message]}
    assert rendered.startswith(data[: body.end] + b",") and rendered.endswith(data[body.end :])


@given(bodies())
def test_what_is_ridden_begins_with_what_was_sent(data: bytes) -> None:
    ridden_body = CHAT.ride(data, ASKED)
    assert ridden_body is not None
    before, after = json.loads(data), json.loads(ridden_body)
    assert after["messages"][:-1] == before["messages"]
    assert ridden_body.startswith(data[: ridden(data).end])
    assert after.keys() - before.keys() <= {"tool_choice"}


def test_a_field_is_replaced_where_it_stands_or_added_at_the_end() -> None:
    body = ridden(b'{"a" : 1.10, "messages":[1], "b":2 }\n')
    body.set("a", "none")
    body.set("c", False)
    assert body.render() == b'{"a" : "none", "messages":[1], "b":2 ,"c":false}\n'


@pytest.mark.parametrize("data", [b"", b"[]", b'{"messages":"hi"}', b'{"messages":[]}', b'{"a":1,"a":2}'])
def test_what_has_no_array_cannot_be_ridden(data: bytes) -> None:
    assert read_ridden(data, "messages") is None


@pytest.mark.parametrize(
    ("limit", "least", "room", "expected"),
    [
        (500, 1_000, 9_000, 1_000),
        (4_000, 1_000, 9_000, 4_000),
        (32_000, 1_000, 9_000, 9_000),
        (None, 1_000, 9_000, None),
    ],
)
def test_a_reply_gets_room_for_the_summary_and_no_more_than_there_is(
    limit: int | None, least: int, room: int, expected: int | None
) -> None:
    fields: dict[str, Any] = {"messages": [1]} | ({"max_tokens": limit} if limit else {})
    body = ridden(json.dumps(fields).encode())
    assert body.limit_reply(("max_completion_tokens", "max_tokens"), least, room)
    assert json.loads(body.render()).get("max_tokens") == expected


def test_without_room_for_the_summary_nothing_is_ridden() -> None:
    assert not ridden(b'{"messages":[1]}').limit_reply(("max_tokens",), 1_000, 999)


def test_thinking_gets_half_of_what_is_left_at_most() -> None:
    assert spare_tokens(RidingRequest(message="", cap_tokens=1_000, room_tokens=3_000)) == 1_000
    assert spare_tokens(ASKED) == 8_192
    assert spare_tokens(RidingRequest(message="", cap_tokens=1_000, room_tokens=500)) == 0


@pytest.mark.parametrize("wire_format", FORMATS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"messages":[1],"input":[1]}', b'{"messages":"a"}'])
def test_what_is_no_request_of_a_format_is_not_ridden(wire_format: Any, data: bytes) -> None:
    assert wire_format.ride(data, ASKED) is None
