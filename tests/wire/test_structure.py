import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BeyondBounds
from gateway.wire.structure import UNBOUNDED, BodyBounds, check_depth, check_values

_JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a,"\\[{}]:é\ud800'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='k,"\\['), inner, max_size=4)
    ),
    max_leaves=20,
)


def make_bounds(**fields: int) -> BodyBounds:
    return BodyBounds(**({"messages": 9, "fields": 9, "values": 9, "depth": 9} | fields))


def count_commas(value: Any) -> int:
    if isinstance(value, list | dict):
        inner = list(value.values()) if isinstance(value, dict) else value
        return max(0, len(inner) - 1) + sum(map(count_commas, inner))
    return 0


def measure_depth(value: Any) -> int:
    if isinstance(value, list | dict):
        inner = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(map(measure_depth, inner), default=0)
    return 0


def is_beyond(check: Any, raw: bytes, bounds: BodyBounds) -> bool:
    try:
        check(raw, bounds)
    except BeyondBounds:
        return True
    return False


@given(_JSON, st.integers(0, 12), st.booleans())
def test_values_are_counted_outside_of_strings(value: Any, most: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    # A bound of many quotes, because an object of strings has four of them for each comma.
    assert is_beyond(check_values, text, make_bounds(values=most + 100)) == (count_commas(value) > most + 100)
    if is_beyond(check_values, text, make_bounds(values=most)):
        assert count_commas(value) > most or text.count(b'"') > 4 * most
    else:
        assert count_commas(value) <= most


@given(_JSON, st.integers(1, 6))
def test_depth_is_that_of_the_innermost_value(value: Any, most: int) -> None:
    text = json.dumps(value).encode()
    assert is_beyond(check_depth, text, make_bounds(depth=most, values=1_000)) == (
        measure_depth(value) > most
    )


def test_only_the_named_part_is_counted() -> None:
    bounds = make_bounds(values=2)
    check_values(b"[1,2,3,4,5]", bounds, 0, 6)
    with pytest.raises(BeyondBounds, match="more than 2 values"):
        check_values(b"[1,2,3,4,5]", bounds, 0, 7)


def test_long_texts_with_many_commas_and_brackets_are_no_structure() -> None:
    text = json.dumps({"content": 'a,b,[{"c":\\' * 5_000}).encode()
    check_values(text, make_bounds())
    check_depth(text, make_bounds())


@pytest.mark.parametrize("raw", [b"", b'"', b'"\\', b"[[[", b"]]]", b'{"a":"b', b"\\\\\\"])
def test_invalid_texts_are_no_error(raw: bytes) -> None:
    check_values(raw, make_bounds())
    check_depth(raw, make_bounds())


@pytest.mark.parametrize("piece", [b"1,", b"{},", b'"",', b'"":1,', b"[],"])
def test_millions_of_values_are_found_out_without_an_object_for_each(piece: bytes) -> None:
    with pytest.raises(BeyondBounds, match="values"):
        check_values(b"[" + piece * 3_000_000 + b"1]", make_bounds(values=200_000))


def test_hundreds_of_thousands_of_brackets_are_found_out() -> None:
    with pytest.raises(BeyondBounds, match="nested more than 100 deep"):
        check_depth(b"[" * 400_000 + b"]" * 400_000, make_bounds(depth=100, values=250_000))
    check_depth(b"[" + b"[]" * 100_000 + b"]", make_bounds(depth=100, values=250_000))


def test_without_bounds_everything_passes() -> None:
    check_values(b"[" + b"1," * 1_000 + b"1]", UNBOUNDED)
    check_depth(b"[" * 2_000, UNBOUNDED)
