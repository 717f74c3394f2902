"""Values that are looked up when the metrics are scraped, so that keeping them costs nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Gauge:
    """label: the name of its only label; None without one."""

    name: str
    text: str
    label: str | None = None


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

# Values by the value of the label; by an empty text without a label.
ReadGauge = Callable[[], Mapping[str, float]]
