"""The heads of requests to upstreams and of responses to clients: which headers pass, and their bytes.

End-to-end headers pass unchanged. Hop-by-hop headers and `x-gateway-*` headers do not pass. If the upstream
has a key of its own, nothing passes that says who the caller is: no credential in any form, no choice of an
account, no cookie. Knows nothing of bodies.

Heads of responses are rendered here because aiohttp writes text only: RFC 9110 §5.5 allows bytes in a value
that are not valid text, and they pass unchanged to clients.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from typing import Final
from urllib.parse import SplitResult, unquote_plus, urlsplit

import msgspec
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.settings import CREDENTIAL_HEADERS, CREDENTIAL_PARAMETERS, UpstreamSettings, is_loopback
from gateway.wire.registry import guess_format

# Every header of the gateway's own stands here, except the label `x-gateway-session`, which
# `core/history/purpose.py` lists with the labels of the clients.
X_GATEWAY_BYPASS: Final = "x-gateway-bypass"
X_GATEWAY_CONVERSATION: Final = "x-gateway-conversation"
X_GATEWAY_PLAN: Final = "x-gateway-plan"
X_GATEWAY_TOKENS: Final = "x-gateway-tokens"
X_GATEWAY_MAX_TOKENS: Final = "x-gateway-max-tokens"
X_GATEWAY_WARNING: Final = "x-gateway-warning"
# Asked for in a request, and told in its response.
X_GATEWAY_ECONOMICS: Final = "x-gateway-economics"
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
# End-to-end headers that describe the caller's own request; they do not fit another one.
_ABOUT_THE_REQUEST: Final = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-encoding", "content-length", "host"),
        *("idempotency-key", "x-idempotency-key", "if-match", "if-none-match", "range"),
    }
)
# The gateway writes its own for the connection to the upstream.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
# The first forms were known before the others. A caller who uses these alone keeps the tenant id, under which
# there is state on disk.
_PLAIN_FORMS: Final = 4
# With one credential these choose whose data a request is about.
_ACCOUNT_HEADERS: Final = (
    *("openai-organization", "openai-project", "x-goog-user-project", "chatgpt-account-id"),
)
_COOKIE_HEADERS: Final = ("cookie", "cookie2")
# These are the caller's, and never sent beside a key of the upstream.
CALLERS_OWN: Final = frozenset(
    name.encode() for name in (*CREDENTIAL_HEADERS, *_ACCOUNT_HEADERS, *_COOKIE_HEADERS)
)
_SET_COOKIES: Final = frozenset({b"set-cookie", b"set-cookie2"})
# A value with one of these could end its line and begin another header (RFC 9110 §5.5).
# Whose page a browser sends a request for.
_FETCH_SITE: Final = "Sec-Fetch-Site"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CONTROL_AS_SPACE: Final = bytes(0x20 if _CONTROL.match(chr(byte)) else byte for byte in range(256))

_without_control: Final = partial(_CONTROL.sub, " ")

_NO_OPTIONS: Final[frozenset[bytes]] = frozenset()
_CONNECTION_LENGTH: Final = len(b"connection")

RawHeaders = Sequence[tuple[bytes, bytes]]
# A header's name in lower case, and its whole line with the line's end.
Field = tuple[bytes, bytes]


class Identity(msgspec.Struct, frozen=True):
    """Who a caller says it is."""

    # The credentials in the forms that a caller usually has one of, in the order of the list.
    plain: tuple[str, ...] = ()
    # `form:value` of everything else that tells callers apart.
    further: tuple[str, ...] = ()
    # Every credential, in whatever form.
    credentials: tuple[str, ...] = ()


def read_identity(headers: CIMultiDictProxy[str], target: str) -> Identity:
    """target: path and query of the request.

    A cookie counts only where there is no credential: cookies of load balancers change with every response,
    and each change would begin a new tenant.
    """
    plain: list[str] = []
    named: list[tuple[str, str]] = []
    for index, name in enumerate(CREDENTIAL_HEADERS):
        values = headers.getall(name, ())
        if name.endswith("authorization"):
            values = [_strip_scheme(value) for value in values]
        if index < _PLAIN_FORMS:
            plain += filter(None, values)
        else:
            named += [(name, value) for value in values if value]
    named += [pair for pair in _split_query(target) if pair[1] and pair[0] in CREDENTIAL_PARAMETERS]
    credentials = (*plain, *[value for _, value in named])
    others = _ACCOUNT_HEADERS if credentials else (*_ACCOUNT_HEADERS, *_COOKIE_HEADERS)
    named += [(name, value) for name in others for value in headers.getall(name, ()) if value]
    return Identity(tuple(plain), tuple([f"{name}:{value}" for name, value in named]), credentials)


def without_credential(target: str) -> str:
    """Path and query without the parameters that hold a credential; every other byte stays."""
    path, mark, query = target.partition("?")
    if not mark:
        return target
    fields = query.split("&")
    kept = [field for field in fields if _unquote(field.partition("=")[0]) not in CREDENTIAL_PARAMETERS]
    if len(kept) == len(fields):
        return target
    return f"{path}?{'&'.join(kept)}" if kept else path


def _split_query(target: str) -> list[tuple[str, str]]:
    query = target.partition("?")[2]
    fields = (field.partition("=") for field in query.split("&")) if query else ()
    return [(_unquote(name), _unquote(value)) for name, _, value in fields]


def _unquote(text: str) -> str:
    """Different bytes stay different, valid text or not."""
    return unquote_plus(text, errors="surrogateescape")


def _strip_scheme(value: str) -> str:
    """The token of `Bearer TOKEN`; any other value as it is."""
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value


# A page in a browser can send requests to a loopback address, under a host name of its own if it controls the
# DNS. Its browser tells the truth about `Host` and `Origin`.


def names_loopback(headers: CIMultiDictProxy[str], allowed: Sequence[str] = ()) -> bool:
    """Whether `Host` is a loopback name, or one of `allowed`."""
    host = _split_url(f"//{headers.get(hdrs.HOST, '')}").hostname or ""
    return is_loopback(host) or host in map(str.lower, allowed)


def has_same_origin(headers: CIMultiDictProxy[str], allowed: Sequence[str] = ()) -> bool:
    """Whether the request comes from no web page, from one of the same address, or from one of `allowed`."""
    origin = headers.get(hdrs.ORIGIN)
    if origin is None or origin in allowed:
        return True
    return _split_url(origin).netloc == headers.get(hdrs.HOST)


def is_from_other_page(headers: CIMultiDictProxy[str]) -> bool:
    """Whether a browser says so: it sends no `Origin` with an image, a script or a link, but says whose page
    asks for it (https://www.w3.org/TR/fetch-metadata/). Other programs say nothing.
    """
    return headers.get(_FETCH_SITE, "none") not in ("none", "same-origin")


def _split_url(url: str) -> SplitResult:
    """Empty parts for a text that is not a URL."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


class ResponseHead(msgspec.Struct):
    """The head of a response to a client.

    A space takes the place of each control character in it (RFC 9110 §5.5).
    """

    status: int
    reason: str
    fields: list[Field]
    # Headers of the gateway's own, which come before all others. `has` and `drop` do not see them.
    own: dict[str, str] = {}

    def has(self, name: bytes) -> bool:
        """name: in lower case."""
        return name in dict(self.fields)

    def drop(self, name: bytes) -> None:
        """name: in lower case."""
        self.fields = [field for field in self.fields if field[0] != name]

    def render(self, version: tuple[int, int]) -> bytes:
        """Status line, header lines and the empty line."""
        texts = [f"HTTP/{version[0]}.{version[1]} {self.status} {self.reason}"]
        for name, value in self.own.items():
            texts.append(f"{name}: {value}")
        return b"".join((_encode(texts), *map(itemgetter(1), self.fields), b"\r\n"))


def make_response_head(status: int, reason: str, raw: RawHeaders) -> ResponseHead:
    """A head with the end-to-end headers of an upstream's response."""
    beginnings = _choose_passing(tuple(map(itemgetter(0), raw)), _find_connection_options(raw))
    fields: list[Field] = []
    for passing, (_, value) in zip(beginnings, raw, strict=True):
        if passing is not None:
            fields.append((passing[0], (passing[1] + value).translate(_CONTROL_AS_SPACE) + b"\r\n"))
    return ResponseHead(status, reason, fields)


@lru_cache(512)
def _choose_passing(names: tuple[bytes, ...], options: frozenset[bytes]) -> Sequence[Field | None]:
    """For each name, itself in lower case and how its line begins; None if it does not pass.

    An upstream sends the same names again and again.
    """
    dropped = _HOP_BY_HOP | options
    return [
        None if lower in dropped or lower.startswith(_GATEWAY_PREFIX) else (lower, b"%b: " % name)
        for name in names
        for lower in (name.lower(),)
    ]


def without_cookies(raw: RawHeaders) -> RawHeaders:
    """A response's headers without the cookies that it sets."""
    return [pair for pair in raw if pair[0].lower() not in _SET_COOKIES]


def make_fields(headers: Mapping[str, str]) -> list[Field]:
    return [(name.lower().encode(), _encode([f"{name}: {value}"])) for name, value in headers.items()]


class UpstreamHead:
    """The head of a request to an upstream, shared between calls; it never changes.

    url: may hold secrets of the settings in its query.
    """

    def __init__(self, method: str, url: URL, headers: CIMultiDict[str]) -> None:
        self.method = method
        self.url = url
        self.headers = headers

    @cached_property
    def without_encoding(self) -> "UpstreamHead":
        """The same head for a body without content encoding."""
        if hdrs.CONTENT_ENCODING not in self.headers:
            return self
        return self.with_headers({hdrs.CONTENT_ENCODING: None})

    @cached_property
    def asking_for_identity(self) -> "UpstreamHead":
        """The same head, asking for a response without content encoding, which can be edited as it comes."""
        return self.with_header(hdrs.ACCEPT_ENCODING, "identity")

    def with_headers(self, values: Mapping[str, str | None]) -> "UpstreamHead":
        """None: without this header."""
        headers = self.headers.copy()
        for name, value in values.items():
            headers.popall(name, None)
            if value is not None:
                headers[name] = value
        return UpstreamHead(self.method, self.url, headers)

    def with_header(self, name: str, value: str) -> "UpstreamHead":
        headers = self.headers.copy()
        headers[name] = value
        return UpstreamHead(self.method, self.url, headers)


def make_upstream_headers(raw: RawHeaders, upstream: UpstreamSettings, path: str) -> CIMultiDict[str]:
    """The end-to-end headers of a request, with the upstream's own credential if it has one, and with the
    headers that its settings add.

    Each name has the spelling that it has first: the library would keep only the last of two spellings.
    """
    key = upstream.api_key
    dropped = _NOT_FORWARDED | _find_connection_options(raw)
    if key is not None:
        dropped |= CALLERS_OWN
    spellings: dict[bytes, str] = {}
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in raw:
        lower = name.lower()
        if lower not in dropped and not lower.startswith(_GATEWAY_PREFIX):
            headers.add(spellings.setdefault(lower, _decode(name)), _decode(value))
    if key is not None:
        form, credential = _make_credential(upstream, key.get_secret_value(), path)
        headers[form] = credential
    for added, secret in upstream.headers.items():
        headers[added] = secret.get_secret_value()
    return headers


def _make_credential(upstream: UpstreamSettings, key: str, path: str) -> tuple[str, str]:
    """As `auth` says. Without it, Anthropic's paths take the credential as `x-api-key`, all others as a
    bearer token; a path of no format, such as `/models`, is Anthropic's at an upstream that speaks Messages
    only.
    """
    auth = upstream.auth
    if auth is None:
        name = guess_format(path)
        is_anthropics = name == "messages" or (name is None and upstream.formats == {"messages"})
        auth = "x-api-key" if is_anthropics else "bearer"
    return ("Authorization", f"Bearer {key}") if auth == "bearer" else (auth, key)


def _decode(text: bytes) -> str:
    """What is not UTF-8 is read as Latin-1, and sent as UTF-8 (RFC 9110 §5.5 calls such bytes obsolete)."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def make_internal_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of a caller's end-to-end headers that may be sent with a call of the gateway itself."""
    return [(name, value) for name, value in headers if name.lower() not in _ABOUT_THE_REQUEST]


def _find_connection_options(raw: RawHeaders) -> frozenset[bytes]:
    """Names, in lower case, that the sender lists in `Connection` as hop-by-hop (RFC 9110 §7.6.1)."""
    options = _NO_OPTIONS
    for name, value in raw:
        if len(name) == _CONNECTION_LENGTH and name.lower() == b"connection":
            options |= {option.strip() for option in value.lower().split(b",")}
    return options


def _encode(texts: Iterable[str]) -> bytes:
    """Each as a line of its own."""
    return "\r\n".join((*map(_without_control, texts), "")).encode("utf-8", "surrogateescape")
