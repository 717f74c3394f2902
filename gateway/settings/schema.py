"""Every key of a settings file with its type, range, default and line of help: the one declaration of each.

Of these are made the values that the program runs with, the reference and the schema for editors. Policies
are declared in `gateway.core.policy`; `checks` knows how the values fit together. Secrets are `SecretStr`,
which only `get_secret_value()` reveals; what may contain one is not in a `repr`.
"""

import dataclasses
import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr
from pydantic.dataclasses import dataclass

from gateway.core.limits.model_limits import Limits
from gateway.core.money import Price
from gateway.core.policy import STRICT, Policy, bound, key, section
from gateway.settings.files import Problem
from gateway.store.redis_address import FORM, is_redis, parse_address

MEBIBYTE: Final = 1 << 20

FormatName = Literal["chat", "responses", "messages"]
WIRE_FORMATS: Final[tuple[FormatName, ...]] = ("chat", "responses", "messages")
AuthForm = Literal["bearer", "api-key", "x-api-key"]

# Every form in which an API takes a credential: OpenAI and most others, Anthropic, Azure OpenAI, Google,
# Azure API Management, Cloudflare AI Gateway. Google and Azure API Management take it in the query, too.
CREDENTIAL_HEADERS = (
    *("authorization", "x-api-key", "api-key", "x-goog-api-key"),
    *("ocp-apim-subscription-key", "cf-aig-authorization"),
)
CREDENTIAL_PARAMETERS = ("key", "subscription-key")

_LOCAL_STORE = re.compile(r"disk:.+|memory:")
# Where a collector takes traces over HTTP.
_TRACES_PATH: Final = "/v1/traces"
_ALLOWED = re.compile(r"(?:[A-Z]+ )?[^\s?#]+")
# What people copy from an example of a request.
_ENDPOINT_ENDINGS = ("/chat/completions", "/completions", "/responses", "/messages", "/models", "/embeddings")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The gateway writes these itself, for each connection and each body.
_RESERVED = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "expect", "content-length", "content-type", "content-encoding"),
    }
)
_GATEWAY_PREFIX = "x-gateway-"
# A key of a tenant that is written as its hash.
_HASHED = "sha256:"
_HASH = re.compile(r"[0-9a-f]{64}")
# No model for conversations has less; a smaller number is one of thousands.
_SMALLEST_WINDOW_TOKENS = 1_000
# No name of a model has any of these. (A dot before a star may be meant: `gpt-4.*`.)
_REGULAR_EXPRESSION = re.compile(r"^\^|\$$|^\.[*+]|\.\+|[\\|(){}]")
# As fnmatch reads it: a `]` right behind the bracket belongs to the class.
_CHARACTER_CLASS = re.compile(r"\[!?+\]?+[^\]]*\]")
# What fnmatch makes of a class without characters.
_FITS_NOTHING = "(?!)"


# Checks of single values. Errors never show the value: it may be a secret, or contain one.


def _check_secret(secret: SecretStr) -> SecretStr:
    """A secret is sent in a header: it must be visible ASCII and not empty."""
    text = secret.get_secret_value()
    if not text:
        raise ValueError("must not be empty")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("must not contain spaces, line ends or other characters that a header cannot carry")
    return secret


def check_url(url: str) -> str:
    """Without the trailing slash."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not contain spaces")
    try:
        parts = urlsplit(url)
        host, port, has_user = parts.hostname, parts.port, "@" in parts.netloc
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("must be http://HOST… or https://HOST…")
    if has_user:
        raise ValueError("must not contain a user or password; use api_key")
    if "?" in url or "#" in url:
        raise ValueError("must not contain a query or fragment")
    return url.rstrip("/")


def _check_base_url(url: str) -> str:
    """The base of an API, to which the gateway adds the path of each request."""
    url = check_url(url)
    for ending in _ENDPOINT_ENDINGS:
        if url.endswith(ending):
            raise ValueError(f"must end before {ending}: write {url.removesuffix(ending)}")
    return url


def _check_endpoint(url: str) -> str:
    """The whole URL. A collector's address alone, as OTEL_EXPORTER_OTLP_ENDPOINT has it, is enough."""
    url = check_url(url)
    return url if url.endswith(_TRACES_PATH) else url + _TRACES_PATH


def _check_hook_url(url: str) -> str:
    check_url(url.partition("?")[0])
    if "#" in url or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not contain spaces or a fragment")
    return url


def _check_proxy(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be http://HOST:PORT, https://HOST:PORT or off")
    return url


def _check_store(url: str) -> str:
    if is_redis(url):
        parse_address(url)
    elif not _LOCAL_STORE.fullmatch(url):
        raise ValueError(f"must be disk:PATH, memory: or {FORM}")
    return url


def _check_host(host: str) -> str:
    if not host or any(character.isspace() or character in "/[]@" for character in host):
        raise ValueError("must be an address or a host name, without brackets or a port")
    return host


def _check_allowed(entry: str) -> str:
    if not _ALLOWED.fullmatch(entry):
        raise ValueError("must be PATH or METHOD PATH, such as files or 'GET batches/*'")
    return entry


def _check_header_name(name: str) -> str:
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("must be names of headers")
    if lower in _RESERVED or lower.startswith(_GATEWAY_PREFIX):
        raise ValueError(f"must not name {lower}, which the gateway writes itself")
    return name


def _check_header_value(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or text != text.strip() or not (text.isascii() and text.isprintable()):
        raise ValueError("must be visible ASCII, as a header can carry it, and not empty")
    return value


def _check_pattern(pattern: str) -> str:
    """A pattern that matches no model is refused, and so is a regular expression."""
    if _REGULAR_EXPRESSION.search(pattern):
        raise ValueError("is not a regular expression: it has *, ? and [abc] only, and fits the whole name")
    rest = _CHARACTER_CLASS.sub("", pattern)
    if "[" in rest:
        raise ValueError("has a '[' without its ']', so it fits no model")
    if any(_FITS_NOTHING in fnmatch.translate(found) for found in _CHARACTER_CLASS.findall(pattern)):
        raise ValueError("has a range that ends before it begins, so it fits no model")
    return pattern


def _check_window(tokens: int) -> int:
    if 0 < tokens < _SMALLEST_WINDOW_TOKENS:
        raise ValueError("is a number of tokens, so 128K is written 128000; no model has fewer than 1000")
    return tokens


def fingerprint(credential: str) -> str:
    """The SHA-256 of a credential, under which it is compared and kept."""
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()


def _hash_key(secret: SecretStr) -> SecretStr:
    """`sha256:` and the hash of a tenant's key: the program knows no more of it. A hash stays as it is."""
    text = _check_secret(secret).get_secret_value()
    if not text.startswith(_HASHED):
        return SecretStr(_HASHED + fingerprint(text))
    if not _HASH.fullmatch(text.removeprefix(_HASHED).lower()):
        raise ValueError(
            "must have 64 hexadecimal digits after sha256:, as `printf %s KEY | sha256sum` writes them"
        )
    return SecretStr(text.lower())


Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
NonEmpty = Annotated[str, Field(min_length=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Host = Annotated[str, AfterValidator(_check_host)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Usd = Annotated[float, Field(ge=0, le=100_000)]
Window = Annotated[int, Field(ge=0), AfterValidator(_check_window)]


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Listen:
    host: Host = key("127.0.0.1", "Address of the data port; 0.0.0.0 listens on all addresses.")
    port: Port = key(8080, "Data port; 0 chooses a free one.")
    max_body_bytes: PositiveInt = key(64 * MEBIBYTE, "Larger requests are refused with 413.")
    hosts: tuple[NonEmpty, ...] = bound(
        (), "With an api_key, no tenants, on loopback: further hosts in URLs."
    )
    origins: tuple[NonEmpty, ...] = bound(
        (), "There, too: origins of web pages that may send requests, such as https://chat.example."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Admin:
    host: Host = key("127.0.0.1", "Address of the admin port.")
    port: Port = key(8081, "Admin port, which also serves /metrics; 0 chooses a free one.")
    token: Secret | None = key(None, "Bearer token for the admin port; empty or null: no token is needed.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Log:
    format: Literal["text", "json"] = key("text", "text, or json: one object a line, with ids as fields.")
    level: Literal["debug", "info", "warning", "error"] = key(
        "info", "debug (a line for each request), info, warning or error. See --log-level."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Traces:
    endpoint: Annotated[str, AfterValidator(_check_endpoint)] | None = bound(
        None, "OTLP collector (HTTP), such as http://127.0.0.1:4318; null: no traces. Needs [otel]."
    )
    headers: dict[NonEmpty, Secret] = bound({}, "Headers of the requests to it, such as its key.")
    sample: Annotated[float, Field(ge=0, le=1)] = bound(
        1.0, "Share of traces that is sent; a trace that a client began follows the client."
    )
    service: NonEmpty = bound("context-window-gateway", "Its service.name in traces.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class HookTarget:
    url: Annotated[str, AfterValidator(_check_hook_url)] = Field(
        repr=False, description="Receives a POST with JSON; redirects are not followed."
    )
    secret: Secret | None = key(None, "Signs timestamp and body (HMAC-SHA256); empty or null: no signature.")
    timeout_seconds: PositiveFloat = key(5, "Longest wait for its response; a later one is ignored.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class HookTargets:
    pre_compact: tuple[HookTarget, ...] = key((), "Called before a summary; may add instructions or veto it.")
    session_start: tuple[HookTarget, ...] = key((), "Called after a compaction, as its conversation goes on.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Retention:
    days: Annotated[float, Field(gt=0, le=3650)] = key(7, "Days without use until a conversation is deleted.")
    originals_bytes: PositiveInt = bound(256 * MEBIBYTE, "Disk space for originals; the oldest go first.")
    search_bytes: PositiveInt = bound(
        512 * MEBIBYTE, "Disk space for the search index over originals; the oldest part goes first."
    )
    named_bytes: PositiveInt = bound(
        256 * MEBIBYTE, "Disk space for threads and responses that requests only name; the oldest go first."
    )

    @property
    def seconds(self) -> float:
        return self.days * 86_400


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Cache:
    """Sizes of the caches in memory. What is dropped from a cache is read or computed again."""

    bodies: PositiveInt = bound(256, "Conversations whose newest request body is kept for comparison.")
    bodies_bytes: PositiveInt = bound(64 * MEBIBYTE, "Memory for these bodies; older ones are parsed again.")
    facts_bytes: PositiveInt = bound(
        2 * MEBIBYTE, "Memory for messages that were rendered: shortened ones, and those of summaries."
    )
    records_bytes: PositiveInt = bound(4 * MEBIBYTE, "Memory for state that is also in the store.")
    named_bytes: PositiveInt = bound(
        24 * MEBIBYTE, "Memory for threads and responses that requests only name (previous_response_id)."
    )
    activity_bytes: PositiveInt = bound(16 * MEBIBYTE, "Memory for what operators see of each conversation.")
    sessions_bytes: PositiveInt = bound(
        16 * MEBIBYTE, "Memory for requests that wait to be read for their session."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Bounds:
    """What requests may cost this process, far above what any real client needs."""

    bodies_bytes: PositiveInt = bound(
        256 * MEBIBYTE, "Memory for all request bodies under way; beyond it requests wait, then get 503."
    )
    summaries: PositiveInt = bound(16, "Summaries made at once; others wait, those of waiting clients first.")
    summaries_per_tenant: PositiveInt = bound(8, "Summaries made at once for one tenant, or one caller key.")
    connections: PositiveInt = bound(
        4_096, "Connections, at most half of the file descriptors; others get 503."
    )
    connections_per_address: PositiveInt = bound(
        1_024, "Open connections from one address; raise it behind a load balancer that needs more."
    )
    head_bytes: Annotated[int, Field(ge=1 << 13)] = bound(256 << 10, "Largest head of a request; else 431.")
    head_seconds: PositiveFloat = bound(30, "Time for the head of a request from its first byte; then 408.")
    stall_seconds: PositiveFloat = bound(
        60, "Longest pause of a client that sends or reads; then it is cut off."
    )
    messages: PositiveInt = bound(20_000, "Messages or input items; a request with more passes unread.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Keepalive:
    after_seconds: PositiveFloat = bound(
        5, "Silence before each keep-alive; the first commits the status 200."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class UpstreamSection:
    """Where an upstream is, how it is reached, and with what."""

    base_url: Annotated[str, AfterValidator(_check_base_url)] = Field(
        description="Requests go to base_url + the path without a leading /v1."
    )
    api_key: Secret | None = key(None, "Replaces the caller's credential; null: the caller's is forwarded.")
    formats: Annotated[frozenset[FormatName], Field(min_length=1)] = key(
        frozenset(WIRE_FORMATS),
        "Wire formats that go to it: chat, responses (Codex), messages (Claude Code).",
        shown=list(WIRE_FORMATS),
    )
    allow: tuple[Annotated[str, AfterValidator(_check_allowed)], ...] = key(
        (), "With api_key: further paths for callers, besides those that run a model; * opens all."
    )
    auth: AuthForm | None = bound(
        None, "How api_key is sent: bearer, api-key, x-api-key; null: by wire format."
    )
    headers: dict[
        Annotated[str, AfterValidator(_check_header_name)],
        Annotated[SecretStr, AfterValidator(_check_header_value)],
    ] = bound({}, "Sent with each request, in place of the caller's of that name.")
    query: dict[NonEmpty, SecretStr] = bound({}, "Added to each URL, in place of the caller's of that name.")
    include_usage: bool = bound(True, "Request usage in streams (include_usage) if the caller did not.")
    discover: bool = bound(True, "Query its /v1/models in the background for limits that are not configured.")
    max_body_bytes: PositiveInt | None = bound(None, "Largest request body that it accepts; null: unknown.")
    max_images: PositiveInt | None = bound(None, "Most images that it accepts in one request; null: unknown.")
    connect_seconds: PositiveFloat = bound(10, "Longest wait for a connection.")
    idle_seconds: PositiveFloat = bound(600, "Longest silence of the upstream until a request fails.")
    ca_file: NonEmpty | None = bound(None, "PEM file of authorities that vouch for it; null: the system's.")
    client_cert: NonEmpty | None = bound(None, "PEM file with certificate and key that are shown to it.")
    proxy: Literal["off"] | Annotated[str, AfterValidator(_check_proxy)] | None = bound(
        None,
        "URL of an HTTP proxy to it; off: none; null: by HTTPS_PROXY, HTTP_PROXY, NO_PROXY.",
        hidden=True,
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class UpstreamSettings(UpstreamSection):
    name: str
    # The tenant whose own `api_key` is; None: all callers share it.
    key_owner: str | None = None


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class ModelPrice:
    """US dollars for a million tokens."""

    input: Usd = Field(description="US dollars for a million tokens of the prompt.")
    cached: Usd | None = key(None, "For those that the upstream reads from its cache; null: as input.")
    write: Usd | None = key(None, "For those that it writes to its cache; null: as input.")
    output: Usd = Field(description="For a million tokens of the reply, with its reasoning.")

    def name(self, name: str) -> Price:
        """The price, under the name that counts of money show."""
        return Price(
            input=self.input,
            output=self.output,
            cached_input=self.cached,
            cache_write=self.write,
            name=name,
        )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class ModelRule:
    """Limits, a price or a policy of the models that match a pattern. The first match wins for each."""

    match: Annotated[NonEmpty, AfterValidator(_check_pattern)] = Field(
        description="Pattern for model names with *, ? and [abc]; case-sensitive."
    )
    upstream: NonEmpty | None = key(None, "Applies at this upstream only; null: at every one.")
    context: Window | None = key(None, "Tokens of prompt and reply together; null or 0: not set.")
    input: Window | None = key(None, "Tokens of the prompt, if limited separately; null or 0: not set.")
    output: NonNegativeInt | None = key(None, "Tokens of the longest reply; null or 0: not set.")
    price: ModelPrice | None = key(None, "US dollars for a million tokens; null: not set.")
    policy: NonEmpty | None = key(None, "Policy for these models; null: the tenant's.")

    @property
    def is_about_limits(self) -> bool:
        """A rule with a policy or a price alone does not override the limits of a later rule."""
        return (self.policy is None and self.price is None) or self.limits != Limits()

    def applies_to(self, model: str, upstream: str) -> bool:
        return self.upstream in (None, upstream) and fnmatch.fnmatchcase(model, self.match)

    def nearly_applies_to(self, model: str, upstream: str) -> bool:
        """Whether it would apply if case did not matter, and if `.*` meant what it does elsewhere."""
        pattern = self.match.replace(".*", "*").casefold()
        return self.upstream in (None, upstream) and fnmatch.fnmatchcase(model.casefold(), pattern)

    @property
    def limits(self) -> Limits:
        return Limits(context=self.context, input=self.input, output=self.output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quota:
    """What a tenant may use; None: as much as it likes."""

    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    summary_calls_per_hour: int | None = None
    summary_tokens_per_hour: int | None = None

    @property
    def limits_requests(self) -> bool:
        return self.requests_per_minute is not None or self.concurrent_requests is not None

    @property
    def limits_summaries(self) -> bool:
        return self.summary_calls_per_hour is not None or self.summary_tokens_per_hour is not None


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Allowance:
    """What all summaries of a tenant may use. Beyond it, old turns become digests."""

    calls_per_hour: NonNegativeInt | None = key(None, "Summary calls in an hour; 0: none; null: no limit.")
    tokens_per_hour: NonNegativeInt | None = key(
        None, "Tokens of these calls, prompt and reply; null: no limit."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class TenantSettings:
    name: NonEmpty = Field(description="State is kept under it; shown in events, hooks and the admin API.")
    # As `sha256:` and the hash, whatever the file has.
    keys: Annotated[tuple[Annotated[SecretStr, AfterValidator(_hash_key)], ...], Field(min_length=1)] = Field(
        description="The credentials that its callers send, each as text or as sha256: and its hash."
    )
    upstream: NonEmpty | None = key(None, "Its upstream; null: the first that supports the wire format.")
    api_key: Secret | None = key(None, "Its own credential at its upstream, instead of all others.")
    policy: NonEmpty = key("default", "Its policy, by name.")
    models: tuple[ModelRule, ...] = key((), "Rules for this tenant; they come before those for all tenants.")
    requests_per_minute: PositiveInt | None = key(
        None, "Requests in a minute, in all processes; null: no limit."
    )
    concurrent_requests: PositiveInt | None = key(None, "Requests at once, in all processes; null: no limit.")
    summary_budget: Allowance = section(Allowance, "What its summaries may use in an hour.")

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The SHA-256 of each key."""
        return tuple(each.get_secret_value().removeprefix(_HASHED) for each in self.keys)

    @property
    def quota(self) -> Quota:
        return Quota(
            requests_per_minute=self.requests_per_minute,
            concurrent_requests=self.concurrent_requests,
            summary_calls_per_hour=self.summary_budget.calls_per_hour,
            summary_tokens_per_hour=self.summary_budget.tokens_per_hour,
        )


@dataclass(config=STRICT, frozen=True, kw_only=True)
class FileSettings:
    """The whole file."""

    listen: Listen = section(Listen, "The data port, for clients.")
    admin: Admin = section(Admin, "The admin port, for operators.")
    store: Annotated[str, AfterValidator(_check_store)] = key(
        "disk:.gateway",
        "Where state is kept: disk:PATH, memory:, redis://HOST:PORT/DB or rediss:// (with TLS).",
        hidden=True,
    )
    log: Log = section(Log, "The log, on standard error.")
    hooks: HookTargets = section(HookTargets, "Webhooks called before and after compactions.")
    retention: Retention = section(Retention, "How long state is kept.")
    mcp: bool = key(True, "Clients may search originals at /mcp. Needs [mcp]; false: the path is relayed.")
    drain_seconds: Annotated[float, Field(ge=0)] = key(
        8, "Time for open requests to finish at shutdown; containers are killed after 10 s."
    )
    upstreams: Mapping[NonEmpty, UpstreamSection] = section(dict, "The model APIs, by a name of your choice.")
    models: tuple[ModelRule, ...] = key(
        (), "Limits, prices and policies by model; the first match wins, before the bundled tables."
    )
    policies: dict[NonEmpty, Policy] = section(
        dict, "What to do when a window fills up; default always exists."
    )
    tenants: tuple[TenantSettings, ...] = key((), "Who may call; empty: each caller key is its own tenant.")
    response_headers: bool = bound(True, "Responses have x-gateway-* headers (conversation, plan, …).")
    keepalive: Keepalive = section(Keepalive, "Signs to clients that wait for a compaction.", part="operator")
    bounds: Bounds = section(Bounds, "What requests may cost this process.", part="operator")
    cache: Cache = section(Cache, "Caches in memory.", part="operator")
    traces: Traces = section(Traces, "OpenTelemetry: what each request took.", part="operator")


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Settings(FileSettings):
    """What the program runs with: file, presets, environment and command line together.

    Every upstream and policy that is named here exists. There is at least one upstream, in the order of the
    file, and always a policy "default".
    """

    upstreams: Mapping[NonEmpty, UpstreamSettings]
    # What is allowed, but hardly meant.
    warnings: tuple[Problem, ...] = ()
    # "FILE:LINE" of each rule in `models`.
    model_origins: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def served_formats(self) -> Sequence[FormatName]:
        """Those that an upstream supports."""
        return [
            name for name in WIRE_FORMATS if any(name in each.formats for each in self.upstreams.values())
        ]

    def choose_upstream(self, format_name: str | None) -> UpstreamSettings:
        """The first that supports the wire format; the first of all for no format, or if none supports it."""
        found = (each for each in self.upstreams.values() if format_name in (None, *each.formats))
        return next(found, None) or next(iter(self.upstreams.values()))
