"""Constructs everything a gateway consists of, one builder per package. Opens nothing and starts nothing.

`foundation` lives as long as the process. A `generation` depends on settings that can be reloaded, and is
built over the same foundation for each of them.
"""

from dataclasses import dataclass
from pathlib import Path

from gateway.admin.event_stream import EventStream
from gateway.admin.pages import AdminPages, EventPage, PageSources
from gateway.admin.server import AdminServer
from gateway.admin.worker_activity import WorkerActivity
from gateway.admin.worker_socket import WorkerAdmin
from gateway.admin.worker_stream import WorkerStream
from gateway.settings import Settings
from gateway.store.stores import Stores
from gateway.wiring.foundation import Foundation, build_foundation
from gateway.wiring.generation import Current, Generation, build_generation
from gateway.wiring.watching import watch_parts

__all__ = [
    "Current",
    "Foundation",
    "Generation",
    "Parts",
    "build",
    "build_admin",
    "build_foundation",
    "build_generation",
]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that `app` opens, uses and closes."""

    foundation: Foundation
    current: Current
    admin: AdminServer | WorkerAdmin


def build(settings: Settings, stores: Stores | None = None, admin_socket: Path | None = None) -> Parts:
    """stores: None for those that the settings name. admin_socket: of a worker, whose supervisor serves the
    admin port.

    Raises StoreError for a store that this build does not know.
    """
    foundation = build_foundation(settings, stores)
    current = Current(build_generation(settings, foundation))
    watch_parts(foundation, current)
    admin = build_admin(settings, admin_socket, foundation, current)
    return Parts(foundation=foundation, current=current, admin=admin)


def build_admin(
    settings: Settings, socket: Path | None, foundation: Foundation, current: Current
) -> AdminServer | WorkerAdmin:
    if socket is None:
        stream = EventStream(foundation.bus)
        return AdminServer(settings.admin, AdminPages(_make_sources(foundation, current, stream)))
    worker_stream = WorkerStream(foundation.bus, foundation.metrics)
    pages = AdminPages(_make_sources(foundation, current, worker_stream))
    return WorkerAdmin(socket, [pages, WorkerActivity(foundation.activity)], worker_stream)


def _make_sources(foundation: Foundation, current: Current, events: EventPage) -> PageSources:
    return PageSources(
        metrics=foundation.metrics,
        events=events,
        registry=foundation.registry,
        pivots=foundation.state.pivots,
        find_manual=lambda: current.generation.compaction.manual,
        compaction_log=foundation.log_writer,
        originals=foundation.archive,
        purge=foundation.purge.run,
    )
