"""What `check`, `models` and `tenants list` print with `--json`: the settings as values, without secrets."""

from dataclasses import asdict
from typing import Any

from gateway.core.policy import Policy
from gateway.settings import Settings, TenantSettings, UpstreamSettings, describe_exposure, shows_texts
from gateway.settings.show import show_store


def list_facts(settings: Settings) -> dict[str, Any]:
    """What a settings file means."""
    return {
        "listen": {"host": settings.listen.host, "port": settings.listen.port},
        "admin": {
            "host": settings.admin.host,
            "port": settings.admin.port,
            "has_token": settings.admin.token is not None,
        },
        "store": show_store(settings.store),
        "retention_days": settings.retention.days,
        "upstreams": [_list_upstream(upstream) for upstream in settings.upstreams.values()],
        "policies": [_list_policy(settings, name, policy) for name, policy in settings.policies.items()],
        "rules": list_rules(settings),
        "tenants": list_tenant_facts(settings),
        "warnings": list_warnings(settings),
    }


def list_warnings(settings: Settings) -> list[str]:
    """Those of the file, and what others can reach."""
    exposure = describe_exposure(settings)
    return [*map(str, settings.warnings), *([exposure] if exposure is not None else [])]


def list_rules(settings: Settings) -> list[dict[str, Any]]:
    """The rules of `models`, in their order."""
    return [
        {"origin": origin, **asdict(rule)}
        for origin, rule in zip(settings.model_origins, settings.models, strict=True)
    ]


def list_tenant_facts(settings: Settings) -> list[dict[str, Any]]:
    return [_list_tenant(tenant) for tenant in settings.tenants]


def _list_tenant(tenant: TenantSettings) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "keys": len(tenant.fingerprints),
        "upstream": tenant.upstream,
        "has_api_key": tenant.api_key is not None,
        "policy": tenant.policy,
    }


def _list_upstream(upstream: UpstreamSettings) -> dict[str, Any]:
    return {
        "name": upstream.name,
        "base_url": upstream.base_url,
        "formats": sorted(upstream.formats),
        "has_api_key": upstream.api_key is not None,
        "discover": upstream.discover,
    }


def _list_policy(settings: Settings, name: str, policy: Policy) -> dict[str, Any]:
    return {
        "name": name,
        "preset": policy.preset,
        "auto": policy.compaction.auto,
        "prune": policy.compaction.prune,
        "commands": policy.commands,
        "show_texts": policy.show_texts,
        "shows_texts": shows_texts(settings, policy),
        "economy": policy.economy,
        "recall": policy.recall,
    }
