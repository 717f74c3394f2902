"""What the admin port shows: its pages, and which values of the parts are metrics."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from gateway.activity.record import ConversationActivity
from gateway.admin.event_stream import EventStream
from gateway.admin.gateway_page import GatewayFacts
from gateway.admin.pages import AdminPages, EventPage, PageSources
from gateway.admin.server import AdminServer
from gateway.admin.text_sources import TextSources
from gateway.admin.texts import TextAccess
from gateway.admin.worker_activity import WorkerActivity
from gateway.admin.worker_socket import WorkerAdmin
from gateway.admin.worker_stream import WorkerStream
from gateway.app.build import Serving
from gateway.app.process import Process
from gateway.reporting.metrics import gauges
from gateway.settings import Settings, shows_texts
from gateway.store.interface import Store
from gateway.tenants import Policies, find_tenant

# What serves new requests now.
FindServing = Callable[[], Serving]


def build_admin(
    settings: Settings,
    socket: Path | None,
    facts: GatewayFacts,
    process: Process,
    find_serving: FindServing,
) -> AdminServer | WorkerAdmin:
    """socket: of a worker, whose supervisor serves the admin port."""
    if socket is None:
        stream = EventStream(process.bus)
        return AdminServer(settings.admin, AdminPages(_make_sources(facts, process, find_serving, stream)))
    worker_stream = WorkerStream(process.bus, process.metrics)
    pages = AdminPages(_make_sources(facts, process, find_serving, worker_stream))
    return WorkerAdmin(socket, [pages, WorkerActivity(process.activity)], worker_stream)


def _make_sources(
    facts: GatewayFacts, process: Process, find_serving: FindServing, events: EventPage
) -> PageSources:
    texts = _make_text_access(find_serving)
    return PageSources(
        facts=facts,
        metrics=process.metrics,
        events=events,
        activity=process.activity,
        branches=process.branches,
        texts=texts,
        find_manual=lambda: find_serving().manual,
        compaction_log=process.log_writer,
        originals=process.archive,
        search=process.search,
        heads=process.state.heads,
        purge=process.purge.run,
        words=TextSources(
            activity=process.activity,
            branches=process.branches,
            texts=texts,
            compaction_log=process.log_writer,
            sessions=process.sessions,
            pivots=process.state.pivots,
            find_editor=lambda: find_serving().editor,
            find_arrays=lambda: find_serving().arrays,
            delete=process.purge.run_conversation,
        ),
    )


def _make_text_access(find_serving: FindServing) -> TextAccess:
    def is_open(conversation: ConversationActivity) -> bool:
        settings = find_serving().settings
        tenant = find_tenant(settings, conversation.owner)
        if tenant is None:
            # It is not configured any more.
            return False
        policy = Policies(settings).choose(tenant, conversation.upstream, conversation.model)
        return shows_texts(settings, policy)

    return TextAccess(lambda: find_serving().settings.admin, is_open)


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


def watch_parts(process: Process, find_serving: FindServing) -> None:
    """Once, when everything is constructed."""
    metrics, budget, slots = process.metrics, process.budget, process.running.slots
    metrics.watch(gauges.MEMORY_USED, lambda: {"": budget.used_bytes})
    metrics.watch(gauges.MEMORY_LIMIT, lambda: {"": budget.max_bytes})
    metrics.watch(gauges.MEMORY_WAITING, lambda: {"": budget.waiting})
    metrics.watch(gauges.SUMMARIES_RUNNING, lambda: {"": slots.taken})
    metrics.watch(gauges.SUMMARIES_WAITING, lambda: {"": slots.waiting})
    metrics.watch(gauges.WRITES_WAITING, lambda: _count_waiting(process))
    metrics.watch(gauges.SUMMARIZER_BREAKERS, lambda: {"": find_serving().compactions.count_open_breakers()})
    metrics.watch(gauges.STORE_BREAKER, lambda: {"": float(_is_away(process.stores.state))})


def _count_waiting(process: Process) -> Mapping[str, float]:
    """By the queue."""
    state = process.stores.state
    return {
        **({"store": state.waiting_bytes} if isinstance(state, HasQueue) else {}),
        "named": process.named.waiting_bytes,
        "originals": process.archive.waiting_bytes,
        "search": process.search.waiting_bytes,
        "sessions": process.sessions.waiting_bytes,
    }


def _is_away(store: Store) -> bool:
    return isinstance(store, MayBeAway) and store.is_away
