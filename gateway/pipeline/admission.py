"""Finds tenant, upstream and wire format of a request by its head, before its body is read.

Agents send the same headers again and again, so the route of each distinct head is kept.
"""

from typing import Final

import msgspec
from aiohttp import hdrs

from gateway.core.errors import RequestRefused
from gateway.core.history.purpose import find_label, is_agent
from gateway.core.limits.model_limits import BETA_HEADER
from gateway.downstream.request import HeadKey, RequestHead
from gateway.headers import X_GATEWAY_BYPASS, RawHeaders, UpstreamHead, make_upstream_headers
from gateway.lru import Lru
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenancy, Tenant
from gateway.upstream.client import OutgoingBody, UpstreamCall
from gateway.upstream.target import Upstreams, make_target, make_url
from gateway.wire.formats.registry import find_counted_format, find_format
from gateway.wire.wire_format import WireFormat

# Routes hold callers' keys, as open requests do. So they stay in memory, and only a few are kept.
_ROUTES_BYTES: Final = 2 << 20
_ROUTE_WEIGHT_BYTES: Final = 3_000
# A header is kept as received, in the key, and in up to three variants of the head that goes upstream, each
# as text and as bytes.
_COPIES: Final = 5
_HEADER_WEIGHT_BYTES: Final = 550


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the head of a request decides."""

    tenant: Tenant
    upstream: UpstreamSettings
    # The head as it goes upstream.
    head: UpstreamHead
    # The headers as received.
    raw_headers: RawHeaders
    # The format of the body, by the path; None if the request is only relayed.
    format: WireFormat | None
    # The client's name for its session; a label, never a key.
    session: str | None
    # Whether the headers name a sub-agent.
    is_agent: bool
    # Whether the headers select beta features, one of which is a longer window.
    has_betas: bool
    # Whether the request only asks how many tokens it holds.
    is_count: bool
    # What it takes in memory.
    weight_bytes: int

    def with_body(self, body: OutgoingBody, length: int | None = None) -> UpstreamCall:
        """length: of a streamed body, if the client sent it."""
        head = self.head
        if length is not None and not isinstance(body, bytes):
            head = head.with_header(hdrs.CONTENT_LENGTH, str(length))
        return UpstreamCall(self.upstream, head, body)


class Admission:
    def __init__(self, tenancy: Tenancy, upstreams: Upstreams) -> None:
        self._tenancy = tenancy
        self._upstreams = upstreams
        self._routes: Lru[HeadKey, Route] = Lru(_ROUTES_BYTES)

    def admit(self, head: RequestHead) -> Route:
        """Raises RequestRefused: 401 for an unknown key, 400 for a path that leaves the upstream's base URL,
        426 for a WebSocket.
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
            raise RequestRefused(426, "WebSocket is not supported; use HTTP.")
        tenant = self._tenancy.identify(headers)
        upstream = self._upstreams.choose(tenant, path)
        is_understood = head.method == hdrs.METH_POST and headers.get(X_GATEWAY_BYPASS) != "1"
        counted = find_counted_format(path) if is_understood else None
        return Route(
            tenant=tenant,
            upstream=upstream,
            head=UpstreamHead(
                head.method,
                make_url(upstream, path),
                make_target(upstream, path),
                make_upstream_headers(head.raw_headers, upstream, path),
            ),
            raw_headers=head.raw_headers,
            format=counted or (find_format(path) if is_understood else None),
            session=find_label(headers.items()),
            is_agent=is_agent(headers),
            has_betas=BETA_HEADER in headers,
            is_count=counted is not None,
            weight_bytes=_weigh(head),
        )


def _weigh(head: RequestHead) -> int:
    texts = len(head.target) + sum(len(name) + len(value) for name, value in head.raw_headers)
    return _ROUTE_WEIGHT_BYTES + _HEADER_WEIGHT_BYTES * len(head.raw_headers) + _COPIES * texts
