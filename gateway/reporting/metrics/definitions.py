"""Every metric that is counted with plain numbers: its name, its help text, its labels and its buckets.

Those of the gateway's first versions stand in `counters`. Names are a contract with dashboards and alerts.
"""

from dataclasses import dataclass
from typing import Final

# From half a millisecond on: what the gateway adds to a small request is below one.
_OWN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# A model takes from a tenth of a second to ten minutes.
_MODEL_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
# 1 is exact. Tokenizers differ by a factor of 1.7.
_RATIOS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0)


@dataclass(frozen=True)
class CounterDefinition:
    """name: without the ending `_total`, which the format adds."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistogramDefinition:
    name: str
    text: str
    bounds: tuple[float, ...]
    labels: tuple[str, ...] = ()


REQUESTS: Final = CounterDefinition(
    "gateway_requests",
    "Requests by format of the body, plan, and class of the status. Plan local: no upstream was asked.",
    ("format", "plan", "status"),
)
OVERHEAD_SECONDS: Final = HistogramDefinition(
    "gateway_overhead_seconds",
    "The gateway's own time of a request, without upstream, summaries that it waited for, and a slow client.",
    _OWN_SECONDS,
)
UPSTREAM_FIRST_BYTE_SECONDS: Final = HistogramDefinition(
    "gateway_upstream_first_byte_seconds",
    "From sending a request upstream to the head of the response.",
    _MODEL_SECONDS,
    ("upstream",),
)
UPSTREAM_SECONDS: Final = HistogramDefinition(
    "gateway_upstream_seconds",
    "From sending a request upstream to the last byte of the response; of all tries of a request together.",
    _MODEL_SECONDS,
    ("upstream",),
)
COMPACTION_WAIT_SECONDS: Final = HistogramDefinition(
    "gateway_compaction_wait_seconds",
    "How long requests waited for a summary or a digest, of those that waited.",
    _MODEL_SECONDS,
)
TOKENS: Final = CounterDefinition(
    "gateway_tokens",
    "Tokens by the gateway's estimate: received from clients, sent upstream, and the difference.",
    ("kind", "tenant"),
)
USAGE_TOKENS: Final = CounterDefinition(
    "gateway_usage_tokens",
    "Tokens as upstreams report them: prompt, its parts that were cached and written to a cache, and output.",
    ("kind", "tenant"),
)
UNREPORTED: Final = CounterDefinition(
    "gateway_responses_without_usage",
    "Complete responses whose upstream reported no usage.",
)
SPENT_USD: Final = CounterDefinition(
    "gateway_spent_usd", "US dollars for requests, where the price of the model is known.", ("tenant",)
)
SAVED_USD: Final = CounterDefinition(
    "gateway_saved_usd",
    "US dollars that the saved tokens would have cost, where the price of the model is known.",
    ("tenant",),
)
COMPARED_USD: Final = CounterDefinition(
    "gateway_compared_usd",
    "US dollars for the same requests with the gateway, summaries included, and without it (estimated).",
    ("gateway", "price", "tenant"),
)
CONVERSATIONS_DIED: Final = CounterDefinition(
    "gateway_conversations_died",
    "Conversations with a request that would not have fit its window without the gateway (estimated).",
    ("tenant",),
)
PRICED_TOKENS: Final = CounterDefinition(
    "gateway_priced_tokens",
    "Tokens as upstreams report them, by the name of the model's price; empty without a price.",
    ("kind", "price"),
)
PRICED_USD: Final = CounterDefinition(
    "gateway_priced_usd",
    "US dollars by the name of the model's price. kind: requests or summaries.",
    ("kind", "price"),
)
ESTIMATE_RATIO: Final = HistogramDefinition(
    "gateway_estimate_ratio",
    "Our estimate of what was sent, divided by the prompt tokens that upstream counted. 1 is exact.",
    _RATIOS,
)
CACHE_BREAKS: Final = CounterDefinition(
    "gateway_cache_breaks",
    "Requests whose sent prefix differs from that of the request before, so that no prompt cache fits.",
    ("change",),
)
COMPACTIONS_BY_TRIGGER: Final = CounterDefinition(
    "gateway_compactions_by_trigger",
    "Summaries and digests by what asked for them: trigger auto or manual, and the reason.",
    ("trigger", "reason", "result"),
)
SUMMARIES_USED: Final = CounterDefinition(
    "gateway_summaries_used",
    "Summaries and digests that a request was sent with. The others that are done were in vain, or wait.",
)
COMPACTION_SECONDS: Final = HistogramDefinition(
    "gateway_compaction_seconds", "How long a compaction took, with its calls.", _MODEL_SECONDS, ("kind",)
)
SUMMARY_CALLS: Final = CounterDefinition(
    "gateway_summary_calls",
    "Calls of models for summaries. result: done, failed or cancelled; way: quoted or riding.",
    ("result", "way"),
)
SUMMARY_CALL_SECONDS: Final = HistogramDefinition(
    "gateway_summary_call_seconds", "How long a call of a model for a summary took.", _MODEL_SECONDS
)
SUMMARY_TOKENS: Final = CounterDefinition(
    "gateway_summary_tokens", "Tokens of summary calls as upstreams report them.", ("kind", "way")
)
SUMMARY_USD: Final = CounterDefinition(
    "gateway_summary_usd", "US dollars for summary calls, where the price of the model is known.", ("way",)
)
OVERFLOW_RECOVERED: Final = CounterDefinition(
    "gateway_overflow_recovered",
    "Requests that upstream refused as too large, and whose client got a response by a smaller one.",
)
STORE_SECONDS: Final = HistogramDefinition(
    "gateway_store_seconds", "How long operations of the store took.", _OWN_SECONDS, ("operation",)
)
STORE_ERRORS: Final = CounterDefinition(
    "gateway_store_errors", "Operations of the store that failed.", ("operation",)
)
LOOP_DELAY_SECONDS: Final = HistogramDefinition(
    "gateway_event_loop_delay_seconds",
    "How much later than planned the event loop ran a timer, sampled twice a second.",
    _OWN_SECONDS,
)
RELOADS: Final = CounterDefinition(
    "gateway_settings_reloads", "Reloads of the settings. result: done or failed.", ("result",)
)
RECALL_SEARCHES: Final = CounterDefinition(
    "gateway_recall_searches",
    "Searches of originals. way: mcp, auto or admin; result: found, nothing or failed.",
    ("way", "result"),
)
