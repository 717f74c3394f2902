"""Where a request goes, and which headers go with it.

The upstream comes from configuration only. End-to-end headers pass as they are; hop-by-hop ones, ours and,
where the upstream has a key of its own, every form of the caller's credential do not.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from multidict import CIMultiDict
from yarl import URL

from gateway.answer_head import AnswerHead
from gateway.core.errors import RequestRefused
from gateway.settings import Settings, UpstreamSettings
from gateway.tenancy import Tenant
from gateway.wire.formats.registry import guess_format, without_version

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
_LONGEST_KEPT_PATH: Final = 256
_OWN_PREFIX: Final = "x-gateway-"


class Upstreams:
    def __init__(self, settings: Settings) -> None:
        self._by_name = settings.upstreams

    def choose(self, tenant: Tenant, path: str) -> UpstreamSettings:
        """The tenant's own, whatever the path; without one the first that speaks what the path asks for."""
        wanted = guess_format(path)
        named = self._by_name.get(tenant.upstream or "")
        if named is not None:
            return named
        candidates = [up for up in self._by_name.values() if wanted is None or wanted in up.formats]
        return candidates[0] if candidates else next(iter(self._by_name.values()))

    def read(self, name: str) -> UpstreamSettings | None:
        return self._by_name.get(name)


def make_url(upstream: UpstreamSettings, path: str) -> URL:
    """base_url + the path after an optional leading /v1, as it was sent. Raises RequestRefused.

    A path that climbs out of base_url could reach another tenant's part of the upstream.
    """
    make = _make_url if len(path) <= _LONGEST_KEPT_PATH else _make_url.__wrapped__
    return make(upstream.base_url, path)


@lru_cache(maxsize=512)
def _make_url(base_url: str, path: str) -> URL:
    if not path.startswith("/") or _climbs(path):
        raise RequestRefused(400, "The request path is not valid.")
    return URL(base_url + without_version(path), encoded=True)


def make_target(upstream: UpstreamSettings, path: str) -> str:
    """The same as the request line names it, to the letter."""
    origin_end = upstream.base_url.find("/", upstream.base_url.index("//") + 2)
    prefix = upstream.base_url[origin_end:] if origin_end >= 0 else ""
    return prefix + without_version(path) or "/"


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


def make_answer_head(status: int, reason: str, raw: RawHeaders) -> AnswerHead:
    """With the end-to-end headers of an answer."""
    fields = [
        (name, b"%b: %b\r\n" % (raw_name, value))
        for raw_name, value in raw
        if (name := _read_answer_name(raw_name)) is not None
    ]
    dropped = _named_in_connection(raw) if len(fields) < len(raw) else _NOTHING
    if dropped:
        fields = [field for field in fields if field[0].decode("latin-1") not in dropped]
    return AnswerHead(status, reason, fields)


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


def _climbs(path: str) -> bool:
    plain = unquote(path.partition("?")[0]).replace("\\", "/")
    return any(segment in (".", "..") for segment in plain.split("/"))
