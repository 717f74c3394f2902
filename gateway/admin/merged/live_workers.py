"""The workers that run now, their events, and what they and those that have ended have counted.

The supervisor changes the list, and the admin port shows what it says. The last values of a worker are kept,
also when it is dead, so no counter goes backwards. A worker that ends in order sends its last values itself;
one that is killed loses what it counted in its last second.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.admin.merged.worker_client import FAREWELL, PATIENCE_SECONDS, WorkerPage, ask, open_session
from gateway.bounds.background import BackgroundTasks
from gateway.reporting.events import Bus, Relayed

# A worker has just been started, or its process has ended and is still in the list.
_RETRY_SECONDS: Final = 0.05
_NAME: Final = b"event: "
_DATA: Final = b"\ndata: "
_END: Final = b"\n\n"
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
    """Metrics of several processes as those of one.

    Counters, and the parts of histograms and summaries, are summed, those of ended workers included. Gauges
    are summed over the workers that run. Of times of creation the earliest counts, and what only names a
    version stays 1. Quantiles of a summary are left out, because they cannot be merged.
    """

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


class LiveWorkers:
    """Each worker stands for one process, named by the path of its admin socket. A path is never used again.

    sockets: in the order of their start. replaced: how many workers were started for others that had died.
    reloads: of the settings, by their result. bus: of the events of all of them.
    """

    def __init__(self) -> None:
        self.sockets: tuple[Path, ...] = ()
        self.replaced = 0
        self.reloads: Counter[str] = Counter()
        self.bus = Bus()
        # Also of those that have ended, and whose last events are read.
        self._metrics: dict[Path, _WorkerMetrics] = {}
        # Counted by workers that have ended.
        self._kept = MetricSums()
        # Each worker has one listener here, for as long as its process runs.
        self._listeners = BackgroundTasks("listening to a worker")

    def add(self, socket: Path) -> None:
        """The process was started. Its socket may not be there yet."""
        self.sockets = (*self.sockets, socket)
        self._metrics[socket] = _WorkerMetrics(socket)
        self._listeners.spawn(self._follow(socket))

    def remove(self, socket: Path) -> None:
        """The process has ended."""
        self.sockets = tuple(other for other in self.sockets if other != socket)

    def count_replaced(self) -> None:
        self.replaced += 1

    def count_reload(self, has_failed: bool, /) -> None:
        self.reloads["failed" if has_failed else "done"] += 1

    async def refresh(self) -> None:
        """Asks all workers for their metrics."""
        await asyncio.gather(*(metrics.refresh() for metrics in self._metrics.values()))

    def sum_metrics(self) -> MetricSums:
        """As they were when they were asked last."""
        sums = self._kept.copy()
        for metrics in self._metrics.values():
            sums.add(metrics.text)
        return sums

    async def close(self) -> None:
        await self._listeners.close()

    async def _follow(self, socket: Path) -> None:
        """Until the process has ended. Events that it had sent before are read to the last one."""
        while socket in self.sockets:
            await self._listen(socket)
            await asyncio.sleep(_RETRY_SECONDS)
        self._kept.add(self._metrics.pop(socket).text, has_ended=True)

    async def _listen(self, socket: Path) -> None:
        """Until the stream ends, or at once if nothing listens at the socket."""
        try:
            async with open_session(socket) as session, session.get("http://worker/api/events") as stream:
                while block := await stream.content.readuntil(_END):
                    self._take(socket, block)
        except (aiohttp.ClientError, msgspec.MsgspecError, OSError, ValueError):
            return

    def _take(self, socket: Path, block: bytes) -> None:
        """Incomplete at the end of a stream that broke; then it is left out."""
        head, found, data = block.removesuffix(_END).partition(_DATA)
        if not (found and block.endswith(_END) and head.startswith(_NAME)):
            return
        name = head.removeprefix(_NAME).decode()
        if name == FAREWELL:
            self._metrics[socket].end(msgspec.json.decode(data, type=str))
        else:
            self.bus.publish(Relayed(name=name, data=data))
