"""Metrics of several processes as those of one. Values in, values out.

Counters, and the parts of histograms and summaries, are summed, those of ended workers included: what a
worker has counted stays counted. Gauges are summed over the workers that run. Of times of creation the
earliest counts, and what only names a version stays 1. Quantiles of a summary are left out, because they
cannot be merged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# Name and labels of a sample.
SampleKey = tuple[str, tuple[tuple[str, str], ...]]

_CUMULATIVE: Final = frozenset({"counter", "histogram", "summary"})
_CREATED: Final = "_created"
_INFO: Final = "_info"
_QUANTILE: Final = "quantile"


@dataclass(frozen=True)
class Family:
    """All samples of one metric, in the order in which they were rendered."""

    name: str
    text: str
    kind: str
    values: Mapping[SampleKey, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_cumulative(self) -> bool:
        return self.kind in _CUMULATIVE

    @property
    def is_kept(self) -> bool:
        """Whether it still counts when its worker has ended."""
        return self.is_cumulative or self.name.endswith(_CREATED)


Families = Mapping[str, Family]
NOTHING: Final[Families] = MappingProxyType({})


def parse_metrics(text: str) -> Families:
    """Raises ValueError for a text that is not in Prometheus' format."""
    families = {}
    for metric in text_string_to_metric_families(text):
        values = {
            _name_sample(sample): sample.value for sample in metric.samples if _is_mergeable(metric, sample)
        }
        families[metric.name] = Family(metric.name, metric.documentation, metric.type, values)
    return families


def sum_metrics(parts: Iterable[Families]) -> Families:
    """Every family of every part."""
    summed: dict[str, Family] = {}
    for part in parts:
        for name, family in part.items():
            known = summed.get(name)
            summed[name] = family if known is None else _add(known, family)
    return summed


def keep_counted(families: Families) -> Families:
    """What stays when the worker has ended."""
    return {name: family for name, family in families.items() if family.is_kept}


def make_metrics(families: Families) -> list[Metric]:
    """As a registry's collector gives them, to be rendered."""
    return [_make_metric(family) for family in families.values()]


def _add(first: Family, second: Family) -> Family:
    merge = _choose_merge(first.name)
    values = dict(first.values)
    for key, value in second.values.items():
        values[key] = merge((values[key], value)) if key in values else value
    return Family(first.name, first.text, first.kind, values)


def _choose_merge(name: str) -> Callable[[Sequence[float]], float]:
    if name.endswith(_CREATED):
        return min
    return max if name.endswith(_INFO) else sum


def _make_metric(family: Family) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in family.values.items()]
    return metric


def _name_sample(sample: Sample) -> SampleKey:
    return sample.name, tuple(sorted(sample.labels.items()))


def _is_mergeable(metric: Metric, sample: Sample) -> bool:
    return metric.type != "summary" or _QUANTILE not in sample.labels
