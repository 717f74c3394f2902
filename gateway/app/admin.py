"""What the admin port shows: its pages, and which values of the parts are metrics."""

from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.admin.event_stream import EventStream
from gateway.admin.pages import AdminPages
from gateway.admin.server import AdminServer
from gateway.admin.sources import EventPage, PageSources
from gateway.admin.worker import WorkerAdmin, WorkerStream
from gateway.app.build import Serving
from gateway.app.process import Process
from gateway.reporting.metrics import definitions
from gateway.settings import Settings
from gateway.store.queue import QueuedStore

# What serves new requests now.
FindServing = Callable[[], Serving]


def build_admin(
    settings: Settings,
    socket: Path | None,
    find_port: Callable[[], int],
    process: Process,
    find_serving: FindServing,
) -> AdminServer | WorkerAdmin:
    """socket: of a worker, whose supervisor serves the admin port."""

    def make_pages(events: EventPage) -> AdminPages:
        sources = PageSources(
            find_port=find_port,
            metrics=process.metrics,
            events=events,
            activity=process.activity,
            branches=process.branches,
            compaction_log=process.log_writer,
            originals=process.archive,
            search=process.search,
            sessions=process.sessions,
            state=process.state,
            purge=process.purge,
            find_serving=find_serving,
        )
        return AdminPages(sources)

    if socket is None:
        return AdminServer(settings.admin, make_pages(EventStream(process.bus)))
    stream = WorkerStream(process.bus, process.metrics)
    return WorkerAdmin(socket, make_pages(stream), stream, process.activity)


def watch_parts(process: Process, find_serving: FindServing) -> None:
    """Once, when everything is constructed."""
    metrics, budget, slots = process.metrics, process.budget, process.running.slots
    store = process.stores.state
    metrics.watch(definitions.MEMORY_USED, lambda: {"": budget.used_bytes})
    metrics.watch(definitions.MEMORY_LIMIT, lambda: {"": budget.max_bytes})
    metrics.watch(definitions.MEMORY_WAITING, lambda: {"": budget.waiting})
    metrics.watch(definitions.SUMMARIES_RUNNING, lambda: {"": slots.taken})
    metrics.watch(definitions.SUMMARIES_WAITING, lambda: {"": slots.waiting})
    metrics.watch(definitions.WRITES_WAITING, lambda: _count_waiting(process))
    metrics.watch(
        definitions.SUMMARIZER_BREAKERS, lambda: {"": find_serving().compactions.count_open_breakers()}
    )
    metrics.watch(
        definitions.STORE_BREAKER, lambda: {"": float(isinstance(store, QueuedStore) and store.is_away)}
    )


def _count_waiting(process: Process) -> Mapping[str, float]:
    """By the queue."""
    store = process.stores.state
    return {
        **({"store": store.waiting_bytes} if isinstance(store, QueuedStore) else {}),
        "named": process.named.waiting_bytes,
        "originals": process.archive.waiting_bytes,
        "search": process.search.waiting_bytes,
        "sessions": process.sessions.waiting_bytes,
    }
