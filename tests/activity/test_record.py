import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from gateway.activity.record import Totals

_FIELDS = [name for name in Totals.__struct_fields__ if not name.endswith("_usd")]


def totals() -> st.SearchStrategy[Totals]:
    counts = {name: st.integers(0, 10**12) for name in _FIELDS}
    money = st.none() | st.integers(0, 1_000).map(float)
    sums = {name: money for name in Totals.__struct_fields__ if name.endswith("_usd")}
    return st.builds(Totals, **counts, **sums)


@given(totals(), totals())
def test_totals_add_field_by_field(left: Totals, right: Totals) -> None:
    before = asdict(left)
    left.add(right)
    for name, value in asdict(right).items():
        earlier = before[name]
        expected = None if earlier is None and value is None else (earlier or 0) + (value or 0)
        assert asdict(left)[name] == expected


@given(totals(), totals())
def test_what_was_added_is_what_came_since(left: Totals, right: Totals) -> None:
    both = replace(left)
    both.add(right)
    since = both.minus(left)
    for name, value in asdict(right).items():
        assert (getattr(since, name) or 0) == pytest.approx(value or 0)
