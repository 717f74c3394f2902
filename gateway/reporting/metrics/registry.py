"""What a gateway counts, by what happens in it.

`note_request` and `note_end` are called for every request: they only add to plain numbers.
"""

import platform
from collections.abc import Callable, Iterator
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.activity.counting import NotedRequest, SummaryMoney
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionRequest
from gateway.core.sizing.usage import Usage
from gateway.http.answered import Answered
from gateway.reporting.metrics import definitions, gauges
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


class MoneyCounts:
    """What requests and summaries cost, by tenant and by the price of the model.

    A price has the name that it stands under: a pattern of the settings file, or a model of the bundled
    table. So clients choose no label, and all models without a price share the empty one.
    """

    def __init__(self, add_counter: Callable[[CounterDefinition], Counts]) -> None:
        self._spent = add_counter(definitions.SPENT_USD)
        self._saved = add_counter(definitions.SAVED_USD)
        self._compared = add_counter(definitions.COMPARED_USD)
        self._died = add_counter(definitions.CONVERSATIONS_DIED)
        self._summaries = add_counter(definitions.SUMMARY_USD)
        self._priced_tokens = add_counter(definitions.PRICED_TOKENS)
        self._priced_usd = add_counter(definitions.PRICED_USD)

    def note_request(self, tenant: str, noted: NotedRequest, usage: Usage | None) -> None:
        """An answered request. tenant: its name in the settings, or empty."""
        price = noted.price
        if noted.spent_usd:
            self._note_spent(tenant, price, noted.spent_usd)
        if noted.saved_usd is not None and noted.saved_usd > 0:
            self._saved.add((tenant,), noted.saved_usd)
        if noted.without_usd is not None:
            self._compared.add(("without", price, tenant), noted.without_usd)
            self._compared.add(("with", price, tenant), noted.with_usd or 0.0)
        if noted.has_died:
            self._died.add((tenant,))
        if usage is not None:
            self._note_tokens(price, usage)

    def note_summary(self, tenant: str, money: SummaryMoney) -> None:
        """tenant: as for `note_request`."""
        ways = (
            ("quoted", money.quoted_price, money.quoted_usd),
            ("riding", money.riding_price, money.riding_usd),
        )
        for way, price, usd in ways:
            if usd:
                self._summaries.add((way,), usd)
                self._priced_usd.add(("summaries", price), usd)
                self._note_own(tenant, price, usd, is_compared=money.is_compared)

    def _note_spent(self, tenant: str, price: str, usd: float) -> None:
        self._spent.add((tenant,), usd)
        self._priced_usd.add(("requests", price), usd)

    def _note_own(self, tenant: str, price: str, usd: float, *, is_compared: bool) -> None:
        if is_compared:
            self._compared.add(("with", price, tenant), usd)

    def _note_tokens(self, price: str, usage: Usage) -> None:
        tokens = self._priced_tokens
        tokens.add(("prompt", price), usage.prompt_tokens)
        tokens.add(("output", price), usage.output_tokens)
        if usage.cached_tokens:
            tokens.add(("cached", price), usage.cached_tokens)
        if usage.cache_write_tokens:
            tokens.add(("written", price), usage.cache_write_tokens)


# A reason may hold the status that an upstream chose. Each value of a label is kept for good.
_MAX_RESULTS: Final = 64
_OTHER: Final = "other"


class RareCounters:
    """Counters of rare events that the first versions of the gateway had, as the library keeps them: each
    also has a sample `…_created` with the time of its first use.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results: set[str] = set()
        self.compactions = Counter(
            "gateway_compactions",
            "Summaries and digests. result: done, or the reason of the failure.",
            ["kind", "result"],
            registry=registry,
        )
        self.refusals = Counter(
            "gateway_overflow_refusals",
            "Errors from upstream that a request is too large. retried: was a smaller request sent?",
            ["kind", "retried"],
            registry=registry,
        )
        self.truncations = Counter(
            "gateway_silent_truncations",
            "Responses whose usage shows that upstream left out a part of the prompt.",
            registry=registry,
        )
        self.prunings = Counter(
            "gateway_prunings", "Batches of old messages that were cleared or cut.", registry=registry
        )
        self.limited_requests = Counter(
            "gateway_limited_requests",
            "Requests that got 429. limit: requests_per_minute or concurrent_requests of the tenant.",
            ["tenant", "limit"],
            registry=registry,
        )
        self.unaffordable_summaries = Counter(
            "gateway_summaries_over_budget",
            "Digests in place of summaries, because the summary_budget of the tenant was used up.",
            ["tenant"],
            registry=registry,
        )

    def limit_result(self, result: str) -> str:
        if result not in self._results and len(self._results) >= _MAX_RESULTS:
            return _OTHER
        self._results.add(result)
        return result


CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
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


class Metrics:
    """Each gateway has its own registry, because several may run in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._rare = RareCounters(self._registry)
        plain = PlainCollector()
        self._requests = plain.add_counter(definitions.REQUESTS)
        self._tokens = plain.add_counter(definitions.TOKENS)
        self._usage = plain.add_counter(definitions.USAGE_TOKENS)
        self._unreported = plain.add_counter(definitions.UNREPORTED)
        self.money = MoneyCounts(plain.add_counter)
        self._cache_breaks = plain.add_counter(definitions.CACHE_BREAKS)
        self._triggers = plain.add_counter(definitions.COMPACTIONS_BY_TRIGGER)
        self._used_summaries = plain.add_counter(definitions.SUMMARIES_USED)
        self._summary_calls = plain.add_counter(definitions.SUMMARY_CALLS)
        self._summary_tokens = plain.add_counter(definitions.SUMMARY_TOKENS)
        self._recovered = plain.add_counter(definitions.OVERFLOW_RECOVERED)
        self._store_errors = plain.add_counter(definitions.STORE_ERRORS)
        self._reloads = plain.add_counter(definitions.RELOADS)
        self._searches = plain.add_counter(definitions.RECALL_SEARCHES)
        self._overhead = plain.add_histogram(definitions.OVERHEAD_SECONDS)
        self._first_byte = plain.add_histogram(definitions.UPSTREAM_FIRST_BYTE_SECONDS)
        self._upstream = plain.add_histogram(definitions.UPSTREAM_SECONDS)
        self._wait = plain.add_histogram(definitions.COMPACTION_WAIT_SECONDS)
        self._ratio = plain.add_histogram(definitions.ESTIMATE_RATIO)
        self._compaction_seconds = plain.add_histogram(definitions.COMPACTION_SECONDS)
        self._summary_seconds = plain.add_histogram(definitions.SUMMARY_CALL_SECONDS)
        self._store_seconds = plain.add_histogram(definitions.STORE_SECONDS)
        self._loop_delay = plain.add_histogram(definitions.LOOP_DELAY_SECONDS)
        self._plain = plain
        self._registry.register(plain)

    def watch(self, gauge: gauges.Gauge, read: gauges.ReadGauge) -> None:
        """read: called at each scrape."""
        self._plain.add_gauge(gauge, read)

    # Requests

    def note_request(self, tenant: str, plan: Plan, usage: Usage | None) -> None:
        """An answered request. tenant: its name in the settings, or empty."""
        tokens, received, sent = self._tokens, plan.received, plan.sent
        tokens.add(("received", tenant), received)
        tokens.add(("sent", tenant), sent)
        if received - plan.cut > sent:
            tokens.add(("saved", tenant), received - plan.cut - sent)
        if usage is None:
            self._unreported.add(())
            return
        self._note_usage(tenant, usage)
        if usage.prompt_tokens > 0:
            self._ratio.observe((), sent / usage.prompt_tokens)

    def _note_usage(self, tenant: str, usage: Usage) -> None:
        self._usage.add(("prompt", tenant), usage.prompt_tokens)
        self._usage.add(("output", tenant), usage.output_tokens)
        if usage.cached_tokens:
            self._usage.add(("cached", tenant), usage.cached_tokens)
        if usage.cache_write_tokens:
            self._usage.add(("written", tenant), usage.cache_write_tokens)

    def note_end(self, answered: Answered) -> None:
        """A request is done."""
        kind = _STATUS_CLASSES[answered.status // 100] if 0 <= answered.status < 600 else "none"
        self._requests.add((answered.format, answered.plan_name, kind))
        self._overhead.observe((), answered.own_seconds)
        if answered.upstream is not None:
            label = (answered.upstream,)
            self._upstream.observe(label, answered.upstream_seconds)
            if answered.first_byte_seconds is not None:
                self._first_byte.observe(label, answered.first_byte_seconds)
        if answered.waited_seconds:
            self._wait.observe((), answered.waited_seconds)

    def count_cache_break(self, change: str) -> None:
        """change: compaction, pruning, edit or history."""
        self._cache_breaks.add((change,))

    # Compactions

    def count_compaction(self, kind: str, failure: str | None) -> None:
        """kind: summary or digest. failure: one of a few short reasons, or None."""
        self._rare.compactions.labels(kind, self._rare.limit_result(failure or _DONE)).inc()

    def count_trigger(self, request: CompactionRequest, failure: str | None) -> None:
        """failure: as for `count_compaction`."""
        result = self._rare.limit_result(failure or _DONE)
        self._triggers.add((request.trigger, request.reason, result))

    def count_used_summary(self) -> None:
        """A request is the first one that was sent with its summary."""
        self._used_summaries.add(())

    def note_compaction_time(self, kind: str, seconds: float) -> None:
        self._compaction_seconds.observe((kind,), seconds)

    def note_summary_call(
        self, result: str, usage: Usage | None, seconds: float, way: SummaryWay = "quoted"
    ) -> None:
        """result: done, failed or cancelled."""
        self._summary_calls.add((result, way))
        self._summary_seconds.observe((), seconds)
        if usage is None:
            return
        self._summary_tokens.add(("prompt", way), usage.prompt_tokens)
        self._summary_tokens.add(("output", way), usage.output_tokens)
        if usage.cached_tokens:
            self._summary_tokens.add(("cached", way), usage.cached_tokens)

    def count_pruning(self) -> None:
        self._rare.prunings.inc()

    def count_unaffordable_summary(self, tenant: str) -> None:
        """tenant: its name in the settings."""
        self._rare.unaffordable_summaries.labels(tenant).inc()

    # Originals

    def count_search(self, way: SearchWay, result: SearchResult) -> None:
        self._searches.add((way, result))

    # Upstreams and limits

    def count_refusal(self, kind: str, *, is_retried: bool) -> None:
        """kind: tokens, bytes or images."""
        self._rare.refusals.labels(kind, str(is_retried).lower()).inc()

    def count_recovered(self) -> None:
        self._recovered.add(())

    def count_truncation(self) -> None:
        self._rare.truncations.inc()

    def count_limited_request(self, tenant: str, limit: str) -> None:
        """tenant: its name in the settings."""
        self._rare.limited_requests.labels(tenant, limit).inc()

    # The process

    def note_store(self, operation: str, seconds: float, has_failed: bool) -> None:
        """As `TimedStore` notes it."""
        self._store_seconds.observe((operation,), seconds)
        if has_failed:
            self._store_errors.add((operation,))

    def note_loop_delay(self, seconds: float) -> None:
        self._loop_delay.observe((), seconds)

    def count_reload(self, *, has_failed: bool) -> None:
        self._reloads.add(("failed" if has_failed else _DONE,))

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
