"""The schema of a settings file: every key with its type, range and default.

Validates single values; `crosscheck` checks how they fit together, and `policy_schema` has the policies. Each
description is a line of `config/reference.yaml`.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.settings.diagnostics_schema import Embeddings, Log, Traces
from gateway.settings.model_rule import ModelRule
from gateway.settings.policy_schema import PolicySection
from gateway.settings.section import Section
from gateway.settings.tenant_schema import TenantSection
from gateway.settings.upstream_schema import UpstreamSection
from gateway.settings.values import NonEmpty, PositiveFloat, PositiveInt, Secret, check_url
from gateway.store.redis_address import FORM, is_redis, parse_address

MEBIBYTE = 1 << 20

_LOCAL_STORE = re.compile(r"disk:.+|memory:")


def _check_hook_url(url: str) -> str:
    """Unchanged. Errors do not show the URL, because its path or query may contain a secret."""
    check_url(url.partition("?")[0])
    if "#" in url or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not contain spaces or a fragment")
    return url


def _check_store(url: str) -> str:
    """Errors do not show the URL, because it could contain a password."""
    if is_redis(url):
        parse_address(url)
    elif not _LOCAL_STORE.fullmatch(url):
        raise ValueError(f"must be disk:PATH, memory: or {FORM}")
    return url


def _check_host(host: str) -> str:
    if not host or any(character.isspace() or character in "/[]@" for character in host):
        raise ValueError("must be an address or a host name, without brackets or a port")
    return host


Host = Annotated[str, AfterValidator(_check_host)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class Listen(Section):
    host: Host = Field(
        default="127.0.0.1", description="Address of the data port; 0.0.0.0 listens on all addresses."
    )
    port: Port = Field(default=8080, description="Data port; 0 chooses a free one.")
    max_body_bytes: PositiveInt = Field(
        default=64 * MEBIBYTE, description="Larger requests are refused with 413."
    )
    hosts: list[NonEmpty] = Field(
        default_factory=list,
        description="On loopback with an api_key and no tenants: further host names in URLs of clients.",
    )
    origins: list[NonEmpty] = Field(
        default_factory=list,
        description="There, too: origins of web pages that may send requests, such as https://chat.example.",
    )


class Admin(Section):
    host: Host = Field(default="127.0.0.1", description="Address of the admin port.")
    port: Port = Field(
        default=8081, description="Admin port, which also serves /metrics; 0 chooses a free one."
    )
    token: Secret | None = Field(
        default=None, description="Bearer token for the admin port; empty or null: no token is needed."
    )


class HookTarget(Section):
    url: Annotated[str, AfterValidator(_check_hook_url)] = Field(
        repr=False, description="Receives a POST with JSON; redirects are not followed."
    )
    secret: Secret | None = Field(
        default=None, description="Signs timestamp and body (HMAC-SHA256); empty or null: no signature."
    )
    timeout_seconds: PositiveFloat = Field(
        default=5, description="Longest wait for its response; a later one is ignored."
    )


class HookTargets(Section):
    pre_compact: list[HookTarget] = Field(
        default_factory=list, description="Called before each summary; may add instructions or veto it."
    )
    session_start: list[HookTarget] = Field(
        default_factory=list, description="Called after each compaction, when the conversation continues."
    )


class Retention(Section):
    days: Annotated[float, Field(gt=0, le=3650)] = Field(
        default=7, description="Days without use after which the state of a conversation is deleted."
    )
    originals_bytes: PositiveInt = Field(
        default=256 * MEBIBYTE, description="Disk space for all originals; the oldest are deleted first."
    )
    search_bytes: PositiveInt = Field(
        default=512 * MEBIBYTE,
        description="Disk space for the search index over originals; the longest unused part goes first.",
    )
    search_bytes_per_tenant: PositiveInt = Field(
        default=256 * MEBIBYTE, description="The same for one tenant, or for one caller key."
    )
    named_bytes: PositiveInt = Field(
        default=256 * MEBIBYTE,
        description="Disk space for threads and responses that requests only name; the oldest go first.",
    )

    @property
    def seconds(self) -> float:
        return self.days * 86_400


class Cache(Section):
    """Sizes of the caches in memory. What is dropped from a cache is read or computed again."""

    bodies: PositiveInt = Field(
        default=256, description="Conversations whose newest request body is kept for comparison."
    )
    bodies_bytes: PositiveInt = Field(
        default=64 * MEBIBYTE, description="Memory for these bodies; older ones are parsed again."
    )
    facts_bytes: PositiveInt = Field(
        default=2 * MEBIBYTE, description="Memory for facts about single messages."
    )
    records_bytes: PositiveInt = Field(
        default=4 * MEBIBYTE, description="Memory for state that is also in the store."
    )
    named_bytes: PositiveInt = Field(
        default=24 * MEBIBYTE,
        description="Memory for threads and responses that requests only name (previous_response_id).",
    )
    activity_bytes: PositiveInt = Field(
        default=16 * MEBIBYTE,
        description="Memory for the numbers that operators see of each conversation.",
    )
    sessions_bytes: PositiveInt = Field(
        default=16 * MEBIBYTE,
        description="Memory for what was read of each session; what is not there is read again.",
    )


class Bounds(Section):
    """What requests may cost this process, far above what any real client needs."""

    bodies_bytes: PositiveInt = Field(
        default=256 * MEBIBYTE,
        description="Memory for all request bodies under way; beyond it requests wait, then get 503.",
    )
    summaries: PositiveInt = Field(
        default=16, description="Summaries made at once; others wait, those of waiting clients first."
    )
    summaries_per_tenant: PositiveInt = Field(
        default=8, description="Summaries made at once for one tenant, or for one caller key."
    )
    connections: PositiveInt = Field(
        default=4_096,
        description="Open connections, at most half of the file descriptors; beyond it new ones get 503.",
    )
    connections_per_address: PositiveInt = Field(
        default=1_024,
        description="Open connections from one address; raise it behind a load balancer that needs more.",
    )
    head_bytes: Annotated[int, Field(ge=1 << 13)] = Field(
        default=256 << 10, description="Largest head of a request; a larger one gets 431."
    )
    head_seconds: PositiveFloat = Field(
        default=30, description="Time for the head of a request from its first byte on, then 408."
    )
    stall_seconds: PositiveFloat = Field(
        default=60,
        description="Longest pause of a client that sends a body or reads a response; then it is cut off.",
    )
    messages: PositiveInt = Field(
        default=20_000, description="Messages or input items; a request with more passes unread."
    )
    fields: PositiveInt = Field(
        default=1_000, description="Fields beside the messages; a request with more passes unread."
    )
    values: PositiveInt = Field(
        default=250_000, description="JSON values new in a request; one with more passes unread."
    )
    depth: Annotated[int, Field(gt=0, le=500)] = Field(
        default=200, description="Nesting inside a message; a request with more passes unread."
    )


class Keepalive(Section):
    after_seconds: PositiveFloat = Field(
        default=5, description="Silence before the first keep-alive, which commits the status 200."
    )
    every_seconds: PositiveFloat = Field(default=5, description="Time between two keep-alives.")


class FileSettings(Section):
    """The whole file. If it has no `upstreams`, `load` adds the built-in ones."""

    listen: Listen = Field(default_factory=Listen, description="The data port, for clients.")
    admin: Admin = Field(default_factory=Admin, description="The admin port, for operators.")
    store: Annotated[str, AfterValidator(_check_store)] = Field(
        default="disk:.gateway",
        description="Where state is kept: disk:PATH, memory:, redis://HOST:PORT/DB or rediss:// (with TLS).",
    )
    log: Log = Field(default_factory=Log, description="The log, on standard error.")
    traces: Traces = Field(
        default_factory=Traces, description="OpenTelemetry: what each request took, for a collector."
    )
    hooks: HookTargets = Field(
        default_factory=HookTargets, description="Webhooks called before and after compactions."
    )
    retention: Retention = Field(default_factory=Retention, description="How long state is kept.")
    embeddings: Embeddings = Field(
        default_factory=Embeddings, description="Search over originals by meaning, too; off by default."
    )
    response_headers: bool = Field(
        default=True,
        description="Whether responses have x-gateway-* headers (conversation, plan, tokens, warning).",
    )
    mcp: bool = Field(
        default=True,
        description="Whether clients may search originals at /mcp. Needs [mcp]; false: this path is relayed.",
    )
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=8,
        description="Time for open requests to finish at shutdown; containers are killed after 10 s.",
    )
    keepalive: Keepalive = Field(
        default_factory=Keepalive, description="Keep-alives to clients that wait for a compaction."
    )
    cache: Cache = Field(default_factory=Cache, description="Caches in memory.")
    bounds: Bounds = Field(default_factory=Bounds, description="What requests may cost this process.")
    upstreams: dict[NonEmpty, UpstreamSection] = Field(
        default_factory=dict, description="The model APIs, each under a name of your choice."
    )
    models: list[ModelRule] = Field(
        default_factory=list,
        description="Limits, prices and policies by model; the first match wins, before the bundled tables.",
    )
    policies: dict[NonEmpty, PolicySection] = Field(
        default_factory=dict, description="What to do when a window fills up; 'default' always exists."
    )
    tenants: list[TenantSection] = Field(
        default_factory=list, description="Who may call; empty: each caller key is a tenant of its own."
    )
