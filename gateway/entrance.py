"""Who asks, and where does it go? What is known of a request before its body is looked at."""

import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from gateway.core.errors import RequestRefused
from gateway.settings import UpstreamSettings
from gateway.tenancy import Tenancy, Tenant
from gateway.upstream import RawHeaders, Upstreams, make_headers, make_url, read_format
from gateway.wire import chat

_BYPASS = "x-gateway-bypass"


class Admission(msgspec.Struct, frozen=True):
    """headers: the end-to-end ones, as they go upstream. raw_headers: as they came.

    is_understood: the path promises a body that we can read, and nobody asked for a pure relay.
    """

    tenant: Tenant
    upstream: UpstreamSettings
    method: str
    url: URL
    headers: CIMultiDict[str]
    raw_headers: RawHeaders
    is_understood: bool


class Entrance:
    def __init__(self, tenancy: Tenancy, upstreams: Upstreams) -> None:
        self._tenancy = tenancy
        self._upstreams = upstreams

    def admit(self, request: web.BaseRequest) -> Admission:
        """Raises RequestRefused: 401 for a stranger, 400 for a path that climbs, 426 for a WebSocket."""
        path, headers = request.raw_path, request.headers
        if headers.get("Upgrade", "").lower() == "websocket":
            raise RequestRefused(426, "WebSocket is not spoken here; use HTTP.")
        tenant = self._tenancy.identify(headers)
        upstream = self._upstreams.choose(tenant, path)
        return Admission(
            tenant=tenant,
            upstream=upstream,
            method=request.method,
            url=make_url(upstream, path),
            headers=make_headers(request.raw_headers, upstream, path),
            raw_headers=request.raw_headers,
            is_understood=(
                request.method == "POST" and read_format(path) == chat.FORMAT and headers.get(_BYPASS) != "1"
            ),
        )
