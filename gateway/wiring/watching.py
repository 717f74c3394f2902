"""Which values of the parts are metrics: read when they are scraped."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from gateway.reporting.metrics import gauges
from gateway.store.interface import Store
from gateway.wiring.foundation import Foundation
from gateway.wiring.generation import Current


@runtime_checkable
class HasQueue(Protocol):
    """A store whose writes wait in this process."""

    @property
    def waiting_bytes(self) -> int: ...


@runtime_checkable
class MayBeAway(Protocol):
    """A store on a server."""

    @property
    def is_away(self) -> bool: ...


def watch_parts(foundation: Foundation, current: Current) -> None:
    """Once, when everything is constructed."""
    metrics, budget, slots = foundation.metrics, foundation.budget, foundation.running.slots
    metrics.watch(gauges.MEMORY_USED, lambda: {"": budget.used_bytes})
    metrics.watch(gauges.MEMORY_LIMIT, lambda: {"": budget.max_bytes})
    metrics.watch(gauges.MEMORY_WAITING, lambda: {"": budget.waiting})
    metrics.watch(gauges.SUMMARIES_RUNNING, lambda: {"": slots.taken})
    metrics.watch(gauges.SUMMARIES_WAITING, lambda: {"": slots.waiting})
    metrics.watch(gauges.WRITES_WAITING, lambda: _count_waiting(foundation))
    metrics.watch(
        gauges.SUMMARIZER_BREAKERS, lambda: {"": current.generation.compaction.job.count_open_breakers()}
    )
    metrics.watch(gauges.STORE_BREAKER, lambda: {"": float(_is_away(foundation.stores.state))})


def _count_waiting(foundation: Foundation) -> Mapping[str, float]:
    """By the queue."""
    state = foundation.stores.state
    return {
        **({"store": state.waiting_bytes} if isinstance(state, HasQueue) else {}),
        "named": foundation.named.waiting_bytes,
        "originals": foundation.archive.waiting_bytes,
        "search": foundation.search.waiting_bytes,
        "sessions": foundation.sessions.waiting_bytes,
    }


def _is_away(store: Store) -> bool:
    return isinstance(store, MayBeAway) and store.is_away
