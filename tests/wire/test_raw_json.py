import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.wire.raw_json import (
    decode_object,
    encode_json,
    find_place,
    join_array,
    join_halves,
    split_array,
    split_object,
    with_fields,
)

_TEXTS = st.text(st.characters(exclude_categories=()), max_size=6)
_OBJECTS = st.dictionaries(_TEXTS, st.integers() | _TEXTS | st.lists(_TEXTS, max_size=2), max_size=5)


@given(_OBJECTS, st.booleans())
def test_values_that_are_not_edited_keep_their_bytes(value: dict[str, Any], is_indented: bool) -> None:
    raw = json.dumps(value, indent=1 if is_indented else None).encode()
    assert split_object(with_fields(raw, {})) == split_object(raw)
    for key in split_object(raw):
        changed = split_object(with_fields(raw, {key: b"1.10"}))
        assert changed == {**split_object(raw), key: b"1.10"}
        without = split_object(with_fields(raw, {key: None}))
        assert without == {name: field for name, field in split_object(raw).items() if name != key}


def test_numbers_and_escapes_stay_as_they_are_written() -> None:
    raw = rb'{"a": 1.10, "b" : 123456789012345678901234567890, "c":"\u00e9\ud83d"}'
    expected = rb'{"a":1.10,"b":123456789012345678901234567890,"c":"\u00e9\ud83d"}'
    assert with_fields(raw, {"d": b"1"}) == expected


@given(st.lists(st.integers() | _TEXTS, max_size=4))
def test_an_array_is_the_array_of_its_items(value: list[Any]) -> None:
    raw = json.dumps(value, separators=(",", ":")).encode()
    assert join_array(split_array(raw)) == raw


@given(_OBJECTS)
def test_halves_of_surrogate_pairs_are_decoded_and_encoded(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    assert encode_json(decode_object(raw)) == encode_json(json.loads(raw))
    assert json.loads(encode_json(json.loads(raw))) == json.loads(raw)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "a"), ("\ud83d\ude00", "\U0001f600"), ("x\ud83d", "x\ufffd"), ("", "")],
)
def test_halves_that_follow_each_other_are_one_character(text: str, expected: str) -> None:
    assert join_halves(text) == expected


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"7", b'{"a":NaN}', b'{"a":"\\ud83d","b":NaN}', b"\xff", b"[" * 5_000]
)
def test_what_is_no_object_is_not_decoded(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_object(raw)


def test_a_text_of_thousands_of_halves_is_not_decoded() -> None:
    with pytest.raises(Unreadable):
        decode_object(b'{"a":"' + rb"\ud83dx" * 10_001 + b'"}')


def test_a_value_inside_of_others_is_found() -> None:
    raw = b' {"a": [1, {"b" :"x"}] }'
    assert raw[find_place(raw, "a", 1, "b").start : find_place(raw, "a", 1, "b").end] == b'"x"'
    assert find_place(raw).end == len(raw)
    for path in [("b",), ("a", 2), ("a", "b"), ("a", 0, "b")]:
        with pytest.raises(Unreadable):
            find_place(raw, *path)
