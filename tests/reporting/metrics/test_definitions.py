"""What Prometheus and its conventions ask of names, labels and buckets."""

import re

import pytest

from gateway.reporting.metrics import definitions
from gateway.reporting.metrics.definitions import CounterDefinition, HistogramDefinition

_ALL = [
    value
    for value in vars(definitions).values()
    if isinstance(value, CounterDefinition | HistogramDefinition)
]
_HISTOGRAMS = [each for each in _ALL if isinstance(each, HistogramDefinition)]
# Labels whose values clients could choose, or which would have a value for each conversation.
_UNBOUNDED = {"model", "conversation", "session", "path", "key", "user"}


@pytest.mark.parametrize("definition", _ALL, ids=lambda each: each.name)
def test_a_name_is_one_of_ours_and_has_no_ending_of_the_format(
    definition: CounterDefinition | HistogramDefinition,
) -> None:
    assert re.fullmatch(r"gateway_[a-z_]+", definition.name)
    assert not definition.name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_created"))
    assert definition.text.endswith(".")
    assert not _UNBOUNDED & set(definition.labels)


@pytest.mark.parametrize("definition", _HISTOGRAMS, ids=lambda each: each.name)
def test_buckets_grow(definition: HistogramDefinition) -> None:
    assert list(definition.bounds) == sorted(set(definition.bounds))


def test_no_name_stands_twice() -> None:
    names = [each.name for each in _ALL]
    assert len(names) == len(set(names)) > 20
