from gateway.bounds.memory_budget import SMALL_BYTES
from gateway.settings import load_settings
from gateway.store.memory import MemoryStore
from gateway.store.stores import Stores
from gateway.wiring import build


class AwayStore(MemoryStore):
    """Stands for one on a server."""

    is_away = True
    waiting_bytes = 7


def test_the_parts_are_read_when_metrics_are_rendered() -> None:
    stores = Stores(main=AwayStore(), originals=MemoryStore(), named=MemoryStore())
    foundation = build(load_settings(None, {}), stores).foundation
    share = foundation.budget.open("a")
    share.take(SMALL_BYTES + 1)
    lines = foundation.metrics.render().decode().splitlines()
    assert {
        f"gateway_memory_used_bytes {float(SMALL_BYTES + 1)}",
        "gateway_memory_waiting 0.0",
        "gateway_summaries_running 0.0",
        "gateway_summaries_waiting 0.0",
        "gateway_summarizer_breakers_open 0.0",
        "gateway_store_breaker_open 1.0",
        'gateway_writes_waiting_bytes{queue="store"} 7.0',
        'gateway_writes_waiting_bytes{queue="compaction_log"} 0.0',
    } <= set(lines)
    assert not any('queue="named_store"' in line for line in lines)
