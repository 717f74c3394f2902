"""Checks whether the settings fit together; each single value is valid already.

What cannot work is refused. What is allowed, but most likely a mistake, becomes a warning, which `serve` and
`check` print.
"""

import fnmatch
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.core.policy import Policy, Pruning
from gateway.settings.files import Document, Location, Problem
from gateway.settings.schema import (
    CREDENTIAL_HEADERS,
    CREDENTIAL_PARAMETERS,
    WIRE_FORMATS,
    FormatName,
    Listen,
    ModelRule,
    Settings,
    TenantSettings,
    Traces,
)
from gateway.settings.validate import find_nearest, render_location

_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


_VARIABLES: Final = (
    *("GATEWAY_UPSTREAM", "GATEWAY_ADMIN_HOST", "GATEWAY_ADMIN_TOKEN"),
    *("GATEWAY_DISABLE_AUTOCOMPACT", "GATEWAY_DISABLE_PRUNE"),
)
# About two wrong letters. A cluster sets others, such as GATEWAY_SERVICE_HOST, for a service of that name.
_TYPO_SIMILARITY: Final = 0.85
_SHOWN_TENANTS: Final = 3
# The wire formats of the two APIs that are built in.
_SPOKEN: Final[Mapping[str, tuple[FormatName, ...]]] = {
    "api.openai.com": ("chat", "responses"),
    "api.anthropic.com": ("chat", "messages"),
}
_OTHERS: Final = {
    "api.openai.com": 'anthropic: {base_url: "https://api.anthropic.com/v1", formats: [messages]}',
    "api.anthropic.com": 'openai: {base_url: "https://api.openai.com/v1", formats: [chat, responses]}',
}
_REQUESTS: Final = {
    "chat": "chat completions",
    "responses": "responses, as Codex asks for them,",
    "messages": "messages, as Claude Code and the Anthropic SDKs send them,",
}
_CLIENTS_VARIABLES: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")


_MODEL_KEYS: Final = (
    *("model", "model_map", "upstream", "instructions", "extra_context", "message_chars", "kept_chars"),
    *("ride", "timeout_seconds", "max_calls", "deadline_seconds"),
)
_ADAPTIVE_KEYS: Final = ("client_margin", "growth_turns", "soft_minimum", "soft_maximum", "fewest_turns")
# Keys of a policy, and when they do nothing; why, from the policy.
_Vain = tuple[str, Sequence[str], Callable[[Policy], bool], str]
_VAIN: Final[Sequence[_Vain]] = (
    ("trigger", ("output_cap", "input_reserve"), lambda p: p.trigger.formula != "source", "trigger.formula"),
    ("trigger", ("at_line",), lambda p: p.trigger.formula == "adaptive", "trigger.formula"),
    ("trigger", ("soft_ratio",), lambda p: p.trigger.formula != "ratio", "trigger.formula"),
    ("trigger", ("hard_ratio",), lambda p: p.trigger.formula == "source", "trigger.formula"),
    ("trigger", _ADAPTIVE_KEYS, lambda p: p.trigger.formula != "adaptive", "trigger.formula"),
    ("keep", ("tail_tokens", "tail_ratio"), lambda p: p.keep.tail_window > 0, "keep.tail_window"),
    (
        "pruning",
        tuple(each.name for each in fields(Pruning)),
        lambda p: not p.compaction.prune,
        "compaction.prune",
    ),
    ("summary", _MODEL_KEYS, lambda p: p.summary.method != "model", "summary.method"),
    ("summary", ("model_map",), lambda p: p.summary.model is not None, "summary.model"),
    ("prompts", ("system", "instruction"), lambda p: p.summary.method != "model", "summary.method"),
    ("prompts", ("ride",), lambda p: p.summary.ride == "never", "summary.ride"),
    ("prompts", ("dropped",), lambda p: p.summary.method != "drop", "summary.method"),
    ("originals", ("days",), lambda p: not p.originals.keep, "originals.keep"),
    ("", ("economy",), lambda p: not p.compaction.auto, "compaction.auto"),
)
# What a rule may be for: the first that fits counts for each.
_PURPOSES: Final[Sequence[Callable[[ModelRule], bool]]] = (
    lambda rule: rule.is_about_limits,
    lambda rule: rule.policy is not None,
    lambda rule: rule.price is not None,
)
# Pairs of keys of which the first is not to be larger.
_ORDERED: Final = (
    ("trigger", "reserve_minimum", "reserve_maximum"),
    ("trigger", "soft_minimum", "soft_maximum"),
    ("summary", "timeout_seconds", "deadline_seconds"),
    ("bounds", "summaries_per_tenant", "summaries"),
    ("bounds", "connections_per_address", "connections"),
)


def find_conflicts(settings: Settings, document: Document) -> list[Problem]:
    checks = (
        _unknown_names,
        _impossible_limits,
        _duplicate_tenants,
        _duplicate_keys,
        _homeless_keys,
        _shared_out_keys,
        _open_credentials,
        _unreadable_certificates,
        _open_relay,
        _open_admin,
        _own_address,
        _missing_extra,
    )
    return [
        Problem(document.find_origin(location), f"{render_location(location)}: {text}")
        for check in checks
        for location, text in check(settings)
    ]


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    address = _parse_address(host)
    return address is not None and address.is_loopback


_Finding = tuple[Location, str]


def _unknown_names(settings: Settings) -> Iterator[_Finding]:
    upstreams = settings.upstreams.keys()
    policies = settings.policies.keys()
    for location, rule in _list_rules(settings):
        yield from _unknown_name((*location, "upstream"), rule.upstream, upstreams)
        yield from _unknown_name((*location, "policy"), rule.policy, policies)
    for name, policy in settings.policies.items():
        yield from _unknown_name(
            ("policies", name, "summary", "upstream"), policy.summary.upstream, upstreams
        )
    for index, tenant in enumerate(settings.tenants):
        yield from _unknown_name(("tenants", index, "upstream"), tenant.upstream, upstreams)
        yield from _unknown_name(("tenants", index, "policy"), tenant.policy, policies)


def _unknown_name(location: Location, name: str | None, known: Collection[str]) -> Iterator[_Finding]:
    if name is not None and name not in known:
        # The name itself is not shown: it could be a secret in the wrong place.
        yield (
            location,
            f"there is no such {location[-1]}; the nearest is {find_nearest(name, sorted(known))!r}",
        )


def _impossible_limits(settings: Settings) -> Iterator[_Finding]:
    for location, rule in _list_rules(settings):
        for key, tokens in (("input", rule.input), ("output", rule.output)):
            if tokens and rule.context and tokens > rule.context:
                text = "is larger than context, which holds prompt and reply together"
                yield (*location, key), text


def _list_rules(settings: Settings) -> Iterator[tuple[Location, ModelRule]]:
    """Those for all tenants, and those of each."""
    for index, rule in enumerate(settings.models):
        yield ("models", index), rule
    for position, tenant in enumerate(settings.tenants):
        for index, rule in enumerate(tenant.models):
            yield ("tenants", position, "models", index), rule


def _duplicate_tenants(settings: Settings) -> Iterator[_Finding]:
    first: dict[str, int] = {}
    for index, tenant in enumerate(settings.tenants):
        if first.setdefault(tenant.name, index) != index:
            yield ("tenants", index, "name"), f"same name as tenants[{first[tenant.name]}]"


def _duplicate_keys(settings: Settings) -> Iterator[_Finding]:
    """A key decides whose state is read, so two tenants must not share one, as text or as its hash."""
    first: dict[str, str] = {}
    for index, tenant in enumerate(settings.tenants):
        for position, key in enumerate(tenant.fingerprints):
            place = f"tenants[{index}].keys[{position}]"
            other = first.setdefault(key, place)
            if other != place:
                yield ("tenants", index, "keys", position), f"same key as {other}"


def _homeless_keys(settings: Settings) -> Iterator[_Finding]:
    """Without an upstream, the credential would go to every upstream that a request may choose."""
    for index, tenant in enumerate(settings.tenants):
        if tenant.api_key is not None and tenant.upstream is None:
            yield ("tenants", index, "api_key"), "needs the tenant's `upstream`, which this credential is for"


def _shared_out_keys(settings: Settings) -> Iterator[_Finding]:
    """Each of two providers could use at the other what is a key there, or a key of this gateway."""
    for index, tenant in enumerate(settings.tenants):
        takers = list_takers(settings, tenant)
        providers = {name_provider(settings.upstreams[name].base_url) for name in takers}
        if len(providers) > 1:
            yield (
                ("tenants", index, "keys"),
                f"would be sent as credentials to {' and to '.join(sorted(providers))}, because their "
                f"upstreams have no `api_key`; give them one, or name the tenant's `upstream`",
            )


def list_takers(settings: Settings, tenant: TenantSettings) -> list[str]:
    """The upstreams, by name, that get a key of this tenant as the caller's credential."""
    upstreams = settings.upstreams
    if tenant.api_key is not None:
        return []
    if tenant.upstream is not None:
        reached = [tenant.upstream] if tenant.upstream in upstreams else []
    else:
        reached = list_reached({name: each.formats for name, each in upstreams.items()})
    return [name for name in reached if upstreams[name].api_key is None]


def list_reached(formats: Mapping[str, Collection[FormatName]]) -> list[str]:
    """The upstreams that get requests of callers who name none: the first of each wire format. The others
    are for summaries, and for tenants. formats: of each upstream, by its name.
    """
    firsts = [next((name for name in formats if each in formats[name]), None) for each in WIRE_FORMATS]
    return [name for name in formats if name in firsts]


def _open_credentials(settings: Settings) -> Iterator[_Finding]:
    """With an `api_key`, callers reach what `allow` opens. A credential beside it would open everything."""
    for name, upstream in settings.upstreams.items():
        if upstream.api_key is not None:
            continue
        found = [("headers", each) for each in upstream.headers if each.lower() in CREDENTIAL_HEADERS]
        found += [("query", each) for each in upstream.query if each in CREDENTIAL_PARAMETERS]
        for key, each in found:
            text = (
                "is a credential that every caller could use for everything; write it as api_key, with auth"
            )
            yield ("upstreams", name, key, each), text


def load_tls(ca_file: str | None, client_cert: str | None) -> ssl.SSLContext:
    """What a connection trusts, and shows. Paths of PEM files; without the first, the system's authorities.

    Raises OSError for a file that cannot be read, or that holds nothing of the kind.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if client_cert is not None:
        # An empty password: a key that needs one must not ask for it on the terminal.
        context.load_cert_chain(client_cert, password="")
    return context


def _unreadable_certificates(settings: Settings) -> Iterator[_Finding]:
    for name, upstream in settings.upstreams.items():
        for key in ("ca_file", "client_cert"):
            path = getattr(upstream, key)
            if path is None:
                continue
            try:
                load_tls(**{"ca_file": None, "client_cert": None, key: path})
            except ssl.SSLError:
                holds = "certificates" if key == "ca_file" else "a certificate and its key without a password"
                yield ("upstreams", name, key), f"must name a file that holds {holds}, as PEM"
            except OSError as error:
                reason = os.strerror(error.errno).lower() if error.errno else "no reason given"
                yield ("upstreams", name, key), f"cannot be read: {reason}"


def _open_relay(settings: Settings) -> Iterator[_Finding]:
    if settings.tenants or is_loopback(settings.listen.host):
        return
    for name, upstream in settings.upstreams.items():
        if upstream.api_key is not None:
            yield (
                ("upstreams", name, "api_key"),
                "is an open relay: anyone who reaches listen.host could use this key; "
                "add tenants, or listen on 127.0.0.1",
            )


def _open_admin(settings: Settings) -> Iterator[_Finding]:
    if settings.admin.token is None and not is_loopback(settings.admin.host):
        yield ("admin", "token"), "is required if admin.host is not a loopback address"


def _own_address(settings: Settings) -> Iterator[_Finding]:
    for name, upstream in settings.upstreams.items():
        if points_at(upstream.base_url, settings.listen):
            yield ("upstreams", name, "base_url"), "points at the gateway itself"


def _missing_extra(settings: Settings) -> Iterator[_Finding]:
    if settings.traces.endpoint is None:
        return
    with suppress(ModuleNotFoundError):
        if find_spec(_EXPORTER) is not None:
            return
    yield ("traces", "endpoint"), "needs the libraries of OpenTelemetry: pip install 'refold[otel]'"


def points_at(base_url: str, listen: Listen) -> bool:
    """False for a text that is not a URL."""
    try:
        host, port = _find_place(base_url)
    except ValueError:
        return False
    if port != listen.port:
        return False
    # Two addresses that are loopback or "any" (0.0.0.0) are the gateway itself. Another server may use the
    # port on another address of this machine.
    is_both_local = all(is_loopback(each) or _is_any(each) for each in (host, listen.host))
    return is_both_local or host in (listen.host.lower(), socket.gethostname().lower())


def name_provider(base_url: str) -> str:
    """Host and port of a URL that has been checked: keys for one of them are not meant for another."""
    return "{}:{}".format(*_find_place(base_url))


def _find_place(url: str) -> tuple[str, int]:
    """Host, in lower case, and port. Raises ValueError."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _is_any(host: str) -> bool:
    address = _parse_address(host)
    return address is not None and address.is_unspecified


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# What is allowed, and hardly meant.


def find_warnings(
    settings: Settings, document: Document, env: Mapping[str, str], *, names_upstream: bool
) -> tuple[Problem, ...]:
    """names_upstream: whether anything but the built-in upstreams is configured."""
    # A default may stand anywhere.
    in_vain = (
        (location, f"{render_location(location)} {text}")
        for location, text in (*_vain_keys(settings), *_vain_parts(settings), *_reversed_pairs(settings))
        if document.find_value(location) is not None
    )
    found = [
        *_unused_rules(settings),
        *_misled_formats(settings),
        *_vain_recalls(settings),
        *in_vain,
        *_leaving_keys(settings),
    ]
    return (
        *(Problem(document.find_origin(location), text) for location, text in found),
        *_unread_variables(env),
        *(() if names_upstream else _clients_variables(settings, env)),
    )


def _vain_recalls(settings: Settings) -> Iterator[_Finding]:
    """Policies that bring back originals, and keep none."""
    for name, policy in settings.policies.items():
        if policy.recall != "off" and not policy.originals.keep:
            text = f"policies.{name}: recall: {policy.recall} finds nothing, because originals.keep is false"
            yield ("policies", name, "originals", "keep"), text


def _vain_keys(settings: Settings) -> Iterator[_Finding]:
    """Keys that do nothing beside others of their policy."""
    usual = Policy()
    for name, policy in settings.policies.items():
        for section, keys, is_vain, why in _VAIN:
            part, same = (getattr(each, section) if section else each for each in (policy, usual))
            place = ("policies", name, section) if section else ("policies", name)
            changed = [key for key in keys if getattr(part, key) != getattr(same, key)]
            found = [((*place, key), f"has no effect, because of {why} of this policy") for key in changed]
            yield from found if is_vain(policy) else []


def _vain_parts(settings: Settings) -> Iterator[_Finding]:
    """Keys outside of policies that do nothing without others."""
    listen, has_keys = settings.listen, any(each.api_key for each in settings.upstreams.values())
    if settings.tenants or not has_keys or not is_loopback(listen.host):
        for key in ("hosts", "origins"):
            text = "is for an api_key on a loopback address without tenants, and has no effect here"
            yield from [(("listen", key), text)] if getattr(listen, key) else []
    if settings.traces != Traces() and settings.traces.endpoint is None:
        for key in ("headers", "sample", "service"):
            yield ("traces", key), "has no effect without traces.endpoint"
    owners = {tenant.upstream for tenant in settings.tenants if tenant.api_key is not None}
    for name, upstream in settings.upstreams.items():
        if upstream.api_key is None and name not in owners:
            for key in ("allow", "auth"):
                text = "has no effect without an api_key"
                yield from [(("upstreams", name, key), text)] if getattr(upstream, key) else []


def _reversed_pairs(settings: Settings) -> Iterator[_Finding]:
    around: dict[Location, Any] = {("policies", name): each for name, each in settings.policies.items()}
    around[()] = settings
    for place, values in around.items():
        for section, lesser, greater in _ORDERED:
            part = getattr(values, section, None)
            if part is not None and getattr(part, lesser) > getattr(part, greater):
                yield (*place, section, lesser), f"is larger than {greater}"


def _leaving_keys(settings: Settings) -> Iterator[_Finding]:
    """Upstreams that get the keys of tenants. With two providers for one tenant the settings are refused."""
    takers = {tenant.name: list_takers(settings, tenant) for tenant in settings.tenants}
    for name, section in settings.upstreams.items():
        tenants = [tenant for tenant, names in takers.items() if name in names]
        if tenants:
            more = f" and {len(tenants) - _SHOWN_TENANTS} more" if len(tenants) > _SHOWN_TENANTS else ""
            yield (
                ("upstreams", name, "base_url"),
                f"upstreams.{name} has no `api_key`, so the keys of these tenants are sent to "
                f"{name_provider(section.base_url)} as the credential: "
                f"{', '.join(tenants[:_SHOWN_TENANTS])}{more}. If they are keys of this gateway and not of "
                f"that provider, give the upstream its `api_key`",
            )


def _unused_rules(settings: Settings) -> Iterator[_Finding]:
    """Rules whose limits, price and policy can never count, because earlier rules fit all that they fit."""
    lists: dict[Location, Sequence[ModelRule]] = {("models",): settings.models}
    lists |= {("tenants", at, "models"): tenant.models for at, tenant in enumerate(settings.tenants)}
    for location, rules in lists.items():
        name = render_location(location)
        for index, rule in enumerate(rules):
            earlier = [number for number in range(index) if _covers(rules[number], rule)]
            hiding = [
                next((number for number in earlier if is_about(rules[number])), None)
                for is_about in _PURPOSES
                if is_about(rule)
            ]
            if None not in hiding:
                first = f"{name}[{hiding[0]}] fits the same models and comes first"
                yield (*location, index, "match"), f"{name}[{index}] is never used: {first}"


def _covers(earlier: ModelRule, later: ModelRule) -> bool:
    """Whether each model that fits the later rule is known to fit the earlier one.

    A star fits any text, so the later pattern itself can stand for what it fits; other wildcards cannot.
    """
    if earlier.upstream not in (None, later.upstream):
        return False
    if earlier.match == later.match:
        return True
    return not set("?[") & set(earlier.match) and fnmatch.fnmatchcase(later.match, earlier.match)


def _misled_formats(settings: Settings) -> Iterator[_Finding]:
    """Wire formats that go to an API which does not have them: mostly, its `formats` are not written."""
    for format_name in WIRE_FORMATS:
        upstream = settings.choose_upstream(format_name)
        host = urlsplit(upstream.base_url).hostname or ""
        if format_name in upstream.formats and format_name not in _SPOKEN.get(host, WIRE_FORMATS):
            yield (
                ("upstreams", upstream.name, "base_url"),
                f"upstreams.{upstream.name}: {_REQUESTS[format_name]} go to {host}, which does not know "
                "them. The upstreams of a file replace both built-in ones, and one without `formats` gets "
                f"all formats. Write formats: [{', '.join(_SPOKEN[host])}] here, and name another upstream "
                f"for the rest: {_OTHERS[host]}",
            )


def _unread_variables(env: Mapping[str, str]) -> Iterator[Problem]:
    for name in sorted(env):
        if name.startswith("GATEWAY") and name not in _VARIABLES:
            meant = find_nearest(name, _VARIABLES, similarity=_TYPO_SIMILARITY)
            if meant:
                yield Problem(f"${name}", f"is not read; the nearest variable that is, is {meant}")


def _clients_variables(settings: Settings, env: Mapping[str, str]) -> Iterator[Problem]:
    """Those that name another server than this gateway, and so were perhaps meant for it."""
    for name in _CLIENTS_VARIABLES:
        if env.get(name) and not points_at(env[name], settings.listen):
            text = "is not read: it is for clients; name an upstream with --upstream or GATEWAY_UPSTREAM"
            yield Problem(f"${name}", text)
