"""What a gateway counts, by what happens in it.

`note_request` and `note_end` are called for every request: they only add to plain numbers.
"""

from typing import Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionRequest
from gateway.core.sizing.usage import Usage
from gateway.http.answered import Answered
from gateway.reporting.metrics import definitions, gauges
from gateway.reporting.metrics.collector import PlainCollector
from gateway.reporting.metrics.counters import RareCounters
from gateway.reporting.metrics.money_counts import MoneyCounts

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
