"""One attempt to get a response to one request, on one connection."""

from typing import Final

import aiohttp
from aiohttp import StreamReader, hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_parser import RawResponseMessage

from gateway.upstream.connection_guard import MAX_HEAD_BYTES, ConnectionGuard, make_head_error
from gateway.upstream.failures import BrokenResponse
from gateway.upstream.idle_timeout import IdleTimeout
from gateway.upstream.response import UpstreamResponse
from gateway.upstream.response_rules import count_head_bytes, ends_with_connection, find_fault, is_interim
from gateway.upstream.sending import HeadStart, Sending, UpstreamCall

# The library reads ahead twice as much, and then up to 256 KB more, which the system gives at once.
_READ_BYTES: Final = 1 << 14
_HEADER_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 256
# Responses before the final one (1xx). Servers send one or two.
_MAX_INTERIM: Final = 32
# The connection broke.
_BROKEN: Final = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, ConnectionError)


class ExchangeAttempt:
    def __init__(
        self, call: UpstreamCall, connection: Connection, protocol: ResponseHandler, guard: ConnectionGuard
    ) -> None:
        self._call = call
        self._connection = connection
        self._protocol = protocol
        self._guard = guard
        self._sending = Sending(call, connection, guard)

    async def run(self, idle: IdleTimeout, head_start: HeadStart) -> UpstreamResponse:
        """Raises FOREIGN_ERRORS; then the connection is closed."""
        try:
            self._guard.begin()
            self._set_response_params()
            await self._sending.start(self._protocol, idle, head_start)
            message, content = await self._read_final()
        except BaseException:
            # Part of a request or of a response may be on this connection; it must not be used again.
            self._sending.stop()
            self._connection.close()
            raise
        self._guard.end_head()
        self._guard.watch_end(content, is_unframed=ends_with_connection(message, content))
        return UpstreamResponse(message, content, self._connection, self._guard, self._sending.upload, idle)

    def may_repeat(self, error: BaseException) -> bool:
        """Whether the upstream has received nothing that it could act on, nor sent anything."""
        return isinstance(error, _BROKEN) and self._sending.may_repeat and not self._guard.has_answered

    def _set_response_params(self) -> None:
        self._protocol.set_response_params(
            skip_payload=self._call.head.method == hdrs.METH_HEAD,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )

    async def _read_final(self) -> tuple[RawResponseMessage, StreamReader]:
        """The response behind the interim ones. Raises BrokenResponse for what must not be passed on."""
        for _ in range(_MAX_INTERIM):
            message, content = await self._protocol.read()
            if is_interim(message):
                continue
            fault = find_fault(message)
            if fault is not None:
                raise BrokenResponse(fault)
            if count_head_bytes(message) > MAX_HEAD_BYTES:
                raise make_head_error()
            return message, content
        raise BrokenResponse("sent interim responses (1xx) only")
