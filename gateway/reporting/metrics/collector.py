"""Gives plain numbers to the library that renders them, when they are scraped."""

import platform
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.reporting.metrics.counts import Counts, Distribution, Distributions
from gateway.reporting.metrics.definitions import CounterDefinition, HistogramDefinition
from gateway.reporting.metrics.gauges import Gauge, ReadGauge

BUILD_INFO = "gateway_build_info"


class PlainCollector(Collector):
    """All metrics that are kept as plain numbers, in the order in which they were added."""

    def __init__(self) -> None:
        self._counts: list[tuple[CounterDefinition, Counts]] = []
        self._distributions: list[tuple[HistogramDefinition, Distributions]] = []
        self._gauges: list[tuple[Gauge, ReadGauge]] = []

    def add_counter(self, definition: CounterDefinition) -> Counts:
        counts = Counts()
        if not definition.labels:
            counts.add((), 0)
        self._counts.append((definition, counts))
        return counts

    def add_histogram(self, definition: HistogramDefinition) -> Distributions:
        distributions = Distributions(definition.bounds)
        self._distributions.append((definition, distributions))
        return distributions

    def add_gauge(self, gauge: Gauge, read: ReadGauge) -> None:
        self._gauges.append((gauge, read))

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        for definition, counts in self._counts:
            yield _make_counter(definition, counts)
        for histogram, distributions in self._distributions:
            yield _make_histogram(histogram, distributions)
        for gauge, read in self._gauges:
            yield _make_gauge(gauge, read)
        yield _make_build_info()


def _make_counter(definition: CounterDefinition, counts: Counts) -> Metric:
    family = CounterMetricFamily(definition.name, definition.text, labels=definition.labels)
    for labels, value in counts.values.items():
        family.add_metric(labels, value)
    return family


def _make_histogram(definition: HistogramDefinition, distributions: Distributions) -> Metric:
    family = HistogramMetricFamily(definition.name, definition.text, labels=definition.labels)
    for labels, distribution in distributions.items():
        family.add_metric(labels, _list_buckets(definition, distribution), distribution.total)
    return family


def _list_buckets(definition: HistogramDefinition, distribution: Distribution) -> list[tuple[str, float]]:
    ends = [*map(str, definition.bounds), "+Inf"]
    return [(end, float(count)) for end, count in zip(ends, distribution.cumulative, strict=True)]


def _make_gauge(gauge: Gauge, read: ReadGauge) -> Metric:
    family = GaugeMetricFamily(gauge.name, gauge.text, labels=[gauge.label] if gauge.label else ())
    for label, value in read().items():
        family.add_metric([label] if gauge.label else (), value)
    return family


def _make_build_info() -> Metric:
    family = GaugeMetricFamily(BUILD_INFO, "1, with the version as a label.", labels=("version", "python"))
    family.add_metric((__version__, platform.python_version()), 1)
    return family
