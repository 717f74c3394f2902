"""A summary of the settings without secrets, printed by `gateway check` and at the start."""

import re
from collections.abc import Iterator

from gateway.core.policy import Policy
from gateway.settings.effective import Settings, UpstreamSettings


def render_summary(settings: Settings) -> str:
    return "\n".join(_lines(settings))


def _lines(settings: Settings) -> Iterator[str]:
    yield f"listen    {settings.listen.host}:{settings.listen.port}"
    yield f"store     {_without_password(settings.store)}, kept for {settings.retention.days:g} days"
    for upstream in settings.upstreams.values():
        yield f"upstream  {_describe_upstream(upstream)}"
    for name, policy in settings.policies.items():
        yield f"policy    {name}: {_describe_policy(policy)}"
    yield f"models    rules: {len(settings.models)}"
    yield f"tenants   {len(settings.tenants) or 'none: each caller key is a tenant of its own'}"


def _describe_upstream(upstream: UpstreamSettings) -> str:
    key = "uses its own key" if upstream.api_key else "forwards the caller's credential"
    return f"{upstream.name}: {upstream.base_url} ({', '.join(sorted(upstream.formats))}; {key})"


def _describe_policy(policy: Policy) -> str:
    switched_off = [name for name, on in (("auto", policy.auto), ("prune", policy.prune)) if not on]
    commands = ", commands on" if policy.commands else ""
    return f"preset {policy.name}" + "".join(f", {name} off" for name in switched_off) + commands


def _without_password(store: str) -> str:
    return re.sub(r"(?<=://)[^@]*@", "***@", store)
