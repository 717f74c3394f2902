"""Splitting a request, with Chat Completions as the wire format."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.wire.formats.chat.request import parse_body, parse_message
from gateway.wire.request import RequestBody, find_added, message_key, parse_added, split_request
from gateway.wire.structure import UNBOUNDED
from tests.builders.chat import JSON, bodies, conversations, frames, render, render_message

_USER: JSON = {"role": "user", "content": "Look."}


def test_two_tenants_never_share_a_key() -> None:
    raw = render_message(_USER)
    assert message_key(raw, b"t") != message_key(raw, b"u")
    assert parse_message(raw, message_key(raw, b"t")).key == message_key(raw, b"t")


def _list_raw_fields(body: RequestBody) -> list[bytes]:
    envelope = body.envelope
    return [
        body.field(envelope.requested_slice),
        body.field(envelope.stream_options_slice),
        body.field(envelope.tools_slice),
    ]


def parse(fields: str) -> RequestBody:
    """Parses the fields before and after the messages; both must give the same."""
    front = parse_body(b"{" + fields.encode() + b',"messages":[{"role":"user"}]}')
    back = parse_body(b'{"messages":[{"role":"user"}],' + fields.encode() + b"}\n")
    assert _list_raw_fields(front) == _list_raw_fields(back)
    return back


def test_the_envelope_holds_the_fields_beside_the_messages() -> None:
    body = parse(
        '"model":"toy","stream":true,"max_tokens":7,"stream_options":{"include_usage":true},"tools":[1]'
    )
    envelope = body.envelope
    assert (envelope.model, envelope.is_streaming, envelope.wants_usage) == ("toy", True, True)
    assert (envelope.requested_tokens, envelope.requested_key) == (7, "max_tokens")
    assert body.field(envelope.requested_slice) == b"7"
    assert body.field(envelope.stream_options_slice) == b'{"include_usage":true}'
    assert body.field(envelope.tools_slice) == b"[1]"
    assert envelope.tools and envelope.tools != parse('"tools":[2]').envelope.tools


@pytest.mark.parametrize(
    ("fields", "tokens", "key"),
    [
        ('"max_tokens":7,"max_completion_tokens":9', 9, "max_completion_tokens"),
        ('"max_tokens":7,"max_completion_tokens":null', 7, "max_tokens"),
        ('"max_tokens":0', None, ""),
        ('"max_tokens":-1', None, ""),
        ('"max_tokens":true', None, ""),
        ('"max_tokens":"7"', None, ""),
        ('"max_tokens":7.5', None, ""),
        ('"":7', None, ""),
        ('"x":7', None, ""),
    ],
)
def test_the_limit_of_the_reply_is_a_positive_whole_number(fields: str, tokens: int | None, key: str) -> None:
    envelope = parse(fields).envelope
    assert (envelope.requested_tokens, envelope.requested_key) == (tokens, key)
    assert (envelope.requested_slice is None) == (tokens is None)


@pytest.mark.parametrize(
    "fields",
    [
        '"stream":1,"stream_options":[],"model":7,"tools":null',
        '"stream":"true","stream_options":null',
        '"stream":null',
    ],
)
def test_fields_of_odd_types_are_ignored(fields: str) -> None:
    envelope = parse(fields).envelope
    found = (envelope.model, envelope.is_streaming, envelope.wants_usage, envelope.tools)
    assert found == ("", False, False, b"")


@pytest.mark.parametrize("value", ["1e400", '"\xff"'])
def test_an_invalid_envelope_field_makes_the_body_unreadable(value: str) -> None:
    with pytest.raises(Unreadable):
        parse_body(b'{"messages":[],"model":' + value.encode("latin-1") + b"}")


@given(bodies())
def test_every_place_holds_its_message(body: bytes) -> None:
    parsed = parse_body(body)
    expected = json.loads(body)["messages"]
    assert [json.loads(parsed.raw(index)) for index in range(len(parsed.places))] == expected
    assert parsed.data[parsed.inside_end : parsed.inside_end + 1] == b"]"


def grow(before: RequestBody, keep: int, data: bytes) -> RequestBody:
    place = find_added(before, keep, data)
    assert place is not None
    return parse_added(before, keep, data, place, UNBOUNDED)


@given(conversations(), frames(), st.data())
def test_a_continuation_equals_the_whole_body_split(
    messages: list[JSON], frame: int, data: st.DataObject
) -> None:
    before = parse_body(render(messages, frame))
    keep = data.draw(st.integers(1, len(messages)))
    grown = render([*messages[:keep], *data.draw(st.lists(st.just(_USER), max_size=2))], frame)
    assert grow(before, keep, grown) == parse_body(grown)


@pytest.mark.parametrize("tail", [b'],"model":"b"}', b"]}", b'],"model":"a" }', b"]"])
def test_a_body_with_another_envelope_is_not_a_continuation(tail: bytes) -> None:
    start = b'{"messages":[{"role":"user"}'
    before = parse_body(start + b'],"model":"a"}')
    assert find_added(before, 1, start + tail) is None


def split_pairs(data: bytes) -> RequestBody:
    """In this format, an item that begins with `+` is part of the message before."""
    return split_request(
        data,
        "items",
        lambda fields: fields.make_common_envelope(),
        lambda before, after: after.startswith(b'"+'),
    )


def test_items_that_belong_together_are_one_message() -> None:
    body = split_pairs(b'{"items":["a", "+b","+c" ,"d"]}')
    assert [body.raw(index) for index in range(len(body.places))] == [b'"a", "+b","+c"', b'"d"']


def test_new_items_of_the_last_message_are_not_a_continuation() -> None:
    before = split_pairs(b'{"items":["a"]}')
    grown = grow(before, 1, b'{"items":["a","b","+c"]}')
    assert [grown.raw(index) for index in range(len(grown.places))] == [b'"a"', b'"b","+c"']
    with pytest.raises(Unreadable):
        grow(before, 1, b'{"items":["a","+b"]}')


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ('"tools":[1]', True),
        ('"tools": [ {"name":"a"} ]', True),
        ('"tools":[ ]', False),
        ('"tools":null', False),
        ('"model":"toy"', False),
    ],
)
def test_an_empty_list_of_tools_has_none(fields: str, expected: bool) -> None:
    assert parse(fields).envelope.has_tools is expected
