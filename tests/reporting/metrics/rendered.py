"""What a gateway renders, and which labels each of its samples has."""

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter

from gateway.admin.merged.collector import MetricsCollector
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.reporting.metrics import definitions, gauges
from gateway.reporting.metrics.collector import BUILD_INFO
from gateway.reporting.metrics.counters import RareCounters
from gateway.reporting.metrics.definitions import CounterDefinition, HistogramDefinition
from gateway.reporting.metrics.gauges import Gauge

_TYPE = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)


def find_families(text: str) -> set[str]:
    """The names of metrics in Prometheus' format, as queries and documents name them: a histogram by its
    name, a counter with `_total`. Without times of creation.
    """
    return {name for name, _ in _TYPE.findall(text) if not name.endswith("_created")}


async def find_families_of_workers() -> set[str]:
    """What the admin port of several workers adds."""
    return find_families((await MetricsCollector(LiveWorkers()).render()).decode())


def list_labels() -> dict[str, frozenset[str]]:
    """The labels by the name of a sample."""
    return dict(_list_labels())


def _list_labels() -> Iterator[tuple[str, frozenset[str]]]:
    for value in vars(definitions).values():
        if isinstance(value, CounterDefinition):
            yield f"{value.name}_total", frozenset(value.labels)
        if isinstance(value, HistogramDefinition):
            yield f"{value.name}_bucket", frozenset({*value.labels, "le"})
            yield f"{value.name}_count", frozenset(value.labels)
            yield f"{value.name}_sum", frozenset(value.labels)
    for gauge in vars(gauges).values():
        if isinstance(gauge, Gauge):
            yield gauge.name, frozenset({gauge.label} if gauge.label else ())
    for counter in vars(RareCounters(CollectorRegistry())).values():
        if isinstance(counter, Counter):
            (metric,) = counter.collect()
            yield f"{metric.name}_total", _RARE_LABELS.get(metric.name, frozenset())
    yield BUILD_INFO, frozenset({"version", "python"})
    yield "gateway_workers", frozenset()
    yield "gateway_workers_replaced_total", frozenset()


# The library does not tell them before the first use.
_RARE_LABELS = {
    "gateway_compactions": frozenset({"kind", "result"}),
    "gateway_overflow_refusals": frozenset({"kind", "retried"}),
    "gateway_limited_requests": frozenset({"tenant", "limit"}),
    "gateway_summaries_over_budget": frozenset({"tenant"}),
}
