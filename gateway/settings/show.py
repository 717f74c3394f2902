"""What the settings mean, without secrets: in words, for `refold check` and in part for the screen at the
start; and as values, for `--json`.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from gateway.core.policy import Policy
from gateway.settings.checks import is_loopback
from gateway.settings.load import BUILT_IN_UPSTREAMS
from gateway.settings.schema import WIRE_FORMATS, Settings, TenantSettings
from gateway.store.redis_address import is_redis, parse_address


def render_summary(settings: Settings) -> str:
    """What a settings file means, for `refold check`."""
    lines = [
        ("listen", f"{settings.listen.host}:{settings.listen.port}"),
        ("store", f"{show_store(settings.store)}, kept for {settings.retention.days:g} days"),
        *list_what_it_does(settings),
        ("texts", describe_texts(settings)),
        ("models", f"rules: {len(settings.models)}"),
        ("tenants", describe_tenants(settings)),
        *(("tenant", _describe_tenant(tenant)) for tenant in settings.tenants),
    ]
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def describe_exposure(settings: Settings) -> str | None:
    """What it means that others can reach the data port and need no key; None if they cannot, or need one."""
    listen = settings.listen
    if settings.tenants or is_loopback(listen.host):
        return None
    owners = [upstream.name for upstream in settings.upstreams.values() if upstream.api_key]
    spent = f", and is served with the api_key of {', '.join(owners)}" if owners else ""
    return (
        f"port {listen.port} on {listen.host} is open to everybody who can reach it: no `tenants` are set, "
        f"so a caller needs no key of yours. Each made-up key is a tenant of its own, and is read and "
        f"planned for{spent}. Set `tenants`, or listen on 127.0.0.1, or let only your clients reach the port"
    )


def is_for_this_machine_only(settings: Settings) -> bool:
    """Whether both ports listen on loopback addresses, for one person's clients."""
    hosts = (settings.listen.host, settings.admin.host)
    return not settings.tenants and all(map(is_loopback, hosts))


def shows_texts(settings: Settings, policy: Policy) -> bool:
    """Whether the admin port shows texts of conversations with this policy to those without a token."""
    if policy.show_texts == "auto":
        return is_for_this_machine_only(settings)
    return policy.show_texts


def describe_texts(settings: Settings) -> str:
    """Who sees texts of conversations, and how to change that."""
    shown = [name for name, policy in settings.policies.items() if shows_texts(settings, policy)]
    if settings.admin.token is not None:
        return "shown to those who have the admin.token (page, commands)"
    if not shown:
        return "not shown (page, commands): this needs an admin.token, or show_texts: true in a policy"
    who = "on this machine" if is_for_this_machine_only(settings) else "without a token"
    off = ", ".join(f"{name}: {{show_texts: false}}" for name in shown)
    return f"shown {who} (page, commands); off: policies: {{{off}}}"


def list_what_it_does(settings: Settings) -> Iterator[tuple[str, str]]:
    for upstream in settings.upstreams.values():
        key = "uses its own key" if upstream.api_key else "forwards the caller's credential"
        formats = ", ".join(sorted(upstream.formats))
        yield "upstream", f"{upstream.name}: {upstream.base_url} ({formats}; {key})"
    yield from _describe_routes(settings)
    for name, policy in settings.policies.items():
        yield "policy", f"{name}: {_describe_policy(policy)}"


def describe_tenants(settings: Settings) -> str:
    return str(len(settings.tenants) or "none: each caller key is a tenant of its own")


def _describe_tenant(tenant: TenantSettings) -> str:
    """Such as `team-a: keys: 2, upstream openai with its own key, policy careful, requests a minute: 600`."""
    parts = [f"keys: {len(tenant.fingerprints)}"]
    if tenant.upstream is not None:
        own = " with its own key" if tenant.api_key is not None else ""
        parts.append(f"upstream {tenant.upstream}{own}")
    parts.append(f"policy {tenant.policy}")
    quota = tenant.quota
    counted = (
        ("rules", len(tenant.models) or None),
        ("requests a minute", quota.requests_per_minute),
        ("requests at once", quota.concurrent_requests),
        ("summary calls an hour", quota.summary_calls_per_hour),
        ("summary tokens an hour", quota.summary_tokens_per_hour),
    )
    parts += [f"{name}: {number:,}" for name, number in counted if number is not None]
    return f"{tenant.name}: {', '.join(parts)}"


def _describe_routes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Where each wire format goes, if the upstreams of the settings replace a built-in one."""
    used = {upstream.base_url for upstream in settings.upstreams.values()}
    addresses = [str(section["base_url"]) for section in BUILT_IN_UPSTREAMS.values()]
    replaced = [urlsplit(address).netloc for address in addresses if address not in used]
    if not replaced:
        return
    routes: dict[str, list[str]] = {}
    for name in WIRE_FORMATS:
        upstream = settings.choose_upstream(name)
        place = upstream.name if name in upstream.formats else f"{upstream.name} (not in its formats)"
        routes.setdefault(place, []).append("messages (Claude Code)" if name == "messages" else name)
    shown = [f"{', '.join(names)} go to {place}" for place, names in routes.items()]
    unused = replaced[0] if len(replaced) == 1 else "the built-in upstreams"
    yield "formats", f"{'; '.join(shown)}; none to {unused}"


def _describe_policy(policy: Policy) -> str:
    switched_off = [
        name for name, on in (("auto", policy.compaction.auto), ("prune", policy.compaction.prune)) if not on
    ]
    switches = [*(f"{name} off" for name in switched_off), *(["commands on"] if policy.commands else [])]
    # Without automatic compaction it decides nothing.
    economy = [f"economy {policy.economy:g}"] if policy.compaction.auto and policy.economy else []
    recall = [f"recall {policy.recall}"] if policy.recall != "off" else []
    return ", ".join([f"preset {policy.preset}", *switches, *economy, *recall])


def show_store(url: str) -> str:
    """Without user and password."""
    return parse_address(url).shown if is_redis(url) else url


# For programs.


def list_facts(settings: Settings) -> dict[str, Any]:
    """What a settings file means."""
    admin = settings.admin
    return {
        "listen": {"host": settings.listen.host, "port": settings.listen.port},
        "admin": {"host": admin.host, "port": admin.port, "has_token": admin.token is not None},
        "store": show_store(settings.store),
        "retention_days": settings.retention.days,
        "upstreams": [
            {
                "name": upstream.name,
                "base_url": upstream.base_url,
                "formats": sorted(upstream.formats),
                "has_api_key": upstream.api_key is not None,
                "discover": upstream.discover,
            }
            for upstream in settings.upstreams.values()
        ],
        "policies": [
            {
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
            for name, policy in settings.policies.items()
        ],
        "rules": list_rules(settings),
        "tenants": list_tenants(settings),
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


def list_tenants(settings: Settings) -> list[dict[str, Any]]:
    return [
        {
            "name": tenant.name,
            "keys": len(tenant.fingerprints),
            "upstream": tenant.upstream,
            "has_api_key": tenant.api_key is not None,
            "policy": tenant.policy,
        }
        for tenant in settings.tenants
    ]
