import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.body import mend_surrogates, place_fields, place_items, split_fields, split_items
from gateway.wire.formats.chat.request import parse_body, parse_message
from gateway.wire.formats.chat.text import parse_entry
from gateway.wire.request import find_added, message_key, parse_added
from gateway.wire.structure import UNBOUNDED
from tests.shared_data import SHARED, requires_shared

_PIECES = st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", '"', "u", "\\ud83d", "\n", "x"])
_TEXTS = st.lists(_PIECES, max_size=12).map("".join) | st.text(st.characters(exclude_categories=()))


@given(_TEXTS)
def test_a_mended_text_keeps_its_length_and_can_be_parsed(text: str) -> None:
    raw = json.dumps(text).encode()
    mended = mend_surrogates(raw)
    assert len(mended) == len(raw)
    # json joins two halves that make a pair.
    assert json.loads(mended) == "".join(map(to_private_use, json.loads(raw)))
    assert mend_surrogates(mended) is mended


def to_private_use(character: str) -> str:
    is_half = "\ud800" <= character <= "\udfff"
    return chr(ord(character) - 0xD800 + 0xE000) if is_half else character


@given(st.text(max_size=40))
def test_a_text_without_halves_is_returned_unchanged(text: str) -> None:
    raw = json.dumps(text).encode()
    assert mend_surrogates(raw) is raw


def test_an_escaped_backslash_does_not_begin_an_escape() -> None:
    raw = rb'"\\ud83d \\\ud83d \ud83d\ude00 \uD83D\u0041"'
    assert mend_surrogates(raw) == rb'"\\ud83d \\\ue03d \ud83d\ude00 \ue03D\u0041"'


@given(_TEXTS, _TEXTS)
def test_a_body_with_halves_is_understood_and_not_changed(first: str, second: str) -> None:
    messages = [{"role": "user", "content": first}]
    before = parse_body(json.dumps({"model": "m", "messages": messages}).encode())
    messages.append({"role": "tool", "tool_call_id": "a", "content": second})
    data = json.dumps({"model": "m", "messages": messages}).encode()
    place = find_added(before, 1, data)
    assert place is not None
    body = parse_added(before, 1, data, place, UNBOUNDED)
    assert body.places == parse_body(data).places
    assert body.data is data
    for index, message in enumerate(messages):
        raw = body.raw(index)
        assert json.loads(raw) == json.loads(json.dumps(message))
        facts = parse_message(raw, message_key(raw, b"t"))
        assert facts.role == message["role"]
        assert len(parse_entry(raw).text) == len(json.loads(mend_surrogates(raw))["content"])


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(max_size=9), _VALUES, max_size=4)
_INDENTS = st.sampled_from([None, 0, 2, "\t"])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """An object with a list of messages somewhere in it."""
    fields = [(key, value) for key, value in draw(_OBJECTS).items() if key != "messages"]
    at = draw(st.integers(0, len(fields)))
    items = draw(st.lists(_VALUES, max_size=4))
    return dict([*fields[:at], ("messages", items), *fields[at:]])


def render(document: object, indent: int | str | None, is_ascii: bool) -> bytes:
    return json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode()


@given(documents(), _INDENTS, st.booleans())
def test_every_place_holds_exactly_its_value(
    document: dict[str, Any], indent: int | str | None, is_ascii: bool
) -> None:
    data = b" \n" + render(document, indent, is_ascii) + b"\r\n"
    fields = split_fields(data, "messages")
    found = {key: json.loads(data[place.start : place.end]) for key, place in fields.places.items()}
    assert found == document
    assert [json.loads(data[item.start : item.end]) for item in fields.items] == document["messages"]
    assert list(fields.places) == list(document)
    assert {key: json.loads(raw) for key, raw in fields.values.items()} == {
        key: value for key, value in document.items() if key != "messages"
    }


@given(documents(), st.data())
def test_a_repeated_key_is_unreadable_in_every_place(document: dict[str, Any], data: st.DataObject) -> None:
    pairs = list(document.items())
    key = data.draw(st.sampled_from(sorted(document)))
    value = data.draw(_VALUES) if key != "messages" else []
    pairs.insert(data.draw(st.integers(0, len(pairs))), (key, value))
    body = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(item)}" for name, item in pairs) + "}"
    with pytest.raises(Unreadable):
        split_fields(body.encode(), "messages")


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"messages":[]}',
        b'{"messages":[1],"a":1,"messages":[1]}',
        b'{"\\u006dessages":[1],"messages":[1]}',
        # The last value is as long as a part of the first, so a careless walk would skip the repetition.
        b'{"a":{"q":0,"b":2},"b":2,"messages":[],"a":123456}',
        b'{"a":{"q":0,"b":2},"messages":[],"b":2,"a":123456}',
        b'{"messages":{"q":0,"b":2},"b":2,"messages":[1234]}',
        b'{"messages":[{},{}],"messages":[{}]}',
    ],
)
def test_a_hidden_repetition_of_a_key_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        split_fields(body, "messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b'"messages"',
        b"{}",
        b'{"messages":null}',
        b'{"messages":{}}',
        b'{"messages":"[]"}',
        b'{"messages":[]',
        b'{"messages":[]}}',
        b'{"messages":[],}',
        b'{"messages":[1,]}',
        b'{"messages":[NaN]}',
        b'{"messages":[],"x":NaN}',
        b'{"messages":[],"x":Infinity}',
        b'{"messages":[],"\xff":1}',
        b'\xef\xbb\xbf{"messages":[]}',
        b'{"messages":' + b"[" * 9_999 + b"]" * 9_999 + b"}",
        b"{'messages':[]}",
    ],
)
def test_anything_but_an_object_with_an_array_of_messages_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        split_fields(body, "messages")


@given(st.lists(_VALUES, min_size=1, max_size=4), st.integers(0, 4), _INDENTS, st.booleans())
def test_a_continuation_has_the_same_places_as_the_whole_body(
    items: list[Any], keep: int, indent: int | str | None, is_ascii: bool
) -> None:
    data = render({"messages": items}, indent, is_ascii)
    whole = split_fields(data, "messages")
    keep = max(1, min(keep, len(items)))
    inside_end = whole.places["messages"].end - 1
    assert split_items(data, whole.items[keep - 1].end, inside_end) == whole.items[keep:]


@pytest.mark.parametrize("inside", [b",", b" , ", b",,1", b",1,", b",1]", b"],[1", b"1", b",NaN", b", 1 2"])
def test_bytes_that_do_not_continue_an_array_are_unreadable(inside: bytes) -> None:
    with pytest.raises(Unreadable):
        split_items(inside, 0, len(inside))


@requires_shared
def test_only_valid_json_is_accepted() -> None:
    cases = json.loads((SHARED / "data" / "jsontestsuite.json").read_text("utf-8"))["cases"]
    for case in cases:
        raw = base64.b64decode(case["b64"])
        try:
            fields = split_fields(b'{"a":1,"messages":[' + raw + b'],"z":2}', "messages")
        except Unreadable:
            assert case["expect"] != "accept", case["name"]
        else:
            assert case["expect"] != "reject" or fields.items == [], case["name"]


@pytest.mark.parametrize("text", ["\\" * 3_000_000, "x" * 3_000_000, "\n" * 3_000_000, "é" * 500_000])
def test_one_half_in_a_long_text_is_mended_without_a_look_at_each_character(text: str) -> None:
    raw = json.dumps(text + "\ud800").encode()
    assert mend_surrogates(raw) == raw[:-7] + rb'\ue000"'


def test_thousands_of_halves_are_not_mended() -> None:
    raw = json.dumps("\ud800x" * 20_000).encode()
    with pytest.raises(BeyondBounds):
        mend_surrogates(raw)
    pairs = json.dumps("\U0001f600x" * 20_000).encode()
    assert mend_surrogates(pairs) is pairs


def test_long_runs_of_separators_and_escapes_are_skipped_at_once() -> None:
    spaces = b" " * 3_000_000
    body = (
        b"{"
        + spaces
        + b'"a\\\\":1,'
        + spaces
        + b'"messages":['
        + spaces
        + b"1"
        + spaces
        + b",2]"
        + spaces
        + b"}"
    )
    fields = split_fields(body, "messages")
    assert [body[item.start : item.end] for item in fields.items] == [b"1", b"2"]
    escaped = b'{"' + b"\\\\" * 3_000_000 + b'":1,"messages":[]}'
    assert len(split_fields(escaped, "messages").places) == 2


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        (b'{"messages":[1,2,3]}', {"messages": 2}),
        (b'{"a":1,"b":2,"messages":[]}', {"fields": 2}),
        (b'{"messages":[[1,2,3]]}', {"values": 1}),
    ],
)
def test_a_body_beyond_its_bounds_is_not_split(body: bytes, bounds: dict[str, int]) -> None:
    split_fields(body, "messages", replace(UNBOUNDED, **{key: value + 1 for key, value in bounds.items()}))
    with pytest.raises(BeyondBounds):
        split_fields(body, "messages", replace(UNBOUNDED, **bounds))


def test_items_count_with_those_before_them() -> None:
    split_items(b"1,2,3", 1, 5, 1, replace(UNBOUNDED, messages=3))
    with pytest.raises(BeyondBounds):
        split_items(b"1,2,3", 1, 5, 1, replace(UNBOUNDED, messages=2))


_NESTED = st.recursive(
    st.none() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), _NESTED, max_size=4), st.sampled_from([None, 1]))
# Python 3.11.2 finds half of a pair behind the whole one.
@example({"": "\U00010000\ud800\ud800"}, None)
def test_the_places_of_an_object_hold_its_values(value: dict[str, Any], indent: int | None) -> None:
    raw = json.dumps(value, indent=indent).encode()
    found = {key: json.loads(raw[place.start : place.end]) for key, place in place_fields(raw).items()}
    assert found == json.loads(raw)


@given(st.lists(_NESTED, max_size=4), st.sampled_from([None, 1]))
def test_the_places_of_an_array_hold_its_items(value: list[Any], indent: int | None) -> None:
    raw = json.dumps(value, indent=indent).encode()
    assert [json.loads(raw[place.start : place.end]) for place in place_items(raw)] == json.loads(raw)


@pytest.mark.parametrize("raw", [b"", b"7", b"[", b"[1", b'"a"', b'{"a":1,"a":2}', b"{'a':1}", b"\xff"])
def test_what_is_neither_has_no_places(raw: bytes) -> None:
    for place in (place_fields, place_items):
        with pytest.raises(Unreadable):
            place(raw)
