"""The settings that the program runs with, combined from file, presets, environment and command line.

Values only. Secrets are `SecretStr`, which only `get_secret_value()` reveals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import SecretStr

from gateway.core.policy import Policy
from gateway.settings.diagnostics_schema import Embeddings, Log, Traces
from gateway.settings.errors import Problem
from gateway.settings.model_rule import ModelRule
from gateway.settings.schema import (
    Admin,
    Bounds,
    Cache,
    HookTargets,
    Keepalive,
    Listen,
    Retention,
)
from gateway.settings.upstream_schema import WIRE_FORMATS, AuthForm, FormatName


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    name: str
    # Without a trailing slash.
    base_url: str
    # None forwards the caller's credential.
    api_key: SecretStr | None
    # The tenant whose own this key is; None: all callers share it.
    key_owner: str | None = None
    # Paths that callers may use with this key besides those that run a model.
    allow: tuple[str, ...]
    formats: frozenset[FormatName]
    include_usage: bool
    discover: bool
    # Limits of one request; None if not configured.
    max_body_bytes: int | None
    max_images: int | None
    connect_seconds: float
    idle_seconds: float
    # How the key is sent; None: as the wire format wants it.
    auth: AuthForm | None = None
    # Sent with each request. The values may be secrets.
    headers: Mapping[str, SecretStr] = field(default_factory=dict)
    query: Mapping[str, SecretStr] = field(default_factory=dict)
    # PEM files; None: the system's authorities, and no certificate of ours.
    ca_file: str | None = None
    client_cert: str | None = None
    # A URL, which may hold a password, or "off"; None: as the environment says.
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class TenantSettings:
    name: str
    # The SHA-256 of each key.
    fingerprints: tuple[str, ...]
    # None: the first of `Settings.upstreams` that supports the wire format.
    upstream: str | None
    # Its own credential there.
    api_key: SecretStr | None
    policy: str
    # They come before `Settings.models`.
    models: tuple[ModelRule, ...]
    quota: Quota


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every upstream and policy that is named here exists."""

    listen: Listen
    admin: Admin
    # It may contain the password of a Redis server.
    store: str = field(repr=False)
    log: Log
    traces: Traces
    hooks: HookTargets
    retention: Retention
    embeddings: Embeddings
    response_headers: bool
    mcp: bool
    drain_seconds: float
    keepalive: Keepalive
    cache: Cache
    bounds: Bounds
    # At least one, in the order of the file.
    upstreams: Mapping[str, UpstreamSettings]
    models: tuple[ModelRule, ...]
    # Always contains "default".
    policies: Mapping[str, Policy]
    # If empty, every caller key is a tenant of its own.
    tenants: tuple[TenantSettings, ...]
    # What is allowed, but hardly meant.
    warnings: tuple[Problem, ...] = ()
    # "FILE:LINE" of each rule in `models`.
    model_origins: tuple[str, ...] = field(default=(), compare=False)

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
