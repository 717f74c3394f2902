"""Says in plain words why an upstream gave no response: for the client's error and for the log.

Texts of libraries are not repeated, because they may quote a header or a URL with a key in it. What is said
is the address without user, path and query, and a reason that is written here or comes from the system.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Final, NoReturn

import aiohttp
import httpx2 as httpx
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from gateway.core.errors import UpstreamFailed
from gateway.upstream.idle_timeout import IdleTimeout
from gateway.upstream.target import find_origin

# Errors of aiohttp and the system if the upstream or the network fails, and a cancelled wait.
FOREIGN_ERRORS: Final = (
    *(TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError, ssl.SSLError, ValueError),
    asyncio.CancelledError,
)

_LATE: Final = (TimeoutError, asyncio.TimeoutError, httpx.TimeoutException)
_CLOSED: Final = (ConnectionError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
_NOT_CONNECTED: Final = (aiohttp.ClientConnectorError, httpx.ConnectError, httpx.ConnectTimeout)
# The first lines of HTTP/2 and of TLS, where HTTP/1.1 was expected, fail in the parser like any other text.
_HTTP: Final = "sent something that is not HTTP/1.1"


class UploadFailed(aiohttp.ClientConnectionError):
    """The body of a request could not be sent to its end."""


class BrokenResponse(ValueError):
    """What came must not be taken for a response. The text says why, as the end of a sentence."""


_TEXTS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    (_LATE, "{origin} did not answer in time"),
    ((aiohttp.ClientPayloadError, httpx.ReadError), "{origin} broke off in the middle of its response"),
    ((UploadFailed,), "the request body could not be sent to {origin}"),
    (_CLOSED, "{origin} closed the connection before it answered"),
    ((HttpProcessingError,), f"{{origin}} {_HTTP}"),
    ((httpx.DecodingError,), "{origin} sent a body that cannot be decoded"),
    ((httpx.InvalidURL, ValueError), "no request to {origin} could be written"),
)


def raise_translated(error: BaseException, idle: IdleTimeout) -> NoReturn:
    """Raises an error of the gateway's own for a foreign one. A cancelled handler stays cancelled."""
    stall = idle.find_stall(error)
    upstream = idle.upstream
    try:
        if stall is not None:
            raise stall from error
        if isinstance(error, asyncio.CancelledError):
            raise error
        raise UpstreamFailed(f"{upstream.name}: {describe_failure(error, upstream.base_url)}") from error
    finally:
        # An error refers to this frame, which must not refer to it: the request would stay in memory.
        del error, stall


def describe_failure(error: BaseException, url: str) -> str:
    """One sentence without a name of a class. url: only its origin is named.

    While connecting, while waiting for the head, and within the body, for errors of both HTTP libraries.
    """
    origin = find_origin(url)
    causes = list(list_causes(error))
    if any(isinstance(cause, _NOT_CONNECTED) for cause in causes):
        return f"could not connect to {origin}: {_explain(causes)}"
    if isinstance(error, BrokenResponse):
        return f"{origin} {error}"
    if isinstance(error, httpx.RemoteProtocolError):
        return f"{origin} {_describe_protocol_error(error)}"
    if any(isinstance(cause, LineTooLong) for cause in causes):
        return f"{origin} sent a head that is too large"
    if any(_is_reset(cause) for cause in causes) and isinstance(error, _CLOSED):
        return f"{origin} reset the connection before it answered"
    for kinds, text in _TEXTS:
        if isinstance(error, kinds):
            return text.format(origin=origin)
    return f"the connection to {origin} failed: {_explain(causes)}"


def _describe_protocol_error(error: httpx.RemoteProtocolError) -> str:
    """The library has one class for three failures. Two of its texts are fixed, and quote nothing."""
    if "disconnected" in str(error):
        return "closed the connection before it answered"
    return "broke off in the middle of its response" if "peer closed" in str(error) else _HTTP


def _is_reset(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ECONNRESET


def _explain(causes: list[BaseException]) -> str:
    """The reason that the system gives, from the innermost error that has one."""
    for cause in reversed(causes):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"TLS certificate not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {(cause.reason or 'no reason given').replace('_', ' ').lower()}"
        if isinstance(cause, socket.gaierror):
            return "name not found"
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno).lower()
    if any(isinstance(cause, _LATE) for cause in causes):
        return "no connection in time"
    return "no reason given"


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
