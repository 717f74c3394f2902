"""Counters and histograms as plain numbers, for what happens at every request.

A step is an addition to a value of a dictionary: no lock, no object for each set of labels. All of it belongs
to one event loop.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

# Values of the labels of a metric, in the order of their names.
LabelValues = tuple[str, ...]

# All labels have few values. If that is ever wrong, the rest is counted together.
_MOST_SERIES: Final = 1_000
_OTHER: Final = "other"


class Counts:
    """A counter for each set of labels."""

    __slots__ = ("_most", "values")

    def __init__(self, most: int = _MOST_SERIES) -> None:
        self._most = most
        self.values: dict[LabelValues, float] = {}

    def add(self, labels: LabelValues, amount: float = 1) -> None:
        values = self.values
        if labels not in values and len(values) >= self._most:
            labels = tuple([_OTHER] * len(labels))
        values[labels] = values.get(labels, 0) + amount


class Distribution:
    """A histogram. bounds: the upper ends of its buckets, in order; one more bucket is without an end."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        # The sum of all values.
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def cumulative(self) -> list[int]:
        """How many values are not larger than each bound; the last number is that of all."""
        return list(accumulate(self._counts))


class Distributions:
    """A histogram for each set of labels."""

    __slots__ = ("_bounds", "_by_labels", "_most")

    def __init__(self, bounds: Sequence[float], most: int = _MOST_SERIES) -> None:
        self._bounds = bounds
        self._most = most
        self._by_labels: dict[LabelValues, Distribution] = {}

    def observe(self, labels: LabelValues, value: float) -> None:
        found = self._by_labels.get(labels)
        if found is None:
            if len(self._by_labels) >= self._most:
                labels = tuple([_OTHER] * len(labels))
            found = self._by_labels.setdefault(labels, Distribution(self._bounds))
        found.observe(value)

    def items(self) -> Iterator[tuple[LabelValues, Distribution]]:
        yield from self._by_labels.items()
