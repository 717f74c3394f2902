"""Collects the metrics of all workers, each second and when they are asked for.

The last values of a worker are kept, also when it is dead, so no counter goes backwards. A worker that ends
in order sends its last values itself; one that is killed loses what it counted in its last second.

Counters, and the parts of histograms and summaries, are summed, those of ended workers included: what a
worker has counted stays counted. Gauges are summed over the workers that run. Of times of creation the
earliest counts, and what only names a version stays 1. Quantiles of a summary are left out, because they
cannot be merged.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.worker_client import PATIENCE_SECONDS, WorkerPage, ask
from gateway.reporting.metrics.definitions import RELOADS

_PERIOD_SECONDS: Final = 1.0

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


class _WorkerMetrics:
    """text: the newest ones. It is parsed when metrics are asked for, or the worker ends."""

    def __init__(self, socket: Path) -> None:
        self.text = ""
        self._socket = socket
        self._has_farewell = False
        # One question at a time, so that an older answer never replaces a newer one.
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._lock:
                answer = await ask(self._socket, "/metrics")
        except TimeoutError:
            return
        if isinstance(answer, WorkerPage) and answer.status == 200 and not self._has_farewell:
            self.text = answer.body.decode()

    def end(self, text: str) -> None:
        self.text, self._has_farewell = text, True


class MetricsCollector(Collector):
    def __init__(self, workers: LiveWorkers, period_seconds: float = _PERIOD_SECONDS) -> None:
        self._live = workers
        self._period_seconds = period_seconds
        self._workers: dict[Path, _WorkerMetrics] = {}
        # Counted by workers that have ended.
        self._kept = MetricSums()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._refresh()
            await asyncio.sleep(self._period_seconds)

    async def render(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format."""
        await self._refresh()
        return generate_latest(self._registry)

    def take_farewell(self, socket: Path, text: str) -> None:
        """The worker is about to end, and these are its last metrics."""
        if socket in self._workers:
            self._workers[socket].end(text)

    def forget(self, socket: Path) -> None:
        """The worker has ended. What it has counted is kept."""
        ended = self._workers.pop(socket, None)
        if ended is not None:
            self._kept.add(ended.text, has_ended=True)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        sums = self._kept.copy()
        for worker in self._workers.values():
            sums.add(worker.text)
        sums.add_metric(self._describe_reloads())
        yield from sums.list()
        yield GaugeMetricFamily("gateway_workers", "Workers that run.", len(self._live.sockets))
        yield CounterMetricFamily(
            "gateway_workers_replaced", "Workers that were started for others that died.", self._live.replaced
        )

    def _describe_reloads(self) -> Metric:
        """The supervisor loads the settings for all workers, so only it knows of failures."""
        family = CounterMetricFamily(RELOADS.name, RELOADS.text, labels=RELOADS.labels)
        for result, count in self._live.reloads.items():
            family.add_metric((result,), count)
        return family

    async def _refresh(self) -> None:
        for socket in self._live.sockets:
            if socket not in self._workers:
                self._workers[socket] = _WorkerMetrics(socket)
        await asyncio.gather(*(worker.refresh() for worker in self._workers.values()))
