"""An upstream's answer: its head, and its body as it comes.

The connection is kept for the next request with the body's last byte; whoever leaves earlier closes it.
"""

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import StreamReader
from aiohttp.connector import Connection
from aiohttp.http_parser import RawResponseMessage


class UpstreamResponse:
    """keep: takes the connection after the body's last byte. upload: the task that still sends the request's
    body, if one does.
    """

    def __init__(
        self,
        message: RawResponseMessage,
        content: StreamReader,
        connection: Connection,
        keep: Callable[[Connection], None],
        upload: "asyncio.Task[None] | None",
    ) -> None:
        self.status = message.code
        self.reason = message.reason
        self.headers = message.headers
        self.raw_headers = message.raw_headers
        self.content = content
        self._connection: Connection | None = connection
        self._keep = keep
        self._upload = upload
        content.on_eof(self._finish)

    def close(self) -> None:
        """Whoever waits for more is woken by an error."""
        if self._connection is None:
            return
        if self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientConnectionError("Connection closed"))
        self._leave()

    def _finish(self) -> None:
        """Nobody knows what an upstream makes of the rest of a body that it did not wait for."""
        connection = self._connection
        if connection is None:
            return
        transport = connection.transport
        is_sending = transport is not None and transport.get_write_buffer_size() > 0
        if is_sending or (self._upload is not None and not self._upload.done()):
            self._leave()
        else:
            self._connection = None
            self._keep(connection)

    def _leave(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
