"""What a gateway counts, by what happens in it, as plain numbers.

`note_request` and `note_end` are called for every request: a step is an addition to a value of a dictionary,
without a lock, and without an object for each set of labels. All of it belongs to one event loop.
"""

import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.activity.counting import NotedRequest, SummaryMoney
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionRequest
from gateway.core.sizing.usage import Usage
from gateway.http.answered import Answered
from gateway.reporting.metrics import definitions
from gateway.reporting.metrics.definitions import Counter, Gauge, Histogram

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
BUILD_INFO: Final = "gateway_build_info"

# Values of the labels of a metric, in the order of their names.
LabelValues = tuple[str, ...]
# Values by the value of the label; by an empty text without a label.
ReadGauge = Callable[[], Mapping[str, float]]

# All labels have few values. If that is ever wrong, the rest is counted together.
_MOST_SERIES: Final = 1_000
_OTHER: Final = "other"
# A reason may hold the status that an upstream chose. Each value of a label is kept for good.
_MAX_RESULTS: Final = 64
_DONE: Final = "done"
# By the first digit of a status.
_STATUS_CLASSES: Final = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")

# Who searches originals: a client over MCP, the gateway for a model's call of its tool or by itself, an
# operator.
SearchWay = Literal["mcp", "auto", "admin"]
SearchResult = Literal["found", "nothing", "failed"]
# How a summarizer gets a conversation: quoted in a request of its own, or as it was sent last, with one more
# message, so that it rides the provider's cache.
SummaryWay = Literal["quoted", "riding"]


class _Distribution:
    """How many values are in each bucket of a histogram, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0


class Metrics(Collector):
    """Each gateway has its own registry, because several may run in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counts: dict[Counter, dict[LabelValues, float]] = {
            each: {} if each.labels else {(): 0.0} for each in definitions.COUNTERS
        }
        now = time.time()
        self._created: dict[Counter, dict[LabelValues, float]] = {
            each: {} if each.labels else {(): now} for each in definitions.COUNTERS if each.has_created
        }
        self._distributions: dict[Histogram, dict[LabelValues, _Distribution]] = {
            each: {} for each in definitions.HISTOGRAMS
        }
        self._gauges: dict[Gauge, ReadGauge] = {}
        # Of compactions.
        self._results: set[str] = set()
        self._registry.register(self)

    def add(self, counter: Counter, labels: LabelValues = (), amount: float = 1) -> None:
        values = self._counts[counter]
        if labels not in values:
            if len(values) >= _MOST_SERIES:
                labels = (_OTHER,) * len(labels)
            if counter.has_created:
                self._created[counter].setdefault(labels, time.time())
        values[labels] = values.get(labels, 0) + amount

    def observe(self, histogram: Histogram, value: float, labels: LabelValues = ()) -> None:
        known = self._distributions[histogram]
        found = known.get(labels)
        if found is None:
            if len(known) >= _MOST_SERIES:
                labels = (_OTHER,) * len(labels)
            found = known.setdefault(labels, _Distribution(histogram.bounds))
        found.counts[bisect_left(histogram.bounds, value)] += 1
        found.total += value

    def watch(self, gauge: Gauge, read: ReadGauge) -> None:
        """read: called at each scrape."""
        self._gauges[gauge] = read

    # Requests

    def note_request(self, tenant: str, plan: Plan, usage: Usage | None, noted: NotedRequest) -> None:
        """An answered request. tenant: its name in the settings, or empty."""
        received, sent = plan.received, plan.sent
        self.add(definitions.TOKENS, ("received", tenant), received)
        self.add(definitions.TOKENS, ("sent", tenant), sent)
        if received - plan.cut > sent:
            self.add(definitions.TOKENS, ("saved", tenant), received - plan.cut - sent)
        if usage is None:
            self.add(definitions.UNREPORTED)
        else:
            self._note_usage(definitions.USAGE_TOKENS, usage, tenant)
            self._note_usage(definitions.PRICED_TOKENS, usage, noted.price)
            if usage.prompt_tokens > 0:
                self.observe(definitions.ESTIMATE_RATIO, sent / usage.prompt_tokens)
        self._note_money(tenant, noted)
        if noted.brings_into_use:
            self.add(definitions.SUMMARIES_USED)
        if noted.change is not None:
            self.add(definitions.CACHE_BREAKS, (noted.change,))

    def _note_usage(self, counter: Counter, usage: Usage, label: str) -> None:
        self.add(counter, ("prompt", label), usage.prompt_tokens)
        self.add(counter, ("output", label), usage.output_tokens)
        if usage.cached_tokens:
            self.add(counter, ("cached", label), usage.cached_tokens)
        if usage.cache_write_tokens:
            self.add(counter, ("written", label), usage.cache_write_tokens)

    def _note_money(self, tenant: str, noted: NotedRequest) -> None:
        """By tenant and by the price of the model.

        A price has the name that it stands under: a pattern of the settings file, or a model of the bundled
        table. So clients choose no label, and all models without a price share the empty one.
        """
        if noted.spent_usd:
            self.add(definitions.SPENT_USD, (tenant,), noted.spent_usd)
            self.add(definitions.PRICED_USD, ("requests", noted.price), noted.spent_usd)
        if noted.saved_usd is not None and noted.saved_usd > 0:
            self.add(definitions.SAVED_USD, (tenant,), noted.saved_usd)
        if noted.without_usd is not None:
            self.add(definitions.COMPARED_USD, ("without", noted.price, tenant), noted.without_usd)
            self.add(definitions.COMPARED_USD, ("with", noted.price, tenant), noted.with_usd or 0.0)
        if noted.has_died:
            self.add(definitions.CONVERSATIONS_DIED, (tenant,))

    def note_end(self, answered: Answered) -> None:
        """A request is done."""
        kind = _STATUS_CLASSES[answered.status // 100] if 0 <= answered.status < 600 else "none"
        self.add(definitions.REQUESTS, (answered.format, answered.plan_name, kind))
        self.observe(definitions.OVERHEAD_SECONDS, answered.own_seconds)
        if answered.upstream is not None:
            label = (answered.upstream,)
            self.observe(definitions.UPSTREAM_SECONDS, answered.upstream_seconds, label)
            if answered.first_byte_seconds is not None:
                self.observe(definitions.UPSTREAM_FIRST_BYTE_SECONDS, answered.first_byte_seconds, label)
        if answered.waited_seconds:
            self.observe(definitions.COMPACTION_WAIT_SECONDS, answered.waited_seconds)

    # Summaries

    def count_compaction(self, request: CompactionRequest, failure: str | None) -> None:
        """A summary or a digest. failure: one of a few short reasons, or None."""
        result = failure or _DONE
        if result not in self._results and len(self._results) >= _MAX_RESULTS:
            result = _OTHER
        self._results.add(result)
        self.add(definitions.COMPACTIONS, (request.kind, result))
        self.add(definitions.COMPACTIONS_BY_TRIGGER, (request.trigger, request.reason, result))

    def note_summary_call(
        self, result: str, usage: Usage | None, seconds: float, way: SummaryWay = "quoted"
    ) -> None:
        """result: done, failed or cancelled."""
        self.add(definitions.SUMMARY_CALLS, (result, way))
        self.observe(definitions.SUMMARY_CALL_SECONDS, seconds)
        if usage is None:
            return
        self.add(definitions.SUMMARY_TOKENS, ("prompt", way), usage.prompt_tokens)
        self.add(definitions.SUMMARY_TOKENS, ("output", way), usage.output_tokens)
        if usage.cached_tokens:
            self.add(definitions.SUMMARY_TOKENS, ("cached", way), usage.cached_tokens)

    def note_summary_money(self, tenant: str, money: SummaryMoney) -> None:
        """tenant: its name in the settings, or empty."""
        ways = (
            ("quoted", money.quoted_price, money.quoted_usd),
            ("riding", money.riding_price, money.riding_usd),
        )
        for way, price, usd in ways:
            if usd:
                self.add(definitions.SUMMARY_USD, (way,), usd)
                self.add(definitions.PRICED_USD, ("summaries", price), usd)
                if money.is_compared:
                    self.add(definitions.COMPARED_USD, ("with", price, tenant), usd)

    # The rest

    def sum(self, counter: Counter, **labels: str) -> float:
        """Of everything that was counted with these labels."""
        named = (
            (dict(zip(counter.labels, each, strict=True)), value)
            for each, value in self._counts[counter].items()
        )
        return sum(value for names, value in named if labels.items() <= names.items())

    def count_search(self, way: SearchWay, result: SearchResult) -> None:
        self.add(definitions.RECALL_SEARCHES, (way, result))

    def count_limited_request(self, tenant: str, limit: str) -> None:
        """tenant: its name in the settings."""
        self.add(definitions.LIMITED_REQUESTS, (tenant, limit))

    def note_store(self, operation: str, seconds: float, has_failed: bool) -> None:
        """As `TimedStore` notes it."""
        self.observe(definitions.STORE_SECONDS, seconds, (operation,))
        if has_failed:
            self.add(definitions.STORE_ERRORS, (operation,))

    def count_reload(self, has_failed: bool, /) -> None:
        self.add(definitions.RELOADS, ("failed" if has_failed else _DONE,))

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        for counter, values in self._counts.items():
            family = CounterMetricFamily(counter.name, counter.text, labels=counter.labels)
            created = self._created.get(counter, {})
            for labels, value in values.items():
                family.add_metric(labels, value, created=created.get(labels))
            yield family
        for histogram, known in self._distributions.items():
            yield _make_histogram(histogram, known)
        for gauge, read in self._gauges.items():
            yield _make_gauge(gauge, read())
        build = GaugeMetricFamily(BUILD_INFO, "1, with the version as a label.", labels=("version", "python"))
        build.add_metric((__version__, platform.python_version()), 1)
        yield build


def _make_histogram(histogram: Histogram, known: Mapping[LabelValues, _Distribution]) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.text, labels=histogram.labels)
    ends = [*map(str, histogram.bounds), "+Inf"]
    for labels, found in known.items():
        buckets = zip(ends, map(float, accumulate(found.counts)), strict=True)
        family.add_metric(labels, list(buckets), found.total)
    return family


def _make_gauge(gauge: Gauge, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(gauge.name, gauge.text, labels=[gauge.label] if gauge.label else ())
    for label, value in values.items():
        family.add_metric([label] if gauge.label else (), value)
    return family
