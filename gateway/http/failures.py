"""Why an upstream gave no response, in plain words; what must not be taken for one; and upstreams that lead
back to a gateway.

Texts of libraries are not repeated, because they may quote a header or a URL with a key in it. What is said
is the address without user, path and query, and a reason that is written here or comes from the system.
"""

import errno
import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import HttpVersion10, HttpVersion11, hdrs
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from gateway.core.errors import RequestRefused
from gateway.settings import Listen, UpstreamSettings

# Everything that a call may raise if no whole response came.
CALL_ERRORS: Final = (TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError, ValueError)

_CLOSED: Final = (ConnectionError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
_NOT_CONNECTED: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# The first lines of HTTP/2 and of TLS, where HTTP/1.1 was expected, fail in the parser like any other text.
_HTTP: Final = "sent something that is not HTTP/1.1"

_SWITCHING_PROTOCOLS: Final = 101
# RFC 9110 §5.6.2, and the line break that stands between the names here.
_TOKENS: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z\n]*")
# We send no TE, so nothing else may come (RFC 9112 §7.4). The second changes nothing; old servers send it.
_TRANSFER_ENCODINGS: Final = frozenset({"chunked", "identity"})
# A petabyte, less one byte. The library's parser takes some larger numbers for "no body".
_MAX_LENGTH_DIGITS: Final = 15
# A whole head, as for requests. The library bounds lines and their number only, which is 16 MB together.
_MAX_HEAD_BYTES: Final = 1 << 18
_TOO_LARGE: Final = "sent a head that is too large"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class BrokenResponse(ValueError):
    """What came must not be taken for a response. The text says why, as the end of a sentence."""


class BrokenHead(aiohttp.ClientConnectionError):
    """The connection ended within the head of a response: the upstream may have acted."""


_TEXTS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((TimeoutError,), "{origin} did not answer in time"),
    ((aiohttp.ClientPayloadError,), "{origin} broke off in the middle of its response"),
    ((*_CLOSED, BrokenHead), "{origin} closed the connection before it answered"),
    ((HttpProcessingError, aiohttp.ClientResponseError), f"{{origin}} {_HTTP}"),
    ((aiohttp.ClientConnectionError,), "the request body could not be sent to {origin}"),
    ((ValueError,), "no request to {origin} could be written"),
)


def describe_failure(error: BaseException, url: str) -> str:
    """One sentence without a name of a class. url: only its origin is named.

    While connecting, while waiting for the head, and within the body.
    """
    origin = find_origin(url)
    causes = list(list_causes(error))
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy on the way to {origin} refused the connection (status {error.status})"
    if isinstance(error, _NOT_CONNECTED):
        to = (
            f"the proxy on the way to {origin}"
            if isinstance(error, aiohttp.ClientProxyConnectionError)
            else origin
        )
        return f"could not connect to {to}: {_explain(causes)}"
    if isinstance(error, BrokenResponse):
        return f"{origin} {error}"
    if any(isinstance(cause, LineTooLong) for cause in causes):
        return f"{origin} {_TOO_LARGE}"
    was_reset = any(isinstance(each, OSError) and each.errno == errno.ECONNRESET for each in causes)
    if was_reset and isinstance(error, _CLOSED):
        return f"{origin} reset the connection before it answered"
    for kinds, text in _TEXTS:
        if isinstance(error, kinds):
            return text.format(origin=origin)
    return f"the connection to {origin} failed: {_explain(causes)}"


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def find_origin(url: str) -> str:
    """Scheme, host and port of a URL, for messages. User, password, path and query are left out."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


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
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return "no connection in time"
    return "no reason given"


def find_fault(response: aiohttp.ClientResponse) -> str | None:
    """Why this is not a final response, as the end of a sentence; None if it is one.

    The library's parser accepts all of these; what it lets pass could end at another byte for the client than
    for us.

    1. It is in another version of HTTP.
    2. It switches protocols, which was not asked for; or its status has no meaning.
    3. A header's name has a blank in it or behind it, so that recipients differ in what it means.
    4. Its head is too large.
    5. Its length or transfer encoding does not say clearly where the body ends.
    """
    version, raw = response.version, response.raw_headers
    if version is not None and version not in (HttpVersion10, HttpVersion11):
        return f"answered in HTTP/{version.major}.{version.minor}"
    if response.status == _SWITCHING_PROTOCOLS:
        return "switched protocols (101), which was not asked for"
    if response.status < 100:
        return f"answered with the status {response.status:03}"
    if not _are_valid(tuple(map(itemgetter(0), raw))):
        return "sent a header whose name is not valid"
    if sum(map(len, map(itemgetter(1), raw))) > _MAX_HEAD_BYTES:
        return _TOO_LARGE
    length = response.headers.get(hdrs.CONTENT_LENGTH)
    if length is not None and (len(length) > _MAX_LENGTH_DIGITS or not length.isdecimal()):
        return "sent a Content-Length that is not valid"
    encodings = response.headers.getall(hdrs.TRANSFER_ENCODING, ())
    if encodings and (len(encodings) > 1 or encodings[0].lower() not in _TRANSFER_ENCODINGS):
        return "sent a Transfer-Encoding other than chunked"
    return None


@lru_cache(512)
def _are_valid(names: tuple[bytes, ...]) -> bool:
    return _TOKENS.fullmatch(b"\n".join(names)) is not None


def make_loop_error(upstream: UpstreamSettings) -> RequestRefused:
    """For a response that comes from another gateway, which `X-Gateway-Plan` tells."""
    message = f"Upstream '{upstream.name}' is a gateway itself; point base_url at the model API."
    return RequestRefused(508, message, kind="server_error", code="gateway_loop")


def describe_loop(upstreams: Iterable[UpstreamSettings], listen: Listen, port: int) -> str | None:
    """Which upstream leads to the gateway itself; None if none does. Sends nothing. Blocks on DNS."""
    for upstream in upstreams:
        if leads_to_itself(upstream, listen, port):
            return f"upstream '{upstream.name}' ({upstream.base_url}) points at the gateway itself"
    return None


def leads_to_itself(upstream: UpstreamSettings, listen: Listen, port: int) -> bool:
    """Whether the base URL resolves to an address of this machine, at the port of `listen`. Blocks on DNS."""
    parts = urlsplit(upstream.base_url)
    if (parts.port or _DEFAULT_PORTS.get(parts.scheme)) != port:
        return False
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = {str(entry[4][0]) for entry in found}
    if listen.host in addresses:
        return True
    return listen.host in ("", "0.0.0.0", "::") and any(map(_is_local, addresses))


def _is_local(address: str) -> bool:
    """Only an address of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
