"""The client side of HTTP: one session carries everything that reaches an upstream.

Relayed requests, summaries, model lists, webhooks: all take connections from the same pool. No cookies are
kept, no redirect is followed, no header is added. The session knows nothing of the settings, which come with
each call, so a reload never touches it.
"""

import asyncio
import os
import select
import ssl
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, ClassVar, Final, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies_environment
from urllib.request import proxy_bypass_environment as proxy_bypass  # type: ignore[attr-defined]
from weakref import WeakSet

import aiohttp
import msgspec
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway import __version__
from gateway.core.errors import RequestRefused, UpstreamFailed, UpstreamStalled
from gateway.headers import X_GATEWAY_PLAN, RawHeaders, UpstreamHead, without_cookies
from gateway.http.failures import (
    CALL_ERRORS,
    BrokenHead,
    BrokenResponse,
    describe_failure,
    find_fault,
    find_origin,
    list_causes,
    make_loop_error,
)
from gateway.settings import UpstreamSettings, is_loopback, load_tls

_OFF: Final = "off"
_SCHEME_END: Final = "://"


class Proxies:
    """Those of the environment, as it was when this was made, for upstreams whose settings name none.

    The library is never told to read the environment itself: it would read `.netrc`, too, and add credentials
    from there.
    """

    def __init__(self) -> None:
        self._named = getproxies_environment()
        # By base URL and `proxy` of the settings.
        self._found: dict[tuple[str, str | None], str | None] = {}

    def choose(self, upstream: UpstreamSettings | None) -> str | None:
        """A URL, perhaps with user and password. None for an upstream that is reached directly, and where
        there is no upstream. An address of this machine is reached directly, unless its settings say other.
        """
        if upstream is None:
            return None
        key = (upstream.base_url, upstream.proxy)
        if key not in self._found:
            self._found[key] = self._find(*key)
        return self._found[key]

    def _find(self, base_url: str, proxy: str | None) -> str | None:
        if proxy is not None:
            return None if proxy == _OFF else proxy
        parts = urlsplit(base_url)
        named = self._named.get(parts.scheme)
        if not named or is_loopback(parts.hostname or "") or proxy_bypass(parts.netloc, self._named):
            return None
        return named if _SCHEME_END in named else f"http://{named}"


def choose_tls(upstream: UpstreamSettings | None) -> ssl.SSLContext | bool:
    """True: the system's authorities, or those of SSL_CERT_FILE. Raises OSError for an invalid file."""
    if upstream is None or not (upstream.ca_file or upstream.client_cert):
        return True
    paths = (upstream.ca_file, upstream.client_cert)
    # A renewed certificate is read again.
    changed = tuple(os.stat(path).st_mtime_ns for path in paths if path is not None)
    return _load_tls(paths, changed)


@lru_cache(64)
def _load_tls(paths: tuple[str | None, str | None], changed: tuple[int, ...]) -> ssl.SSLContext:
    """changed: when the files were changed last."""
    return load_tls(*paths)


# uvicorn closes idle connections after 5 s; a POST sent on one at that moment would fail for nothing.
_KEEPALIVE_SECONDS: Final = 4.0
_DNS_SECONDS: Final = 60
# The library reads ahead twice as much, and then up to 256 KB more, which the system gives at once.
_READ_BYTES: Final = 1 << 14
_LINE_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 256
# A large body is written in pieces of this size: all at once would fill the buffer and block the loop.
_WRITE_BYTES: Final = 1 << 20
# Of calls of our own: some servers refuse those without a name, and others compress unasked.
_OWN_HEADERS: Final = {hdrs.USER_AGENT: f"refold/{__version__}", hdrs.ACCEPT_ENCODING: "identity"}
# What the library would add.
_NOT_ADDED: Final = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
# The connection broke, and perhaps before the upstream could act.
_BROKEN: Final = (
    *(aiohttp.ClientOSError, aiohttp.ServerDisconnectedError),
    aiohttp.ClientConnectionResetError,
)

OutgoingBody = bytes | AsyncIterator[bytes] | None


class UpstreamCall(msgspec.Struct, frozen=True):
    """A client's request on its way to an upstream."""

    upstream: UpstreamSettings
    head: UpstreamHead
    body: OutgoingBody = None

    def with_body(self, body: bytes) -> "UpstreamCall":
        """The same call with a rewritten body, which has no content encoding."""
        return UpstreamCall(self.upstream, self.head.without_encoding, body)


class OwnCall(msgspec.Struct, frozen=True):
    """A request of the gateway itself. upstream: None for a webhook, which no proxy stands before."""

    upstream: UpstreamSettings | None
    method: str
    url: str
    headers: Iterable[tuple[str, str]]
    body: bytes | None = None


class Fetched(msgspec.Struct, frozen=True):
    """A whole response. body: without its content encoding taken off; None if it is larger than asked for."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes | None


class _Stale(aiohttp.ServerDisconnectedError):
    """A pooled connection is not fit for a request. It has left the pool."""


class _LineResponse(aiohttp.ClientResponse):
    # The connection. The library forgets it at the end of the body.
    line: ResponseHandler

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        try:
            return await super().start(connection)
        except aiohttp.ServerDisconnectedError as error:
            if isinstance(error.message, str):
                raise
            # It is the beginning of a head. The library would repeat requests that are safe.
            raise BrokenHead from error


class _Request(aiohttp.ClientRequest):
    # Connections that have carried a request.
    _used: ClassVar[WeakSet[ResponseHandler]] = WeakSet()

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Looks at a pooled connection first. The library does not: an upstream may have closed it, or sent
        something on it, which the next request would take for its own response.
        """
        line = conn.protocol
        assert line is not None
        if line not in self._used:
            self._used.add(line)
        elif line.transport is None or line.should_close or _is_spoken_on(line.transport):
            raise _Stale
        response = await super().send(conn)
        assert isinstance(response, _LineResponse)
        response.line = line
        return response

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        # Only a missing Content-Type would be added later on.
        if hdrs.CONTENT_TYPE not in self.headers:
            super().update_auto_headers(skip_auto_headers)

    def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> Coroutine[Any, Any, None]:
        upload = super().write_bytes(writer, conn, content_length)
        return _end_upload(upload) if self.chunked else upload


async def _end_upload(upload: Coroutine[Any, Any, None]) -> None:
    """The last chunk may meet a closed connection. Whoever waits for the response is told so."""
    try:
        await upload
    except OSError:
        pass


def _is_spoken_on(transport: asyncio.Transport) -> bool:
    """Whether something waits to be read, asked of the system, or the earlier request has not quite left."""
    if transport.is_closing():
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0)) or transport.get_write_buffer_size() > 0


class IdleWatch:
    """Ends an exchange whose upstream says nothing for `idle_seconds` while it is waited for.

    For one exchange, in the task that makes it. The library's own timer does not fire when its parser hangs
    on a malformed chunk, and is set again with every byte; this one looks only when it may have run out.
    """

    __slots__ = ("_is_over", "_since_seconds", "_task", "_timer", "begun_seconds", "last_seconds", "upstream")

    def __init__(self, upstream: UpstreamSettings) -> None:
        self.upstream = upstream
        # Both are of time.monotonic(): when the exchange began, and its last sign of life.
        self.begun_seconds = self.last_seconds = time.monotonic()
        # None while the upstream is not waited for.
        self._since_seconds: float | None = None
        self._is_over = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(upstream.idle_seconds, self._look)

    def begin(self) -> None:
        """The upstream is waited for."""
        self._since_seconds = time.monotonic()

    def prolong(self) -> None:
        """It has taken a piece of the request: it is silent because it is still reading."""
        if self._since_seconds is not None:
            self._since_seconds = time.monotonic()

    def end(self) -> None:
        """It has answered, or need not do so yet."""
        self._since_seconds = None
        self.last_seconds = time.monotonic()

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        idle_seconds = self.upstream.idle_seconds
        since = self._since_seconds
        left = idle_seconds if since is None else since + idle_seconds - time.monotonic()
        if left <= 0 and self._task is not None:
            self._is_over = True
            self._task.cancel()
            left = idle_seconds
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def raise_translated(self, error: BaseException) -> NoReturn:
        """Raises an error of the gateway's own for a foreign one. A cancelled handler stays cancelled."""
        self.end()
        upstream = self.upstream
        refused: RequestRefused | None = None
        try:
            if self._is_over:
                self._is_over = False
                if self._task is not None and self._task.uncancel() > 0:
                    raise error
                origin = find_origin(upstream.base_url)
                raise UpstreamStalled(
                    f"{upstream.name}: {origin} was silent for {upstream.idle_seconds:g} s"
                ) from error
            if isinstance(error, asyncio.CancelledError):
                raise error
            refused = next((each for each in list_causes(error) if isinstance(each, RequestRefused)), None)
            if refused is not None:
                # A client that has stopped sending is to be told so; nothing is wrong with the upstream.
                error.__cause__ = error.__context__ = None
                raise refused.with_traceback(None) from None
            raise UpstreamFailed(f"{upstream.name}: {describe_failure(error, upstream.base_url)}") from error
        finally:
            # Errors refer to this frame, which must not refer to them: the request would stay in memory.
            del error, refused


class UpstreamResponse:
    """A response, and its body as it comes, with every failure on the way translated.

    The connection is released for the next request with the last byte of the body; closing the response
    earlier breaks the connection off.
    """

    def __init__(self, response: _LineResponse, watch: IdleWatch) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = headers = response.headers
        self.raw_headers: RawHeaders = response.raw_headers
        self.encoding = headers.get(hdrs.CONTENT_ENCODING, "")
        self._response = response
        self._content = response.content
        self._watch = watch
        # The end of the connection is the end of the body, so it must be a clean one (RFC 9112 §9.8).
        self._is_unframed = (
            hdrs.CONTENT_LENGTH not in headers
            and headers.get(hdrs.TRANSFER_ENCODING, "").lower() != "chunked"
            and self._content is not aiohttp.EMPTY_PAYLOAD
        )
        self._failure: UpstreamFailed | None = None

    @property
    def is_read(self) -> bool:
        """The body has come to its end, and all of it was read."""
        content = self._content
        return content.at_eof() and content.exception() is None and not self._is_cut_off()

    def read_available(self) -> bytes:
        """What has come of the body already. An error is left for the next `read_piece`."""
        return self._content.read_nowait() if self._content.exception() is None else b""

    async def read_piece(self) -> bytes:
        """What has come of the body; waits for at least one byte. Empty at its end. Raises UpstreamFailed."""
        if piece := self.read_available():
            return piece
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        if self.is_read:
            return b""
        self._watch.begin()
        try:
            # The library has no name of its own for a read behind the end of the connection.
            if self._is_cut_off() or not (self._response.line.connected or self._content.exception()):
                raise aiohttp.ClientPayloadError
            piece = await self._content.readany()
            if not piece and self._is_cut_off():
                raise aiohttp.ClientPayloadError
        except (*CALL_ERRORS, asyncio.CancelledError) as error:
            self._fail(error)
        self._watch.end()
        return piece

    def make_failure(self, what: str) -> UpstreamFailed:
        """what: the end of a sentence."""
        upstream = self._watch.upstream
        return UpstreamFailed(f"{upstream.name}: {find_origin(upstream.base_url)} {what}")

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

    def close(self) -> None:
        """Breaks the connection off. Does nothing once the body has come to its end."""
        _break_off(self._response)

    def _is_cut_off(self) -> bool:
        """Whether the connection ended the body, and not by its clean end."""
        if not self._is_unframed or not self._content.is_eof():
            return False
        return not isinstance(self._response.line.exception(), aiohttp.ServerDisconnectedError)

    def _fail(self, error: BaseException) -> NoReturn:
        try:
            self._watch.raise_translated(error)
        except UpstreamFailed as failure:
            # Kept without its frames, which refer to this object. Another read meets it again.
            self._failure = type(failure)(*failure.args)
            self.close()
            raise
        finally:
            error.__traceback__ = None
            del error


class Client:
    """Opens with its first call. A call that nothing answers raises CALL_ERRORS, or what is said there."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._proxies = Proxies()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(self, call: UpstreamCall, watch: IdleWatch) -> UpstreamResponse:
        """The response, whose body is still to come. Raises UpstreamFailed, and RequestRefused for the
        response of another gateway.
        """
        upstream, head, body = call.upstream, call.head, call.body
        watch.begin()
        try:
            response = await self._send(upstream, head, body, upstream.connect_seconds, watch)
        except (*CALL_ERRORS, asyncio.CancelledError) as error:
            watch.raise_translated(error)
        watch.end()
        found = UpstreamResponse(response, watch)
        if upstream.api_key is not None:
            # A session that the upstream opens for its own key is not the tenant's.
            found.raw_headers = without_cookies(found.raw_headers)
        if X_GATEWAY_PLAN in response.headers:
            found.close()
            raise make_loop_error(upstream)
        return found

    async def fetch(self, call: OwnCall, seconds: float, max_bytes: int) -> Fetched:
        """A whole response within so many seconds. Raises CALL_ERRORS."""
        async with self.stream(call, seconds) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > max_bytes:
                    return Fetched(response.status, response.headers, None)
            return Fetched(response.status, response.headers, bytes(body))

    @asynccontextmanager
    async def stream(self, call: OwnCall, seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response, to be read within so many seconds. Raises CALL_ERRORS, also for what is read then."""
        upstream = call.upstream
        head = UpstreamHead(call.method, URL(call.url, encoded=True), CIMultiDict(call.headers))
        for name, value in _OWN_HEADERS.items():
            head.headers.setdefault(name, value)
        connect_seconds = seconds if upstream is None else min(seconds, upstream.connect_seconds)
        async with asyncio.timeout(seconds):
            response = await self._send(upstream, head, call.body, connect_seconds)
            try:
                yield response
            finally:
                _break_off(response)

    async def _send(
        self,
        upstream: UpstreamSettings | None,
        head: UpstreamHead,
        body: OutgoingBody,
        connect_seconds: float,
        watch: "IdleWatch | None" = None,
    ) -> _LineResponse:
        """Raises CALL_ERRORS. If the connection breaks before the upstream could act on the request, it is
        sent once more. The library does so for the methods that are safe.
        """
        session = self._session or self._open()
        if isinstance(body, bytes) and len(body) > _WRITE_BYTES:
            head = head.with_header(hdrs.CONTENT_LENGTH, str(len(body)))
        may_repeat = isinstance(body, bytes)
        while True:
            # It knows what has not left the socket's buffer.
            tracker = aiohttp.UploadTracker() if body and may_repeat else None
            try:
                response = await session.request(
                    head.method,
                    head.url,
                    headers=head.headers,
                    data=_make_data(body, watch),
                    allow_redirects=False,
                    timeout=_make_timeout(connect_seconds),
                    proxy=self._proxies.choose(upstream),
                    ssl=choose_tls(upstream),
                    upload_tracker=tracker,
                )
                break
            except _Stale:
                continue
            except aiohttp.ClientConnectorError:
                raise
            except _BROKEN:
                if tracker is None or not isinstance(body, bytes) or tracker.bytes_written >= len(body):
                    raise
                may_repeat = False
        assert isinstance(response, _LineResponse)
        fault = find_fault(response)
        if fault is not None:
            # The library may take it for a response without a body, whose connection is free again.
            response.line.abort()
            response.close()
            raise BrokenResponse(fault)
        return response

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ttl_dns_cache=_DNS_SECONDS
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            response_class=_LineResponse,
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            read_bufsize=_READ_BYTES,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            max_headers=_MAX_HEADERS,
        )
        return self._session


@lru_cache(256)
def _make_timeout(connect_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)


def _make_data(body: OutgoingBody, watch: IdleWatch | None) -> OutgoingBody:
    if not body or (isinstance(body, bytes) and len(body) <= _WRITE_BYTES):
        return body or None
    return _prolonging(_split(body) if isinstance(body, bytes) else body, watch)


async def _split(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _WRITE_BYTES):
        yield body[start : start + _WRITE_BYTES]


async def _prolonging(pieces: AsyncIterator[bytes], watch: IdleWatch | None) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if watch is not None:
            watch.prolong()
        yield piece
        if watch is not None:
            watch.prolong()


def _break_off(response: _LineResponse) -> None:
    """Whatever still comes belongs to nobody. A body that has come to its end leaves the connection open."""
    if not response.closed:
        response.line.abort()
        response.close()
