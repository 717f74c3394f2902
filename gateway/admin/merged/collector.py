"""Collects the metrics of all workers, each second and when they are asked for.

The last values of a worker are kept, also when it is dead, so no counter goes backwards. A worker that ends
in order sends its last values itself; one that is killed loses what it counted in its last second.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.metrics_sum import (
    NOTHING,
    Families,
    Family,
    SampleKey,
    keep_counted,
    make_metrics,
    parse_metrics,
    sum_metrics,
)
from gateway.admin.merged.worker_client import PATIENCE_SECONDS, WorkerPage, ask
from gateway.reporting.metrics.definitions import RELOADS

_PERIOD_SECONDS: Final = 1.0


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
        self._kept: Families = NOTHING
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
            self._kept = sum_metrics((self._kept, keep_counted(_parse(ended.text))))

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        parts = [_parse(worker.text) for worker in self._workers.values()]
        yield from make_metrics(sum_metrics((self._kept, *parts, self._describe_reloads())))
        yield GaugeMetricFamily("gateway_workers", "Workers that run.", len(self._live.sockets))
        yield CounterMetricFamily(
            "gateway_workers_replaced", "Workers that were started for others that died.", self._live.replaced
        )

    def _describe_reloads(self) -> Families:
        """The supervisor loads the settings for all workers, so only it knows of failures."""
        values: dict[SampleKey, float] = {
            (f"{RELOADS.name}_total", (("result", result),)): count
            for result, count in self._live.reloads.items()
        }
        return {RELOADS.name: Family(RELOADS.name, RELOADS.text, "counter", values)} if values else NOTHING

    async def _refresh(self) -> None:
        for socket in self._live.sockets:
            if socket not in self._workers:
                self._workers[socket] = _WorkerMetrics(socket)
        await asyncio.gather(*(worker.refresh() for worker in self._workers.values()))


def _parse(text: str) -> Families:
    try:
        return parse_metrics(text)
    except ValueError:
        return NOTHING
