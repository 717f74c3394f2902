"""What the program runs with: the file, the presets, the environment and the command line, put together.

Holds values only. Secrets are `SecretStr`: they show themselves to `get_secret_value()` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from gateway.core.policy import Policy
from gateway.settings.schema import (
    Admin,
    Cache,
    FormatName,
    HookTargets,
    Keepalive,
    Listen,
    ModelRule,
    Retention,
)


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """`base_url` has no trailing slash. `api_key` None: the caller's credential is forwarded.

    max_body_bytes, max_images: of one request; None where the operator did not say.
    """

    name: str
    base_url: str
    api_key: SecretStr | None
    formats: frozenset[FormatName]
    include_usage: bool
    discover: bool
    max_body_bytes: int | None
    max_images: int | None
    connect_seconds: float
    idle_seconds: float


@dataclass(frozen=True, kw_only=True)
class TenantSettings:
    """`upstream` None: the first upstream, in the order of `Settings.upstreams`, that speaks the format."""

    name: str
    keys: tuple[SecretStr, ...]
    upstream: str | None
    policy: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every upstream and policy that is mentioned by name exists.

    upstreams: at least one, in the order of the file. policies: always holds "default".
    tenants: none means that every caller key is its own tenant.
    """

    listen: Listen
    admin: Admin
    # It may hold the password of a Redis.
    store: str = field(repr=False)
    hooks: HookTargets
    retention: Retention
    response_headers: bool
    drain_seconds: float
    keepalive: Keepalive
    cache: Cache
    upstreams: Mapping[str, UpstreamSettings]
    models: tuple[ModelRule, ...]
    policies: Mapping[str, Policy]
    tenants: tuple[TenantSettings, ...]
