"""Settings of one upstream, and a client that sends requests to it."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from multidict import CIMultiDict

from gateway.headers import UpstreamHead
from gateway.settings import UpstreamSettings
from gateway.settings.schema import WIRE_FORMATS
from gateway.upstream.client import UpstreamClient
from gateway.upstream.idle_timeout import IdleTimeout
from gateway.upstream.response import UpstreamResponse
from gateway.upstream.sending import HeadStart, OutgoingBody, UpstreamCall
from gateway.upstream.target import make_target, make_url

# As in the gateway, but after a shorter rest.
_HEAD_START: Final = HeadStart(rest_seconds=0.005, seconds=0.001)


def make_upstream(base_url: str = "https://api.test/v1", **changes: Any) -> UpstreamSettings:
    """changes: further fields of UpstreamSettings."""
    fields: dict[str, Any] = {
        "name": "default",
        "api_key": None,
        "allow": (),
        "formats": frozenset(WIRE_FORMATS),
        "include_usage": True,
        "discover": False,
        "max_body_bytes": None,
        "max_images": None,
        "connect_seconds": 1,
        "idle_seconds": 1,
    }
    return UpstreamSettings(base_url=base_url, **fields | changes)


def make_call(
    upstream: UpstreamSettings,
    path: str = "/v1/x",
    *,
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
    body: OutgoingBody = None,
) -> UpstreamCall:
    head = UpstreamHead(
        method, make_url(upstream, path), make_target(upstream, path), CIMultiDict(list(headers))
    )
    return UpstreamCall(upstream, head, body)


def make_idle_timeout(upstream: UpstreamSettings) -> IdleTimeout:
    """No sweeper checks it: a test may call `check` with the time that it wants it to be."""
    return IdleTimeout(upstream, asyncio.current_task())


class Requester:
    """A client with one upstream."""

    def __init__(self, client: UpstreamClient, upstream: UpstreamSettings) -> None:
        self.client = client
        self.upstream = upstream
        # Of the newest request.
        self.idle = make_idle_timeout(upstream)

    async def request(
        self,
        path: str = "/v1/x",
        *,
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
        body: OutgoingBody = b"{}",
    ) -> UpstreamResponse:
        self.idle = make_idle_timeout(self.upstream)
        call = make_call(self.upstream, path, method=method, headers=headers, body=body)
        return await self.client.request(call, self.idle)
