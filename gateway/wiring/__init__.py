"""Constructs everything a gateway consists of, one builder per package. Opens nothing and starts nothing.

`foundation` lives as long as the process. A `generation` depends on settings that can be reloaded, and is
built over the same foundation for each of them.
"""

from dataclasses import dataclass
from pathlib import Path

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
from gateway.settings import Settings, shows_texts
from gateway.store.redis_address import is_redis
from gateway.store.stores import Stores
from gateway.tenants import Policies, find_tenant
from gateway.wiring.foundation import Foundation, build_foundation
from gateway.wiring.generation import Current, Generation, build_generation
from gateway.wiring.periods import USUAL_PERIODS, Periods
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
    # What the admin port says about the gateway.
    facts: GatewayFacts


def build(
    settings: Settings,
    stores: Stores | None = None,
    admin_socket: Path | None = None,
    periods: Periods = USUAL_PERIODS,
) -> Parts:
    """stores: None for those that the settings name. admin_socket: of a worker, whose supervisor serves the
    admin port.

    Raises StoreError for a store that this build does not know.
    """
    is_alone = admin_socket is None and not is_redis(settings.store)
    foundation = build_foundation(settings, stores, periods=periods, is_alone=is_alone)
    current = Current(build_generation(settings, foundation))
    watch_parts(foundation, current)
    facts = GatewayFacts(lambda: current.generation.settings)
    admin = build_admin(settings, admin_socket, facts, foundation, current)
    return Parts(foundation=foundation, current=current, admin=admin, facts=facts)


def build_admin(
    settings: Settings,
    socket: Path | None,
    facts: GatewayFacts,
    foundation: Foundation,
    current: Current,
) -> AdminServer | WorkerAdmin:
    if socket is None:
        stream = EventStream(foundation.bus)
        return AdminServer(settings.admin, AdminPages(_make_sources(facts, foundation, current, stream)))
    worker_stream = WorkerStream(foundation.bus, foundation.metrics)
    pages = AdminPages(_make_sources(facts, foundation, current, worker_stream))
    return WorkerAdmin(socket, [pages, WorkerActivity(foundation.activity)], worker_stream)


def _make_sources(
    facts: GatewayFacts, foundation: Foundation, current: Current, events: EventPage
) -> PageSources:
    texts = _make_text_access(current)
    return PageSources(
        facts=facts,
        metrics=foundation.metrics,
        events=events,
        activity=foundation.activity,
        registry=foundation.registry,
        texts=texts,
        find_manual=lambda: current.generation.compaction.manual,
        compaction_log=foundation.log_writer,
        originals=foundation.archive,
        search=foundation.search,
        find_head=foundation.state.heads.find_newest,
        purge=foundation.purge.run,
        words=TextSources(
            activity=foundation.activity,
            registry=foundation.registry,
            texts=texts,
            compaction_log=foundation.log_writer,
            sessions=foundation.sessions,
            diffs=foundation.sessions.diffs,
            pivots=foundation.state.pivots,
            edits=foundation.state.edits,
            find_editor=lambda: current.generation.compaction.editor,
            find_arrays=lambda: current.generation.pipeline.arrays,
            delete=foundation.delete_conversation,
        ),
    )


def _make_text_access(current: Current) -> TextAccess:
    def is_open(conversation: ConversationActivity) -> bool:
        settings = current.generation.settings
        tenant = find_tenant(settings, conversation.owner)
        if tenant is None:
            # It is not configured any more.
            return False
        policy = Policies(settings).choose(tenant, conversation.upstream, conversation.model)
        return shows_texts(settings, policy)

    return TextAccess(lambda: current.generation.settings.admin, is_open)
