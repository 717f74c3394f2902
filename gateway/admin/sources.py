"""What the pages of one process show things from, and who may read the texts of conversations there.

Texts are bodies, summaries and originals. They are shown to those who have `admin.token`; without one, only
of conversations for which `show_texts` of the policy allows it. The log tells of every such view.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import msgspec
from aiohttp import web
from yarl import URL

from gateway import __version__
from gateway.activity.book import ActivityBook
from gateway.activity.record import ConversationActivity
from gateway.admin.answers import ClientFormat, GatewayPage, TextsAllowed
from gateway.admin.routing import PEER_HEADER, AdminRefusal
from gateway.compaction.edit import SummaryEditor
from gateway.compaction.manual import ManualCompaction
from gateway.conversations.branches import Branches, NewestRequest
from gateway.logs.fields import name_fields
from gateway.originals.archive import OriginalsArchive
from gateway.originals.search import OriginalsSearch
from gateway.purge import Purge
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.metrics import Metrics
from gateway.sessions.keeper import SessionKeeper
from gateway.settings import FormatName, Settings, name_provider, shows_texts
from gateway.state import State
from gateway.store.keys import make_tag
from gateway.tenants import Policies, find_tenant
from gateway.wire.arrays import Arrays

log = logging.getLogger("gateway.admin")

NOT_IN_MEMORY: Final = (
    "The newest request of this conversation is not in memory here. It is again after the next one."
)
_REFUSED: Final = (
    "texts of conversations are not shown: set admin.token (or GATEWAY_ADMIN_TOKEN), or "
    "policies.NAME.show_texts: true in the policy of the conversation"
)
_UNKNOWN: Final = "-"
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


class ArrayShower(Protocol):
    """See `planning.rewrite`."""

    def show(self, newest: NewestRequest, start: int, most: int) -> AbstractAsyncContextManager[Arrays]: ...


class Serves(Protocol):
    """What serves new requests by the settings that hold now."""

    @property
    def settings(self) -> Settings: ...

    @property
    def manual(self) -> ManualCompaction: ...

    @property
    def editor(self) -> SummaryEditor: ...

    @property
    def arrays(self) -> ArrayShower: ...


class EventPage(Protocol):
    """Sends events, as `EventStream` or `WorkerStream`."""

    async def send(self, request: web.BaseRequest) -> web.StreamResponse: ...


class PageSources(msgspec.Struct, frozen=True, kw_only=True):
    # The data port; 0 while it does not listen.
    find_port: Callable[[], int]
    metrics: Metrics
    events: EventPage
    activity: ActivityBook
    branches: Branches
    compaction_log: CompactionLogWriter
    originals: OriginalsArchive
    search: OriginalsSearch
    sessions: SessionKeeper
    state: State
    purge: Purge
    find_serving: Callable[[], Serves]

    def find(self, request: web.Request) -> ConversationActivity:
        """Raises AdminRefusal (404)."""
        known = self.activity.find(request.match_info["id"])
        if known is None:
            raise unknown_conversation()
        return known

    def find_shown(self, request: web.Request) -> ConversationActivity:
        """Its texts are to be shown. Raises AdminRefusal (403, 404)."""
        known = self.find(request)
        self.check_texts(known)
        return known

    def find_newest(self, known: ConversationActivity) -> NewestRequest:
        """Raises AdminRefusal (409)."""
        newest = self.branches.find_newest(known.id)
        if newest is None:
            raise AdminRefusal(409, NOT_IN_MEMORY)
        return newest

    async def find_tag(self, identity: str) -> str | None:
        """Of the owner, also where only the store knows the conversation."""
        known = self.activity.find(identity)
        return make_tag(known.owner) if known is not None else await self.compaction_log.find_tag(identity)

    def describe_texts(self, conversation: ConversationActivity | None) -> TextsAllowed:
        """conversation: None if only its records are left."""
        settings = self.find_serving().settings
        has_token = settings.admin.token is not None
        if has_token or (conversation is not None and _is_open(settings, conversation)):
            return TextsAllowed(allowed=True, reason=None)
        return TextsAllowed(allowed=False, reason=_REFUSED)

    def check_texts(self, conversation: ConversationActivity | None) -> None:
        """Raises AdminRefusal (403) if its texts are not to be shown. What is shown then is to be logged."""
        allowed = self.describe_texts(conversation)
        if allowed.reason is not None:
            raise AdminRefusal(403, allowed.reason)


def unknown_conversation() -> AdminRefusal:
    return AdminRefusal(404, "no such conversation is known")


def log_view(request: web.Request, identity: str, what: str) -> None:
    """Logs that a text of this conversation was shown."""
    peer = request.remote or request.headers.get(PEER_HEADER, _UNKNOWN)
    fields = name_fields(conversation=identity, what=what)
    log.info("texts shown: conversation=%s what=%s to=%s", identity, what, ascii(peer)[1:-1], extra=fields)


def _is_open(settings: Settings, conversation: ConversationActivity) -> bool:
    """Whether its texts are shown without a token."""
    tenant = find_tenant(settings, conversation.owner)
    if tenant is None:
        # It is not configured any more.
        return False
    policy = Policies(settings).choose(tenant, conversation.upstream, conversation.model)
    return shows_texts(settings, policy)


# What the gateway says about itself


def show_gateway(settings: Settings, port: int, request: web.Request) -> GatewayPage:
    """settings: those that hold now. port: of the data port; 0 while it does not listen."""
    has_token = settings.admin.token is not None
    return GatewayPage(
        version=__version__,
        data_url=_find_data_url(settings.listen.host, port, request),
        clients=[_describe_clients(settings, name) for name in settings.served_formats],
        token_required=has_token,
        texts="token" if has_token else "policy",
    )


def _find_data_url(host: str, port: int, request: web.Request) -> str | None:
    """As the one who asks can reach it: what listens everywhere listens where the admin port is, too."""
    try:
        if host in _EVERYWHERE:
            host = request.url.host or host
        return str(URL.build(scheme="http", host=host, port=port).origin()) if port else None
    except ValueError:
        # A `Host` that is none.
        return None


def _describe_clients(settings: Settings, name: FormatName) -> ClientFormat:
    upstream = settings.choose_upstream(name)
    own_key: Literal["caller", "none"] = "caller" if upstream.api_key is None else "none"
    return ClientFormat(
        format=name,
        provider=name_provider(upstream.base_url),
        key="tenant" if settings.tenants else own_key,
    )
