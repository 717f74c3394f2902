"""Finds tenant, upstream and wire format of a request by its head, before its body is read.

Agents send the same headers again and again, so the route of each distinct head is kept.
"""

from typing import Final

import msgspec
from aiohttp import hdrs

from gateway.core.errors import RequestRefused
from gateway.core.history.purpose import find_label, is_agent
from gateway.core.limits.model_limits import BETA_HEADER
from gateway.headers import (
    X_GATEWAY_BYPASS,
    X_GATEWAY_ECONOMICS,
    RawHeaders,
    UpstreamHead,
    has_same_origin,
    make_upstream_headers,
    names_loopback,
    without_credential,
)
from gateway.http.allow import find_stored_response, is_allowed, may_name_responses
from gateway.http.client import OutgoingBody, UpstreamCall
from gateway.http.request import HeadKey, RequestHead
from gateway.http.target import Upstreams, make_url
from gateway.lru import Lru
from gateway.settings import Settings, UpstreamSettings, is_loopback
from gateway.tenants import Tenancy, Tenant
from gateway.wire.format import Format
from gateway.wire.references import StoredHistory
from gateway.wire.registry import find_counted_format, find_format, find_stored_history

# Routes hold callers' keys, as open requests do. So they stay in memory, and only a few are kept.
_ROUTES_BYTES: Final = 2 << 20
_ROUTE_WEIGHT_BYTES: Final = 3_000
# A header is kept as received, in the key, and in up to three variants of the head that goes upstream.
_COPIES: Final = 5
_HEADER_WEIGHT_BYTES: Final = 550
_NOT_ALLOWED: Final = (
    "The gateway does not open this path to callers, because the upstream's key belongs to the gateway. "
    "`allow` in the upstream's settings can open it."
)
_FOREIGN_PAGE: Final = (
    "Requests to this gateway must name it as a loopback host, and must not come from another web page. "
    "`listen.hosts` and `listen.origins` in the settings can allow others."
)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the head of a request decides."""

    tenant: Tenant
    upstream: UpstreamSettings
    # The head as it goes upstream.
    head: UpstreamHead
    # The headers as received.
    raw_headers: RawHeaders
    # The format of the body, by the path; None if the request is only relayed.
    format: Format | None
    # The client's name for its session; a label, never a key.
    session: str | None
    # Whether the headers name a sub-agent.
    is_agent: bool
    # Whether the headers select beta features, one of which is a longer window.
    has_betas: bool
    # Whether the client wants to know what its conversation cost so far.
    wants_economics: bool
    # Whether the request only asks how many tokens it holds.
    is_count: bool
    # What it takes in memory.
    weight_bytes: int
    # The stored response that the path names, and how the body may name some, where only the tenant who made
    # them may use them.
    stored_response: str | None
    naming: StoredHistory | None

    def with_body(self, body: OutgoingBody, length: int | None = None) -> UpstreamCall:
        """length: of a streamed body, if the client sent it."""
        head = self.head
        if length is not None and not isinstance(body, bytes):
            head = head.with_header(hdrs.CONTENT_LENGTH, str(length))
        return UpstreamCall(self.upstream, head, body)


class Admission:
    def __init__(self, settings: Settings, tenancy: Tenancy, upstreams: Upstreams) -> None:
        self._tenancy = tenancy
        self._upstreams = upstreams
        self._listen = settings.listen
        # Without tenants, every program that reaches a loopback address may use an upstream's key. Web pages
        # reach it, too: the browser sends their requests from there.
        self._guards_pages = not settings.tenants and is_loopback(settings.listen.host)
        self._routes: Lru[HeadKey, Route] = Lru(_ROUTES_BYTES)

    def admit(self, head: RequestHead) -> Route:
        """Raises RequestRefused: 401 for an unknown key, 400 for a path that leaves the base URL and for
        a key that would go to a stranger, 403 for a path or a web page that must not use the upstream's
        key, 426 for a WebSocket.
        """
        key = head.head_key
        route = self._routes.get(key)
        if route is None:
            route = self._make_route(head)
            self._routes.put(key, route, route.weight_bytes)
        return route

    def _make_route(self, head: RequestHead) -> Route:
        path, headers = head.target, head.headers
        if headers.get(hdrs.UPGRADE, "").lower() == "websocket":
            raise RequestRefused(426, "The gateway does not support WebSocket; use HTTP.")
        tenant = self._tenancy.identify(headers, path)
        upstream = self._upstreams.choose(tenant, path, headers)
        sent_path = path
        if upstream.api_key is not None:
            self._check_use_of_key(head, upstream)
            # Beside a key of the upstream no credential stays, not in the query either.
            sent_path = without_credential(path)
        is_understood = head.method == hdrs.METH_POST and headers.get(X_GATEWAY_BYPASS) != "1"
        counted = find_counted_format(path) if is_understood else None
        return Route(
            tenant=tenant,
            upstream=upstream,
            head=UpstreamHead(
                head.method,
                make_url(upstream, sent_path),
                make_upstream_headers(head.raw_headers, upstream, sent_path),
            ),
            raw_headers=head.raw_headers,
            format=counted or (find_format(path) if is_understood else None),
            session=find_label(headers.items()),
            is_agent=is_agent(headers),
            has_betas=BETA_HEADER in headers,
            wants_economics=headers.get(X_GATEWAY_ECONOMICS) == "1",
            is_count=counted is not None,
            weight_bytes=_weigh(head),
            stored_response=find_stored_response(upstream, head.method, path),
            naming=find_stored_history(path) if may_name_responses(upstream, head.method, path) else None,
        )

    def _check_use_of_key(self, head: RequestHead, upstream: UpstreamSettings) -> None:
        """Whether this request may use a key that is not its own. Raises RequestRefused."""
        if self._guards_pages and not (
            names_loopback(head.headers, self._listen.hosts)
            and has_same_origin(head.headers, self._listen.origins)
        ):
            raise RequestRefused(403, _FOREIGN_PAGE, kind="permission_error", code="foreign_origin")
        if not is_allowed(upstream, head.method, head.target):
            raise RequestRefused(403, _NOT_ALLOWED, kind="permission_error", code="path_not_allowed")


def _weigh(head: RequestHead) -> int:
    texts = len(head.target) + sum(len(name) + len(value) for name, value in head.raw_headers)
    return _ROUTE_WEIGHT_BYTES + _HEADER_WEIGHT_BYTES * len(head.raw_headers) + _COPIES * texts
