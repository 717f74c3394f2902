"""The counters of rare events that the first versions of the gateway had, as the library keeps them.

Each of them also has a sample `…_created` with the time of its first use.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter

# A reason may hold the status that an upstream chose. Each value of a label is kept for good.
_MAX_RESULTS: Final = 64
_OTHER: Final = "other"


class RareCounters:
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
