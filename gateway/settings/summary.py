"""What the settings mean, without secrets: for `gateway check`, and for the screen at the start."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.core.policy import Policy
from gateway.settings.crosscheck import is_loopback
from gateway.settings.effective import Settings, UpstreamSettings

# A listener on all addresses is reached on this machine at its loopback address.
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True)
class Places:
    """Where a gateway listens by now, and what it knows from the start."""

    port: int
    # 0 if the admin port could not be opened.
    admin_port: int
    # Models whose window the bundled table has.
    windows: int
    # Where state is kept; None in memory.
    directory: Path | None


def render_summary(settings: Settings) -> str:
    """What a settings file means, for `gateway check`."""
    lines = [
        ("listen", f"{settings.listen.host}:{settings.listen.port}"),
        ("store", f"{_without_password(settings.store)}, kept for {settings.retention.days:g} days"),
        *_list_what_it_does(settings),
        ("models", f"rules: {len(settings.models)}"),
        ("tenants", _describe_tenants(settings)),
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


def render_start_screen(settings: Settings, places: Places) -> str:
    """Where to point a client, where to look, and what it does, once the gateway listens."""
    origin = f"http://{_show_host(settings.listen.host)}:{places.port}"
    lines = [
        ("clients", f"base_url {origin}/v1 (ANTHROPIC_BASE_URL {origin})"),
        ("admin", _describe_admin(settings, places.admin_port)),
        *_list_what_it_does(settings),
        ("models", _describe_windows(settings, places.windows)),
        ("tenants", _describe_tenants(settings)),
        ("state", _describe_state(settings, places.directory)),
    ]
    return "\n".join(
        ["The gateway is running. Ctrl-C ends it.", *(f"  {name:9} {text}" for name, text in lines)]
    )


def _list_what_it_does(settings: Settings) -> Iterator[tuple[str, str]]:
    for upstream in settings.upstreams.values():
        yield "upstream", _describe_upstream(upstream)
    for name, policy in settings.policies.items():
        yield "policy", f"{name}: {_describe_policy(policy)}"


def _describe_windows(settings: Settings, known: int) -> str:
    rules = f"{len(settings.models)} rule{'' if len(settings.models) == 1 else 's'}"
    asked = (
        "; upstreams are asked for theirs" if any(up.discover for up in settings.upstreams.values()) else ""
    )
    return f"windows of {known:,} models are known, {rules} of yours{asked}"


def _describe_tenants(settings: Settings) -> str:
    return str(len(settings.tenants) or "none: each caller key is a tenant of its own")


def _describe_state(settings: Settings, directory: Path | None) -> str:
    if directory is None:
        return "in memory, lost at the next restart"
    return f"{directory}, kept for {settings.retention.days:g} days"


def _describe_admin(settings: Settings, port: int) -> str:
    if not port:
        return "not open, see the log"
    token = ", with its token" if settings.admin.token is not None else ""
    return f"http://{_show_host(settings.admin.host)}:{port}/api/conversations, /api/events, /metrics{token}"


def _show_host(host: str) -> str:
    """A host that a client on this machine can use, as in a URL."""
    if host in _ANY_ADDRESS:
        return _ANY_ADDRESS[host]
    return f"[{host}]" if ":" in host else host


def _describe_upstream(upstream: UpstreamSettings) -> str:
    key = "uses its own key" if upstream.api_key else "forwards the caller's credential"
    return f"{upstream.name}: {upstream.base_url} ({', '.join(sorted(upstream.formats))}; {key})"


def _describe_policy(policy: Policy) -> str:
    switched_off = [name for name, on in (("auto", policy.auto), ("prune", policy.prune)) if not on]
    commands = ", commands on" if policy.commands else ""
    return f"preset {policy.name}" + "".join(f", {name} off" for name in switched_off) + commands


def _without_password(store: str) -> str:
    return re.sub(r"(?<=://)[^@]*@", "***@", store)
