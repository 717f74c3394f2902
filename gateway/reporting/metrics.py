"""The metrics for operators, scraped from the admin port (`/metrics`).

No label names a conversation, or holds text of one. Only the limits of tenants have a label that names one:
it is a name of the settings file, and without tenants there are no such limits.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
# A reason may hold the status that an upstream chose. Each value of a label is kept for good.
_MAX_RESULTS: Final = 64
_OTHER: Final = "other"


class Metrics:
    """Each gateway has its own registry, because several may run in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._results: set[str] = set()
        self._compactions = Counter(
            "gateway_compactions",
            "Summaries and digests. result: done, or the reason of the failure.",
            ["kind", "result"],
            registry=self._registry,
        )
        self._refusals = Counter(
            "gateway_overflow_refusals",
            "Errors from upstream that a request is too large. retried: was a smaller request sent?",
            ["kind", "retried"],
            registry=self._registry,
        )
        self._truncations = Counter(
            "gateway_silent_truncations",
            "Responses whose usage shows that upstream left out a part of the prompt.",
            registry=self._registry,
        )
        self._prunings = Counter(
            "gateway_prunings", "Batches of old messages that were cleared or cut.", registry=self._registry
        )

        self._limited_requests = Counter(
            "gateway_limited_requests",
            "Requests that got 429. limit: requests_per_minute or concurrent_requests of the tenant.",
            ["tenant", "limit"],
            registry=self._registry,
        )
        self._unaffordable_summaries = Counter(
            "gateway_summaries_over_budget",
            "Digests in place of summaries, because the summary_budget of the tenant was used up.",
            ["tenant"],
            registry=self._registry,
        )

    def count_compaction(self, kind: str, failure: str | None) -> None:
        """kind: summary or digest. failure: one of a few short reasons, or None."""
        self._compactions.labels(kind, self._limit_result(failure or "done")).inc()

    def count_refusal(self, kind: str, *, is_retried: bool) -> None:
        """kind: tokens, bytes or images."""
        self._refusals.labels(kind, str(is_retried).lower()).inc()

    def count_pruning(self) -> None:
        self._prunings.inc()

    def count_truncation(self) -> None:
        self._truncations.inc()

    def count_limited_request(self, tenant: str, limit: str) -> None:
        """tenant: its name in the settings."""
        self._limited_requests.labels(tenant, limit).inc()

    def count_unaffordable_summary(self, tenant: str) -> None:
        """tenant: its name in the settings."""
        self._unaffordable_summaries.labels(tenant).inc()

    def _limit_result(self, result: str) -> str:
        if result not in self._results and len(self._results) >= _MAX_RESULTS:
            return _OTHER
        self._results.add(result)
        return result

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
