"""Metrics of several processes as those of one.

Counters, and the parts of histograms and summaries, are summed, those of ended workers included: what a
worker has counted stays counted. Gauges are summed over the workers that run. Of times of creation the
earliest counts, and what only names a version stays 1. Quantiles of a summary are left out, because they
cannot be merged.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# Name and labels of a sample.
_SampleKey = tuple[str, tuple[tuple[str, str], ...]]

_CUMULATIVE: Final = frozenset({"counter", "histogram", "summary"})
_CREATED: Final = "_created"
_INFO: Final = "_info"
_QUANTILE: Final = "quantile"


class _Family(msgspec.Struct):
    """The sums of all samples of one metric, in the order in which they were rendered."""

    text: str
    kind: str
    values: dict[_SampleKey, float]


class MetricSums:
    """Of the metrics of several processes, by their names."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def copy(self) -> "MetricSums":
        copied = MetricSums()
        for name, family in self._families.items():
            copied._families[name] = msgspec.structs.replace(family, values={**family.values})
        return copied

    def add(self, text: str, *, has_ended: bool = False) -> None:
        """text: in Prometheus' format; nothing is added if it is not. has_ended: only what still counts when
        the worker has ended.
        """
        try:
            metrics = list(text_string_to_metric_families(text))
        except ValueError:
            return
        for metric in metrics:
            if has_ended and metric.type not in _CUMULATIVE and not metric.name.endswith(_CREATED):
                continue
            self.add_metric(metric)

    def add_metric(self, metric: Metric) -> None:
        new = _Family(metric.documentation, metric.type, {})
        values, merge = self._families.setdefault(metric.name, new).values, _choose_merge(metric.name)
        for sample in metric.samples:
            if metric.type == "summary" and _QUANTILE in sample.labels:
                continue
            key = sample.name, tuple(sorted(sample.labels.items()))
            values[key] = merge((values[key], sample.value)) if key in values else sample.value

    def list(self) -> Iterator[Metric]:
        """As a registry's collector gives them, to be rendered."""
        for name, family in self._families.items():
            metric = Metric(name, family.text, family.kind)
            metric.samples = [
                Sample(key, dict(labels), value) for (key, labels), value in family.values.items()
            ]
            yield metric


def _choose_merge(name: str) -> Callable[[Sequence[float]], float]:
    if name.endswith(_CREATED):
        return min
    return max if name.endswith(_INFO) else sum
