"""Finds what the settings allow but is most likely a mistake. `serve` and `check` print it as warnings."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from gateway.settings.crosscheck import list_takers, name_provider, points_at
from gateway.settings.document import Document, Location
from gateway.settings.errors import Problem
from gateway.settings.model_rule import ModelRule
from gateway.settings.presets import make_policy
from gateway.settings.schema import FileSettings
from gateway.settings.upstream_schema import WIRE_FORMATS, FormatName
from gateway.settings.violations import find_nearest, render_location

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


def find_warnings(
    settings: FileSettings, document: Document, env: Mapping[str, str], *, names_upstream: bool
) -> tuple[Problem, ...]:
    """names_upstream: whether anything but the built-in upstreams is configured."""
    found = [
        *_unused_rules(settings, document),
        *_misled_formats(settings, document),
        *_unread_variables(env),
        *_old_recalls(settings, document),
        *_vain_recalls(settings, document),
        *_leaving_keys(settings, document),
    ]
    if not names_upstream:
        found += _clients_variables(settings, env)
    return tuple(found)


def _old_recalls(settings: FileSettings, document: Document) -> Iterator[Problem]:
    for name, section in settings.policies.items():
        if section.model_dump(include={"recall"})["recall"] == "tool":
            text = f"policies.{name}: recall: tool means auto; models search by themselves at /mcp"
            yield Problem(document.find_origin(("policies", name, "recall")), text)


def _vain_recalls(settings: FileSettings, document: Document) -> Iterator[Problem]:
    """Policies that bring back originals, and keep none."""
    for name, section in settings.policies.items():
        policy = make_policy(section)
        if policy.recall != "off" and not policy.originals.keep:
            text = f"policies.{name}: recall: {policy.recall} finds nothing, because originals.keep is false"
            yield Problem(document.find_origin(("policies", name, "originals", "keep")), text)


def _leaving_keys(settings: FileSettings, document: Document) -> Iterator[Problem]:
    """Upstreams that get the keys of tenants. With two providers for one tenant the settings are refused."""
    takers = {tenant.name: list_takers(settings, tenant) for tenant in settings.tenants}
    for name, section in settings.upstreams.items():
        tenants = [tenant for tenant, names in takers.items() if name in names]
        if tenants:
            more = f" and {len(tenants) - _SHOWN_TENANTS} more" if len(tenants) > _SHOWN_TENANTS else ""
            yield Problem(
                document.find_origin(("upstreams", name, "base_url")),
                f"upstreams.{name} has no `api_key`, so the keys of these tenants are sent to "
                f"{name_provider(section.base_url)} as the credential: "
                f"{', '.join(tenants[:_SHOWN_TENANTS])}{more}. If they are keys of this gateway and not of "
                f"that provider, give the upstream its `api_key`",
            )


def _unused_rules(settings: FileSettings, document: Document) -> Iterator[Problem]:
    """Rules whose limits, price and policy can never count, because earlier rules fit all that they fit."""
    yield from _unused_among(settings.models, ("models",), document)
    for index, tenant in enumerate(settings.tenants):
        yield from _unused_among(tenant.models, ("tenants", index, "models"), document)


def _unused_among(rules: Sequence[ModelRule], location: Location, document: Document) -> Iterator[Problem]:
    name = render_location(location)
    for index, rule in enumerate(rules):
        earlier = [number for number in range(index) if _covers(rules[number], rule)]
        first_limits = next((number for number in earlier if rules[number].is_about_limits), None)
        first_policy = next((number for number in earlier if rules[number].policy is not None), None)
        first_price = next((number for number in earlier if rules[number].price is not None), None)
        needed = [first_limits] * rule.is_about_limits + [first_policy] * (rule.policy is not None)
        needed += [first_price] * (rule.price is not None)
        if None not in needed:
            text = f"{name}[{index}] is never used: {name}[{needed[0]}] fits the same models and comes first"
            yield Problem(document.find_origin((*location, index, "match")), text)


def _covers(earlier: ModelRule, later: ModelRule) -> bool:
    """Whether each model that fits the later rule is known to fit the earlier one.

    A star fits any text, so the later pattern itself can stand for what it fits; other wildcards cannot.
    """
    if earlier.upstream not in (None, later.upstream):
        return False
    if earlier.match == later.match:
        return True
    return not set("?[") & set(earlier.match) and fnmatch.fnmatchcase(later.match, earlier.match)


def _misled_formats(settings: FileSettings, document: Document) -> Iterator[Problem]:
    """Wire formats that go to an API which does not have them: mostly, its `formats` are not written."""
    for format_name in WIRE_FORMATS:
        taking = ((name, each) for name, each in settings.upstreams.items() if format_name in each.formats)
        name, section = next(taking, ("", None))
        host = urlsplit(section.base_url).hostname if section is not None else None
        if host is None or host not in _SPOKEN or format_name in _SPOKEN[host]:
            continue
        yield Problem(
            document.find_origin(("upstreams", name, "base_url")),
            f"upstreams.{name}: {_REQUESTS[format_name]} go to {host}, which does not know them. The "
            f"upstreams of a file replace both built-in ones, and one without `formats` gets all formats. "
            f"Write formats: [{', '.join(_SPOKEN[host])}] here, and name another upstream for the rest: "
            f"{_OTHERS[host]}",
        )


def _unread_variables(env: Mapping[str, str]) -> Iterator[Problem]:
    for name in sorted(env):
        if name.startswith("GATEWAY") and name not in _VARIABLES:
            meant = find_nearest(name, _VARIABLES, similarity=_TYPO_SIMILARITY)
            if meant:
                yield Problem(f"${name}", f"is not read; the nearest variable that is, is {meant}")


def _clients_variables(settings: FileSettings, env: Mapping[str, str]) -> Iterator[Problem]:
    """Those that name another server than this gateway, and so were perhaps meant for it."""
    for name in _CLIENTS_VARIABLES:
        if env.get(name) and not points_at(env[name], settings.listen):
            text = "is not read: it is for clients; name an upstream with --upstream or GATEWAY_UPSTREAM"
            yield Problem(f"${name}", text)
