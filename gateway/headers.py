"""The heads of requests to upstreams and of responses to clients: which headers pass, and their bytes.

End-to-end headers pass unchanged. Hop-by-hop headers and `x-gateway-*` headers do not pass, and no
credential of the caller does if the upstream has a key of its own. Knows nothing of bodies.

Heads are rendered here because aiohttp writes text only: RFC 9110 §5.5 allows bytes in a value that are not
valid text, and they must pass unchanged, too.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from gateway.settings import UpstreamSettings
from gateway.wire.formats.registry import guess_format

# Every header of the gateway's own stands here, except the label `x-gateway-session`, which
# `core/history/purpose.py` lists with the labels of the clients.
X_GATEWAY_BYPASS: Final = "x-gateway-bypass"
X_GATEWAY_CONVERSATION: Final = "x-gateway-conversation"
X_GATEWAY_PLAN: Final = "x-gateway-plan"
X_GATEWAY_TOKENS: Final = "x-gateway-tokens"
X_GATEWAY_MAX_TOKENS: Final = "x-gateway-max-tokens"
X_GATEWAY_WARNING: Final = "x-gateway-warning"
# These two are sent with calls of webhooks.
X_GATEWAY_TIMESTAMP: Final = "X-Gateway-Timestamp"
X_GATEWAY_SIGNATURE: Final = "X-Gateway-Signature"
_GATEWAY_PREFIX: Final = b"x-gateway-"

CONTENT_ENCODING: Final = b"content-encoding"
CONTENT_LENGTH: Final = b"content-length"

# RFC 9110 §7.6.1, and headers about the connection that are older than it.
_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
# The gateway writes its own for the connection to the upstream.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
# A value with one of these could end its line and begin another header (RFC 9110 §5.5).
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CONTROL_AS_SPACE: Final = bytes(0x20 if _CONTROL.match(chr(byte)) else byte for byte in range(256))

RawHeaders = Sequence[tuple[bytes, bytes]]
# A header's name in lower case, and its whole line with the line's end.
Field = tuple[bytes, bytes]


class ResponseHead:
    """The head of a response to a client.

    A space takes the place of each control character in it (RFC 9110 §5.5).
    """

    def __init__(self, status: int, reason: str, fields: list[Field]) -> None:
        self.status = status
        self.reason = reason
        self._fields = fields
        self._own: dict[str, str] = {}

    def has(self, name: bytes) -> bool:
        """name: in lower case."""
        return name in dict(self._fields)

    def drop(self, name: bytes) -> None:
        """name: in lower case."""
        self._fields = [field for field in self._fields if field[0] != name]

    def add(self, headers: Mapping[str, str]) -> None:
        """Adds headers of the gateway's own, before all others. `has` and `drop` do not see them."""
        self._own.update(headers)

    def render(self, version: tuple[int, int]) -> bytes:
        """Status line, header lines and the empty line."""
        texts = [f"HTTP/{version[0]}.{version[1]} {self.status} {self.reason}"]
        for name, value in self._own.items():
            texts.append(f"{name}: {value}")
        return b"".join([*_make_lines(texts), *[line for _, line in self._fields], b"\r\n"])


def make_response_head(status: int, reason: str, raw: RawHeaders) -> ResponseHead:
    """A head with the end-to-end headers of an upstream's response."""
    dropped = _HOP_BY_HOP | _find_connection_options(raw)
    fields = [
        (lower, (b"%b: %b" % (name, value)).translate(_CONTROL_AS_SPACE) + b"\r\n")
        for name, value in raw
        if (lower := name.lower()) not in dropped and not lower.startswith(_GATEWAY_PREFIX)
    ]
    return ResponseHead(status, reason, fields)


def make_fields(headers: Mapping[str, str]) -> list[Field]:
    names = [name.lower().encode() for name in headers]
    return list(zip(names, _make_lines([f"{name}: {value}" for name, value in headers.items()]), strict=True))


class UpstreamHead:
    """The head of a request to an upstream, shared between calls; it never changes.

    target: path and query as they go out.
    """

    def __init__(self, method: str, url: URL, target: str, headers: CIMultiDict[str]) -> None:
        self.method = method
        self.url = url
        self.target = target
        self.headers = headers

    @cached_property
    def lines(self) -> bytes:
        """Request line and header lines, without the lines that frame the body and without the empty line.

        Raises ValueError for control characters.
        """
        host = self.url.host_port_subcomponent or ""
        lines = [f"{self.method} {self.target} HTTP/1.1", f"{hdrs.HOST}: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if any(map(_CONTROL.search, lines)):
            raise ValueError("a control character in a request head")
        return "\r\n".join([*lines, ""]).encode("utf-8", "surrogateescape")

    @cached_property
    def without_encoding(self) -> "UpstreamHead":
        """The same head for a body without content encoding."""
        if hdrs.CONTENT_ENCODING not in self.headers:
            return self
        headers = self.headers.copy()
        headers.popall(hdrs.CONTENT_ENCODING)
        return UpstreamHead(self.method, self.url, self.target, headers)

    @cached_property
    def asking_for_identity(self) -> "UpstreamHead":
        """The same head, asking for a response without content encoding, which can be edited as it comes."""
        return self.with_header(hdrs.ACCEPT_ENCODING, "identity")

    def with_header(self, name: str, value: str) -> "UpstreamHead":
        headers = self.headers.copy()
        headers[name] = value
        return UpstreamHead(self.method, self.url, self.target, headers)


def make_upstream_headers(raw: RawHeaders, upstream: UpstreamSettings, path: str) -> CIMultiDict[str]:
    """The end-to-end headers of a request, with the upstream's own credential if it has one.

    Anthropic's paths take the credential as `x-api-key`, all others as a bearer token.
    """
    key = upstream.api_key
    dropped = _NOT_FORWARDED | _find_connection_options(raw)
    if key is not None:
        dropped |= _CREDENTIALS
    headers = CIMultiDict(
        (name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
        for name, value in raw
        if (lower := name.lower()) not in dropped and not lower.startswith(_GATEWAY_PREFIX)
    )
    if key is not None:
        secret = key.get_secret_value()
        if guess_format(path) == "messages":
            headers["x-api-key"] = secret
        else:
            headers["Authorization"] = f"Bearer {secret}"
    return headers


def _find_connection_options(raw: RawHeaders) -> frozenset[bytes]:
    """Names, in lower case, that the sender lists in `Connection` as hop-by-hop (RFC 9110 §7.6.1)."""
    options: frozenset[bytes] = frozenset()
    for name, value in raw:
        if name.lower() == b"connection":
            options |= {option.strip() for option in value.lower().split(b",")}
    return options


def _make_lines(texts: list[str]) -> list[bytes]:
    return [text.encode("utf-8", "surrogateescape").translate(_CONTROL_AS_SPACE) + b"\r\n" for text in texts]
