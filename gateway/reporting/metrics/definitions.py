"""Every metric: its name, its help text, its labels and its buckets.

Names are a contract with dashboards and alerts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# From half a millisecond on: what the gateway adds to a small request is below one.
_OWN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# A model takes from a tenth of a second to ten minutes.
_MODEL_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
# 1 is exact. Tokenizers differ by a factor of 1.7.
_RATIOS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0)


@dataclass(frozen=True, eq=False)
class Counter:
    """name: without the ending `_total`, which the format adds. has_created: whether it also has a sample
    `_created` with the time of its first use, as those of the gateway's first versions have.
    """

    name: str
    text: str
    labels: Sequence[str] = ()
    has_created: bool = False


@dataclass(frozen=True, eq=False)
class Histogram:
    """bounds: the upper ends of its buckets, in order; one more bucket is without an end."""

    name: str
    text: str
    bounds: Sequence[float]
    labels: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Gauge:
    """Looked up when the metrics are scraped, so that keeping it costs nothing. label: the name of its only
    label; None without one.
    """

    name: str
    text: str
    label: str | None = None


COMPACTIONS: Final = Counter(
    "gateway_compactions",
    "Summaries and digests. result: done, or the reason of the failure.",
    ("kind", "result"),
    has_created=True,
)
OVERFLOW_REFUSALS: Final = Counter(
    "gateway_overflow_refusals",
    "Errors from upstream that a request is too large. retried: was a smaller request sent?",
    ("kind", "retried"),
    has_created=True,
)
TRUNCATIONS: Final = Counter(
    "gateway_silent_truncations",
    "Responses whose usage shows that upstream left out a part of the prompt.",
    has_created=True,
)
PRUNINGS: Final = Counter(
    "gateway_prunings", "Batches of old messages that were cleared or cut.", has_created=True
)
LIMITED_REQUESTS: Final = Counter(
    "gateway_limited_requests",
    "Requests that got 429. limit: requests_per_minute or concurrent_requests of the tenant.",
    ("tenant", "limit"),
    has_created=True,
)
SUMMARIES_OVER_BUDGET: Final = Counter(
    "gateway_summaries_over_budget",
    "Digests in place of summaries, because the summary_budget of the tenant was used up.",
    ("tenant",),
    has_created=True,
)
REQUESTS: Final = Counter(
    "gateway_requests",
    "Requests by format of the body, plan, and class of the status. Plan local: no upstream was asked.",
    ("format", "plan", "status"),
)
OVERHEAD_SECONDS: Final = Histogram(
    "gateway_overhead_seconds",
    "The gateway's own time of a request, without upstream, summaries that it waited for, and a slow client.",
    _OWN_SECONDS,
)
UPSTREAM_FIRST_BYTE_SECONDS: Final = Histogram(
    "gateway_upstream_first_byte_seconds",
    "From sending a request upstream to the head of the response.",
    _MODEL_SECONDS,
    ("upstream",),
)
UPSTREAM_SECONDS: Final = Histogram(
    "gateway_upstream_seconds",
    "From sending a request upstream to the last byte of the response; of all tries of a request together.",
    _MODEL_SECONDS,
    ("upstream",),
)
COMPACTION_WAIT_SECONDS: Final = Histogram(
    "gateway_compaction_wait_seconds",
    "How long requests waited for a summary or a digest, of those that waited.",
    _MODEL_SECONDS,
)
TOKENS: Final = Counter(
    "gateway_tokens",
    "Tokens by the gateway's estimate: received from clients, sent upstream, and the difference.",
    ("kind", "tenant"),
)
USAGE_TOKENS: Final = Counter(
    "gateway_usage_tokens",
    "Tokens as upstreams report them: prompt, its parts that were cached and written to a cache, and output.",
    ("kind", "tenant"),
)
UNREPORTED: Final = Counter(
    "gateway_responses_without_usage",
    "Complete responses whose upstream reported no usage.",
)
SPENT_USD: Final = Counter(
    "gateway_spent_usd", "US dollars for requests, where the price of the model is known.", ("tenant",)
)
SAVED_USD: Final = Counter(
    "gateway_saved_usd",
    "US dollars that the saved tokens would have cost, where the price of the model is known.",
    ("tenant",),
)
COMPARED_USD: Final = Counter(
    "gateway_compared_usd",
    "US dollars for the same requests with the gateway, summaries included, and without it (estimated).",
    ("gateway", "price", "tenant"),
)
CONVERSATIONS_DIED: Final = Counter(
    "gateway_conversations_died",
    "Conversations with a request that would not have fit its window without the gateway (estimated).",
    ("tenant",),
)
PRICED_TOKENS: Final = Counter(
    "gateway_priced_tokens",
    "Tokens as upstreams report them, by the name of the model's price; empty without a price.",
    ("kind", "price"),
)
PRICED_USD: Final = Counter(
    "gateway_priced_usd",
    "US dollars by the name of the model's price. kind: requests or summaries.",
    ("kind", "price"),
)
ESTIMATE_RATIO: Final = Histogram(
    "gateway_estimate_ratio",
    "Our estimate of what was sent, divided by the prompt tokens that upstream counted. 1 is exact.",
    _RATIOS,
)
CACHE_BREAKS: Final = Counter(
    "gateway_cache_breaks",
    "Requests whose sent prefix differs from that of the request before, so that no prompt cache fits.",
    ("change",),
)
COMPACTIONS_BY_TRIGGER: Final = Counter(
    "gateway_compactions_by_trigger",
    "Summaries and digests by what asked for them: trigger auto or manual, and the reason.",
    ("trigger", "reason", "result"),
)
SUMMARIES_USED: Final = Counter(
    "gateway_summaries_used",
    "Summaries and digests that a request was sent with. The others that are done were in vain, or wait.",
)
COMPACTION_SECONDS: Final = Histogram(
    "gateway_compaction_seconds", "How long a compaction took, with its calls.", _MODEL_SECONDS, ("kind",)
)
SUMMARY_CALLS: Final = Counter(
    "gateway_summary_calls",
    "Calls of models for summaries. result: done, failed or cancelled; way: quoted or riding.",
    ("result", "way"),
)
SUMMARY_CALL_SECONDS: Final = Histogram(
    "gateway_summary_call_seconds", "How long a call of a model for a summary took.", _MODEL_SECONDS
)
SUMMARY_TOKENS: Final = Counter(
    "gateway_summary_tokens", "Tokens of summary calls as upstreams report them.", ("kind", "way")
)
SUMMARY_USD: Final = Counter(
    "gateway_summary_usd", "US dollars for summary calls, where the price of the model is known.", ("way",)
)
OVERFLOW_RECOVERED: Final = Counter(
    "gateway_overflow_recovered",
    "Requests that upstream refused as too large, and whose client got a response by a smaller one.",
)
STORE_SECONDS: Final = Histogram(
    "gateway_store_seconds", "How long operations of the store took.", _OWN_SECONDS, ("operation",)
)
STORE_ERRORS: Final = Counter("gateway_store_errors", "Operations of the store that failed.", ("operation",))
LOOP_DELAY_SECONDS: Final = Histogram(
    "gateway_event_loop_delay_seconds",
    "How much later than planned the event loop ran a timer, sampled twice a second.",
    _OWN_SECONDS,
)
RELOADS: Final = Counter(
    "gateway_settings_reloads", "Reloads of the settings. result: done or failed.", ("result",)
)
RECALL_SEARCHES: Final = Counter(
    "gateway_recall_searches",
    "Searches of originals. way: mcp, auto or admin; result: found, nothing or failed.",
    ("way", "result"),
)
OPEN_REQUESTS: Final = Gauge("gateway_open_requests", "Requests under way.")
SUMMARIES_RUNNING: Final = Gauge("gateway_summaries_running", "Summaries that are being made.")
SUMMARIES_WAITING: Final = Gauge("gateway_summaries_waiting", "Summaries that wait for a free place.")
MEMORY_USED: Final = Gauge("gateway_memory_used_bytes", "Memory for request bodies under way.")
MEMORY_LIMIT: Final = Gauge("gateway_memory_limit_bytes", "bounds.bodies_bytes of the settings.")
MEMORY_WAITING: Final = Gauge("gateway_memory_waiting", "Requests that wait for memory for their bodies.")
WRITES_WAITING: Final = Gauge(
    "gateway_writes_waiting_bytes", "What waits in this process to be written to the store.", "queue"
)
SUMMARIZER_BREAKERS: Final = Gauge(
    "gateway_summarizer_breakers_open",
    "Pairs of a tenant and an upstream whose summaries are paused after failures.",
)
STORE_BREAKER: Final = Gauge(
    "gateway_store_breaker_open", "1 while the store on a server cannot be reached, otherwise 0."
)

# Whatever stands above.
COUNTERS: Final = [each for each in list(globals().values()) if isinstance(each, Counter)]
HISTOGRAMS: Final = [each for each in list(globals().values()) if isinstance(each, Histogram)]
