"""Checks whether the settings fit together; each single value is valid already."""

import ipaddress
import os
import socket
import sqlite3
import ssl
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from gateway.settings.document import Document, Location
from gateway.settings.errors import Problem
from gateway.settings.model_rule import ModelRule
from gateway.settings.schema import FileSettings, Listen
from gateway.settings.tenant_schema import TenantSection, fingerprint_key
from gateway.settings.upstream_schema import (
    CREDENTIAL_HEADERS,
    CREDENTIAL_PARAMETERS,
    WIRE_FORMATS,
    FormatName,
)
from gateway.settings.values import load_tls
from gateway.settings.violations import find_nearest, render_location

DEFAULT_POLICY = "default"
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def find_conflicts(settings: FileSettings, document: Document) -> list[Problem]:
    """`settings` must include the built-in upstreams if the file has none."""
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
        _impossible_embeddings,
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


def _unknown_names(settings: FileSettings) -> Iterator[_Finding]:
    upstreams = settings.upstreams.keys()
    policies = {*settings.policies, DEFAULT_POLICY}
    for location, rule in _list_rules(settings):
        yield from _unknown_name((*location, "upstream"), rule.upstream, upstreams)
        yield from _unknown_name((*location, "policy"), rule.policy, policies)
    for name, policy in settings.policies.items():
        yield from _unknown_name(
            ("policies", name, "summary", "upstream"), policy.summary_upstream, upstreams
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


def _impossible_limits(settings: FileSettings) -> Iterator[_Finding]:
    for location, rule in _list_rules(settings):
        for key, tokens in (("input", rule.input), ("output", rule.output)):
            if tokens and rule.context and tokens > rule.context:
                text = "is larger than context, which holds prompt and reply together"
                yield (*location, key), text


def _list_rules(settings: FileSettings) -> Iterator[tuple[Location, ModelRule]]:
    """Those for all tenants, and those of each."""
    for index, rule in enumerate(settings.models):
        yield ("models", index), rule
    for position, tenant in enumerate(settings.tenants):
        for index, rule in enumerate(tenant.models):
            yield ("tenants", position, "models", index), rule


def _duplicate_tenants(settings: FileSettings) -> Iterator[_Finding]:
    first: dict[str, int] = {}
    for index, tenant in enumerate(settings.tenants):
        if first.setdefault(tenant.name, index) != index:
            yield ("tenants", index, "name"), f"same name as tenants[{first[tenant.name]}]"


def _duplicate_keys(settings: FileSettings) -> Iterator[_Finding]:
    """A key decides whose state is read, so two tenants must not share one, as text or as its hash."""
    first: dict[str, str] = {}
    for index, tenant in enumerate(settings.tenants):
        for position, key in enumerate(tenant.keys):
            place = f"tenants[{index}].keys[{position}]"
            other = first.setdefault(fingerprint_key(key), place)
            if other != place:
                yield ("tenants", index, "keys", position), f"same key as {other}"


def _homeless_keys(settings: FileSettings) -> Iterator[_Finding]:
    """Without an upstream, the credential would go to every upstream that a request may choose."""
    for index, tenant in enumerate(settings.tenants):
        if tenant.api_key is not None and tenant.upstream is None:
            yield ("tenants", index, "api_key"), "needs the tenant's `upstream`, which this credential is for"


def _shared_out_keys(settings: FileSettings) -> Iterator[_Finding]:
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


def list_takers(settings: FileSettings, tenant: TenantSection) -> list[str]:
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


def _open_credentials(settings: FileSettings) -> Iterator[_Finding]:
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


def _unreadable_certificates(settings: FileSettings) -> Iterator[_Finding]:
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


def _open_relay(settings: FileSettings) -> Iterator[_Finding]:
    if settings.tenants or is_loopback(settings.listen.host):
        return
    for name, upstream in settings.upstreams.items():
        if upstream.api_key is not None:
            yield (
                ("upstreams", name, "api_key"),
                "is an open relay: anyone who reaches listen.host could use this key; "
                "add tenants, or listen on 127.0.0.1",
            )


def _open_admin(settings: FileSettings) -> Iterator[_Finding]:
    if settings.admin.token is None and not is_loopback(settings.admin.host):
        yield ("admin", "token"), "is required if admin.host is not a loopback address"


def _own_address(settings: FileSettings) -> Iterator[_Finding]:
    for name, upstream in settings.upstreams.items():
        if points_at(upstream.base_url, settings.listen):
            yield ("upstreams", name, "base_url"), "points at the gateway itself"


def _missing_extra(settings: FileSettings) -> Iterator[_Finding]:
    if settings.traces.endpoint is not None and not _is_installed(_EXPORTER):
        yield (
            ("traces", "endpoint"),
            "needs the libraries of OpenTelemetry: pip install 'refold[otel]'",
        )


def _impossible_embeddings(settings: FileSettings) -> Iterator[_Finding]:
    upstream, model = settings.embeddings.upstream, settings.embeddings.model
    yield from _unknown_name(("embeddings", "upstream"), upstream, settings.upstreams.keys())
    if (upstream is None) != (model is None):
        yield ("embeddings",), "needs both an upstream and a model"
    elif upstream is not None and not _is_installed("sqlite_vec"):
        yield ("embeddings",), "needs sqlite-vec: pip install 'refold[embeddings]'"
    elif upstream is not None and not hasattr(sqlite3.Connection, "enable_load_extension"):
        text = "needs a Python whose sqlite3 can load extensions; this one was built without"
        yield ("embeddings",), text


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def points_at(base_url: str, listen: Listen) -> bool:
    """False for a text that is not a URL."""
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        return False
    port = port or (443 if parts.scheme == "https" else 80)
    host = (parts.hostname or "").lower()
    if port != listen.port:
        return False
    return host == listen.host.lower() or host == socket.gethostname().lower() or _is_both_local(host, listen)


def name_provider(base_url: str) -> str:
    """Host and port of a URL that has been checked: keys for one of them are not meant for another."""
    parts = urlsplit(base_url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _is_both_local(host: str, listen: Listen) -> bool:
    """Both addresses are loopback or "any" (0.0.0.0): then the same port is the gateway itself. Another
    server may use the port on another address of this machine.
    """
    return (is_loopback(host) or _is_any(host)) and (is_loopback(listen.host) or _is_any(listen.host))


def _is_any(host: str) -> bool:
    address = _parse_address(host)
    return address is not None and address.is_unspecified


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
