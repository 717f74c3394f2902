"""Who asks, and where does it go? What is known of a request before its body is looked at.

Agents send the same headers over and over: what was made of them is remembered.
"""

from typing import Final

import msgspec

from gateway.core.errors import RequestRefused
from gateway.core.history.purpose import find_label, is_agent
from gateway.downstream.request import HeadKey, RequestHead
from gateway.headers import X_GATEWAY_BYPASS, RawHeaders, UpstreamHead, make_upstream_headers
from gateway.lru import Lru
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenancy, Tenant
from gateway.upstream.target import Upstreams, make_target, make_url
from gateway.wire.formats.registry import find_counted_format, find_format
from gateway.wire.wire_format import WireFormat

# What is remembered holds callers' keys, like every request that is under way: in memory only, and not many.
_KEPT_BYTES: Final = 1 << 20
_KEPT_WEIGHT_BYTES: Final = 6_000


class Route(msgspec.Struct, frozen=True):
    """head: as it goes upstream. raw_headers: as they came.

    session, is_agent: as the client labels it (`core/history/purpose.py`).
    form: what the path promises of the body; None where it is only relayed, or a pure relay was asked for.
    is_count: the answer is to say how many tokens it holds, and nothing more.
    """

    tenant: Tenant
    upstream: UpstreamSettings
    head: UpstreamHead
    raw_headers: RawHeaders
    form: WireFormat | None
    session: str | None
    is_agent: bool
    is_count: bool


class Admission:
    def __init__(self, tenancy: Tenancy, upstreams: Upstreams) -> None:
        self._tenancy = tenancy
        self._upstreams = upstreams
        self._kept: Lru[HeadKey, Route] = Lru(_KEPT_BYTES)

    def admit(self, line: RequestHead) -> Route:
        """Raises RequestRefused: 401 for a stranger, 400 for a path that climbs, 426 for a WebSocket."""
        admission = self._kept.get(line.head_key)
        if admission is None:
            admission = self._read(line)
            size = len(line.target) + sum(len(name) + len(value) for name, value in line.raw_headers)
            self._kept.put(line.head_key, admission, _KEPT_WEIGHT_BYTES + 4 * size)
        return admission

    def _read(self, line: RequestHead) -> Route:
        path, headers = line.target, line.headers
        if headers.get("Upgrade", "").lower() == "websocket":
            raise RequestRefused(426, "WebSocket is not spoken here; use HTTP.")
        tenant = self._tenancy.identify(headers)
        upstream = self._upstreams.choose(tenant, path)
        is_read = line.method == "POST" and headers.get(X_GATEWAY_BYPASS) != "1"
        counted = find_counted_format(path) if is_read else None
        return Route(
            tenant=tenant,
            upstream=upstream,
            head=UpstreamHead(
                line.method,
                make_url(upstream, path),
                make_target(upstream, path),
                make_upstream_headers(line.raw_headers, upstream, path),
            ),
            raw_headers=line.raw_headers,
            session=find_label(headers.items()),
            is_agent=is_agent(headers),
            form=counted or (find_format(path) if is_read else None),
            is_count=counted is not None,
        )
