from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from gateway.activity.record import Totals

_FIELDS = [name for name in Totals.__struct_fields__ if not name.endswith("_usd")]


def totals() -> st.SearchStrategy[Totals]:
    counts = {name: st.integers(0, 10**12) for name in _FIELDS}
    money = st.none() | st.integers(0, 1_000).map(float)
    return st.builds(Totals, **counts, spent_usd=money, saved_usd=money, summary_usd=money)


@given(totals(), totals())
def test_totals_add_field_by_field(left: Totals, right: Totals) -> None:
    before = asdict(left)
    left.add(right)
    for name, value in asdict(right).items():
        earlier = before[name]
        expected = None if earlier is None and value is None else (earlier or 0) + (value or 0)
        assert asdict(left)[name] == expected
