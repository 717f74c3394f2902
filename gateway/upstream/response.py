"""An upstream's response: its head, and its body as it comes, with every failure on the way translated.

The connection is released for the next request with the last byte of the body; closing the response earlier
closes the connection, too.
"""

import asyncio

import aiohttp
from aiohttp import StreamReader, hdrs
from aiohttp.connector import Connection
from aiohttp.http_parser import RawResponseMessage

from gateway.headers import RawHeaders, without_cookies
from gateway.upstream.connection_guard import ConnectionGuard
from gateway.upstream.failures import FOREIGN_ERRORS, raise_translated
from gateway.upstream.idle_timeout import IdleTimeout


class UpstreamResponse:
    def __init__(
        self,
        message: RawResponseMessage,
        content: StreamReader,
        connection: Connection,
        guard: ConnectionGuard,
        upload: "asyncio.Task[None] | None",
        idle: IdleTimeout,
    ) -> None:
        """upload: the task that still sends the body of the request, if there is one."""
        self.status = message.code
        self.reason = message.reason
        self.headers = message.headers
        self.raw_headers: RawHeaders = message.raw_headers
        self.encoding = message.headers.get(hdrs.CONTENT_ENCODING, "")
        self._content = content
        self._connection: Connection | None = connection
        self._guard = guard
        self._upload = upload
        self._idle = idle
        content.on_eof(self._release)

    def drop_cookies(self) -> None:
        """The response sets no cookie any more."""
        self.raw_headers = without_cookies(self.raw_headers)

    @property
    def is_read(self) -> bool:
        """The body has come to its end, and all of it was read."""
        return self._content.at_eof() and self._content.exception() is None

    def read_available(self) -> bytes:
        """What has come of the body already. An error is left for the next `read_piece`."""
        return self._content.read_nowait() if self._content.exception() is None else b""

    async def read_piece(self) -> bytes:
        """What has come of the body; waits for at least one byte. Empty at its end. Raises UpstreamFailed."""
        if self.is_read:
            return b""
        try:
            piece = await self._content.readany()
        except FOREIGN_ERRORS as error:
            raise_translated(error, self._idle)
        self._idle.reset()
        return piece

    async def read_bounded(self, max_bytes: int) -> bytes:
        """The body up to its end, or a little more than so many bytes of it. Raises UpstreamFailed."""
        pieces: list[bytes] = []
        await self.read_into(pieces, max_bytes)
        return b"".join(pieces)

    async def read_into(self, pieces: list[bytes], max_bytes: int) -> None:
        """The same, added to the pieces read so far, which stay there if this raises UpstreamFailed."""
        size = sum(map(len, pieces))
        while size < max_bytes and (piece := await self.read_piece()):
            pieces.append(piece)
            size += len(piece)

    def pause(self) -> None:
        """Reads no further for now, so that no more than what has been read is in memory."""
        transport = self._connection.transport if self._connection is not None else None
        if transport is not None and not transport.is_closing():
            transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        transport = self._connection.transport if self._connection is not None else None
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def close(self) -> None:
        """A task that waits for more gets an error. Does nothing once the body has come to its end."""
        error = self._content.exception()
        if error is not None:
            # Its frames refer to the body that refers to it, so that all of them would stay in memory.
            error.__traceback__ = None
        if self._connection is None:
            return
        if self._content.exception() is None:
            self._content.set_exception(aiohttp.ClientConnectionError("Connection closed"))
        self._close_connection()

    def _release(self) -> None:
        connection = self._connection
        if connection is None:
            return
        transport = connection.transport
        is_sending = transport is not None and transport.get_write_buffer_size() > 0
        if is_sending or (self._upload is not None and not self._upload.done()):
            # The upstream answered before it had the whole request: it may take the rest for the next one.
            self._close_connection()
        else:
            self._connection = None
            self._guard.end()
            connection.release()

    def _close_connection(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
