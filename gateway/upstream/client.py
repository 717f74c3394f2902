"""Sends requests to upstreams: finds a connection, and takes another one if the first turns out to be closed.

Connections come from aiohttp's connector, and its parser reads the responses. The requests are not written by
its session, which loses three things that must pass unchanged: the `?` of an empty query, bytes in a header
value that are not valid UTF-8, and the first of two headers whose names differ only in case. There are no
cookies, no redirects and no headers but those given.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

import aiohttp
from aiohttp import hdrs
from yarl import URL

from gateway.headers import X_GATEWAY_PLAN
from gateway.settings import UpstreamSettings
from gateway.upstream.attempt import ExchangeAttempt
from gateway.upstream.connection_guard import guard_connection
from gateway.upstream.failures import FOREIGN_ERRORS, raise_translated
from gateway.upstream.idle_timeout import IdleTimeout
from gateway.upstream.loop_guard import make_loop_error
from gateway.upstream.response import UpstreamResponse
from gateway.upstream.sending import HeadStart, UpstreamCall

# uvicorn closes idle connections after 5 s; a POST sent on one at that moment would fail for nothing.
_KEEPALIVE_SECONDS: Final = 4.0
# On a connection that was idle, the head is sent this long before the body. Of 16,000 requests to an upstream
# that closes idle connections at random moments within 30 ms, 3 to 11 failed with a head start from 5 ms on,
# 20 without one, and 158 without looking first.
# Servers keep idle connections for a second at least, and those in steady use rest for less than half of one:
# they need no head start, which costs a request a tenth of a millisecond of CPU.
_HEAD_START: Final = HeadStart(rest_seconds=0.5, seconds=0.001)
_DNS_SECONDS: Final = 60


class _Destination(NamedTuple):
    """What the connector needs to know of an upstream."""

    # It says where to connect, and is never sent.
    request: aiohttp.ClientRequest
    timeout: aiohttp.ClientTimeout


class UpstreamClient:
    def __init__(self, upstreams: Iterable[UpstreamSettings], head_start: HeadStart = _HEAD_START) -> None:
        self._upstreams = list(upstreams)
        self._head_start = head_start
        self._destinations: dict[str, _Destination] = {}
        self._connector: aiohttp.TCPConnector | None = None

    async def open(self) -> None:
        self._connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ttl_dns_cache=_DNS_SECONDS
        )
        self._destinations = {upstream.name: _make_destination(upstream) for upstream in self._upstreams}

    async def close(self) -> None:
        if self._connector is not None:
            await self._connector.close()

    async def request(self, call: UpstreamCall, idle: IdleTimeout) -> UpstreamResponse:
        """The response, whose body is still to come; `idle` closes it. Raises UpstreamFailed, and
        RequestRefused for the response of another gateway.

        If the connection breaks before the upstream could act on the request, it is sent once more, on a new
        connection.
        """
        try:
            response = await self._exchange(call, idle)
        except FOREIGN_ERRORS as error:
            raise_translated(error, idle)
        if call.upstream.api_key is not None:
            # A session that the upstream opens for its own key is not the tenant's.
            response.drop_cookies()
        idle.expect_from(response)
        if X_GATEWAY_PLAN in response.headers:
            raise make_loop_error(call.upstream)
        return response

    async def _exchange(self, call: UpstreamCall, idle: IdleTimeout) -> UpstreamResponse:
        attempt = await self._connect(call, may_reuse=True)
        try:
            return await attempt.run(idle, self._head_start)
        except FOREIGN_ERRORS as error:
            if not attempt.may_repeat(error):
                raise
        attempt = await self._connect(call, may_reuse=False)
        return await attempt.run(idle, self._head_start)

    async def _connect(self, call: UpstreamCall, *, may_reuse: bool) -> ExchangeAttempt:
        """On a connection that is open, and on which nothing waits to be read.

        The connector does not look: an upstream may have closed an idle connection, or sent 408 on it, and
        the next request would be lost, or would take that for its own response.
        """
        assert self._connector is not None
        request, timeout = self._destinations[call.upstream.name]
        # Ends with a new connection at the latest, for what is discarded has left the connector.
        while True:
            connection = await self._connector.connect(request, [], timeout)
            protocol = connection.protocol
            assert protocol is not None
            guard = guard_connection(protocol)
            if not guard.is_used or (may_reuse and guard.is_silent() and not protocol.should_close):
                return ExchangeAttempt(call, connection, protocol, guard)
            connection.close()


def _make_destination(upstream: UpstreamSettings) -> _Destination:
    origin = URL(upstream.base_url, encoded=True).origin()
    request = aiohttp.ClientRequest(hdrs.METH_POST, origin, loop=asyncio.get_running_loop())
    return _Destination(request, aiohttp.ClientTimeout(sock_connect=upstream.connect_seconds))
