import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.reporting.metrics.counts import Counts, Distribution, Distributions

_BOUNDS = (0.1, 1.0, 10.0)


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    distribution = Distribution(_BOUNDS)
    for value in (0.1, 0.1000001, 1.0, 11.0):
        distribution.observe(value)
    assert distribution.cumulative == [1, 3, 3, 4]


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_buckets_count_what_is_not_larger(values: list[float]) -> None:
    distribution = Distribution(_BOUNDS)
    for value in values:
        distribution.observe(value)
    expected = [sum(value <= bound for value in values) for bound in _BOUNDS]
    assert distribution.cumulative == [*expected, len(values)]
    assert distribution.total == pytest.approx(sum(values))


def test_beyond_the_bound_series_are_counted_together() -> None:
    counts, distributions = Counts(most=2), Distributions(_BOUNDS, most=2)
    for number in range(10):
        counts.add((str(number), "x"))
        distributions.observe((str(number),), 1.0)
    assert counts.values == {("0", "x"): 1, ("1", "x"): 1, ("other", "other"): 8}
    assert {labels: each.cumulative[-1] for labels, each in distributions.items()} == {
        ("0",): 1,
        ("1",): 1,
        ("other",): 8,
    }
