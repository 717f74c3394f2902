"""The heads of requests and responses, as bytes: which headers pass, and how they are written.

End-to-end headers pass as they are; hop-by-hop headers, ours and, where the upstream has a key of its own,
every form of the caller's credential do not. Knows nothing of bodies.
No library would write bytes that are not text, and RFC 9110 §5.5 allows them in values.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from gateway.settings import UpstreamSettings
from gateway.wire.formats.registry import guess_format

RawHeaders = Sequence[tuple[bytes, bytes]]

# RFC 9110 §7.6.1, and what the client library writes by itself.
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_REQUEST_ONLY: Final = frozenset({"host", "content-length", "expect"})
_NOT_FORWARDED: Final = _HOP_BY_HOP | _REQUEST_ONLY
_CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "api-key"})
_NOTHING: Final[frozenset[str]] = frozenset()
_OWN_PREFIX: Final = "x-gateway-"
# RFC 9110 §5.5: with these a value could end its line, and begin another header.
CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


CONTENT_ENCODING: Final = b"content-encoding"
CONTENT_LENGTH: Final = b"content-length"
# CR and LF among them: each line has one of either, at its end.
_CONTROL: Final = bytes(byte for byte in range(256) if byte in b"\r\n" or CONTROL.match(chr(byte)))


# A header's name in lower case, and its line as it goes out, with the line's end.
Field = tuple[bytes, bytes]


class ResponseHead:
    def __init__(self, status: int, reason: str, fields: list[Field]) -> None:
        """Takes the list over."""
        self.status = status
        self.reason = reason
        self._fields = fields
        self._own: list[str] = []

    def has(self, name: bytes) -> bool:
        """name: in lower case."""
        return name in [own for own, _ in self._fields]

    def drop(self, name: bytes) -> None:
        """name: in lower case."""
        self._fields = [field for field in self._fields if field[0] != name]

    def add(self, headers: Mapping[str, str]) -> None:
        """Of our own: never looked for or dropped again."""
        self._own += [f"{name}: {value}\r\n" for name, value in headers.items()]

    def render(self, version: tuple[int, int]) -> bytes:
        """A space takes the place of each control character (RFC 9110 §5.5)."""
        own = [f"HTTP/{version[0]}.{version[1]} {self.status} {self.reason}\r\n", *self._own]
        fields = [line for _, line in self._fields]
        text = b"".join(["".join(own).encode("utf-8", "surrogateescape"), *fields])
        if len(text) - len(text.translate(None, _CONTROL)) != 2 * (len(own) + len(fields)):
            lines = [line.encode("utf-8", "surrogateescape") for line in own]
            text = b"".join(map(_without_control, [*lines, *fields]))
        return text + b"\r\n"


def make_fields(headers: Mapping[str, str]) -> list[Field]:
    """Of text, which need not be ASCII."""
    return [
        (name.lower().encode(), f"{name}: {value}\r\n".encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
    ]


def _without_control(line: bytes) -> bytes:
    text = line[:-2].decode("utf-8", "surrogateescape")
    return CONTROL.sub(" ", text).encode("utf-8", "surrogateescape") + b"\r\n"


class UpstreamHead:
    """`target`: path and query as they go out. `headers`: shared between calls. Neither ever changes."""

    def __init__(self, method: str, url: URL, target: str, headers: CIMultiDict[str]) -> None:
        self.method = method
        self.url = url
        self.target = target
        self.headers = headers

    @cached_property
    def lines(self) -> bytes:
        """All but what frames the body, and the empty line. Raises ValueError for what no line may hold."""
        host = self.url.host_port_subcomponent or ""
        lines = [f"{self.method} {self.target} HTTP/1.1", f"{hdrs.HOST}: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if any(map(CONTROL.search, lines)):
            raise ValueError("a control character in a request head")
        return "\r\n".join([*lines, ""]).encode("utf-8", "surrogateescape")

    @cached_property
    def plain(self) -> "UpstreamHead":
        """The same for a body without content encoding; itself where it has none."""
        if hdrs.CONTENT_ENCODING not in self.headers:
            return self
        headers = self.headers.copy()
        headers.popall(hdrs.CONTENT_ENCODING)
        return UpstreamHead(self.method, self.url, self.target, headers)

    @cached_property
    def uncoded(self) -> "UpstreamHead":
        """The same, asking for an answer that we can edit as it comes."""
        return self.with_header(hdrs.ACCEPT_ENCODING, "identity")

    def with_header(self, name: str, value: str) -> "UpstreamHead":
        headers = self.headers.copy()
        headers[name] = value
        return UpstreamHead(self.method, self.url, self.target, headers)


def make_headers(raw: RawHeaders, upstream: UpstreamSettings, path: str) -> CIMultiDict[str]:
    """The end-to-end headers of a request, with the upstream's own credential where it has one.

    Anthropic's paths take it as `x-api-key`, all others as a bearer token.
    """
    key = upstream.api_key
    dropped = _named_in_connection(raw)
    if key is not None:
        dropped |= _CREDENTIALS
    kept = [
        (name, value.decode("utf-8", "surrogateescape"))
        for raw_name, value in raw
        if (name := _read_request_name(raw_name)) is not None and name.lower() not in dropped
    ]
    headers = CIMultiDict(kept)
    if key is not None:
        secret = key.get_secret_value()
        if guess_format(path) == "messages":
            headers["x-api-key"] = secret
        else:
            headers["Authorization"] = f"Bearer {secret}"
    return headers


def make_answer_head(status: int, reason: str, raw: RawHeaders) -> ResponseHead:
    """With the end-to-end headers of an answer."""
    fields = [
        (name, b"%b: %b\r\n" % (raw_name, value))
        for raw_name, value in raw
        if (name := _read_answer_name(raw_name)) is not None
    ]
    dropped = _named_in_connection(raw) if len(fields) < len(raw) else _NOTHING
    if dropped:
        fields = [field for field in fields if field[0].decode("latin-1") not in dropped]
    return ResponseHead(status, reason, fields)


@lru_cache(maxsize=2_048)
def _read_request_name(name: bytes) -> str | None:
    """The name of a header that may pass, None for one that never does: the same few come all the time."""
    text = name.decode("utf-8", "surrogateescape")
    return None if text.lower() in _NOT_FORWARDED or text.lower().startswith(_OWN_PREFIX) else text


@lru_cache(maxsize=2_048)
def _read_answer_name(name: bytes) -> bytes | None:
    """The same, in lower case."""
    name = name.lower()
    text = name.decode("latin-1")
    return None if text in _HOP_BY_HOP or text.startswith(_OWN_PREFIX) else name


def _named_in_connection(raw: RawHeaders) -> frozenset[str]:
    """Headers that the sender declares hop-by-hop (RFC 9110 §7.6.1)."""
    values = [value for name, value in raw if len(name) == 10 and name.lower() == b"connection"]
    return _read_connection(values[0] if len(values) == 1 else b",".join(values)) if values else _NOTHING


@lru_cache(maxsize=256)
def _read_connection(value: bytes) -> frozenset[str]:
    """The names in a Connection header; `keep-alive` and `close` are no headers of ours to drop."""
    named = {part.strip().lower() for part in value.decode("latin-1").split(",")}
    return frozenset(named - {"keep-alive", "close", ""})
