"""`refold models`: which window and price a model gets, from which source, and when it is compacted.

The limits are those that a running gateway would use, by the same rules. What errors have taught it is read
from its store; upstreams are asked only if that is wanted.
"""

import argparse
import asyncio
import difflib
import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.activity.prices import PriceList, load_price_table
from gateway.bounds.background import BackgroundTasks
from gateway.command_line.console import render_json
from gateway.command_line.options import load_chosen_settings
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, choose_thresholds
from gateway.core.money import Price, render_price
from gateway.core.policy import Policy
from gateway.http.client import Client
from gateway.limits.book import LimitsBook, ModelLists, ModelTable, ServedModel
from gateway.limits.discovery import Discovery
from gateway.settings import ModelRule, Settings
from gateway.settings.show import list_rules, show_store
from gateway.state import State
from gateway.state.cached import Storage
from gateway.state.kinds import LEARNED
from gateway.store.address import find_folder
from gateway.store.interface import ListedRecord
from gateway.store.sqlite import SqliteStore, read_snapshot
from gateway.tenants import Policies, Tenant, list_tenants

_SHOWN_FAMILIES: Final = 14
_SHOWN_NEAREST: Final = 4
_SIMILARITY: Final = 0.6
_FAMILY: Final = re.compile("[a-z]+")
# A caller of whom nothing is known.
_NOBODY: Final = ""
_SOURCES: Final = {
    "upstream": "the upstream's own list of models",
    "learned": "a number in an error of the upstream, less than a week old",
    "guessed": "a request that was refused without a number, less than a day ago",
    "unknown": "none",
}
_UNKNOWN: Final = """\
  An unknown window counts as unlimited: nothing is compacted before the
  upstream refuses a request as too long. Its error then teaches the window."""
_NOTE: Final = """\
  The thresholds are those of a request that names no length of its reply. A
  long reply lowers the hard one, and fast growth lowers the soft one."""


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that requests with the model get. The thresholds are None while no window is known."""

    name: str
    preset: str
    auto: bool
    economy: float
    soft: int | None = None
    hard: int | None = None
    target: int | None = None


class TenantFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant for whom another window counts. source: in words."""

    name: str
    window: int | None
    source: str


class PlaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the model at one upstream. price: by the names that a rule of the settings gives
    its numbers, with the name of the rule. The origins are in words.
    """

    upstream: str
    context: int | None
    input: int | None
    output: int | None
    source: str
    origin: str
    price: Mapping[str, float | str | None] | None
    price_origin: str | None
    policies: Sequence[PolicyFacts]
    tenants: Sequence[TenantFacts]


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """is_known: whether the window is known at every upstream. advice: lines for a person if it is not."""

    model: str
    is_known: bool
    upstreams: Sequence[PlaceFacts]
    advice: Sequence[str]

    @property
    def text(self) -> str:
        """Upstreams of which the same is known are shown together."""
        places: dict[tuple[str, ...], list[str]] = {}
        for place in self.upstreams:
            places.setdefault(tuple(_describe(place)), []).append(place.upstream)
        lines = []
        for of_some, names in places.items():
            lines += [self.model if len(places) == 1 else f"{self.model} at {', '.join(names)}", *of_some]
        return "\n".join([*lines, *([_NOTE] if self.is_known else self.advice)])


@dataclass(frozen=True)
class _Knowledge:
    settings: Settings
    book: LimitsBook
    table: ModelTable
    # The tenants for whom the store has learned limits.
    owners: Sequence[str]
    # Rules of single tenants.
    rules: Mapping[str, Sequence[ModelRule]]
    prices: PriceList


def run_models(options: argparse.Namespace) -> int:
    """The exit status. Raises SettingsError."""
    settings = load_chosen_settings(options, os.environ)
    if not options.names:
        sources = _list_sources(settings)
        print(
            render_json(sources) if options.json else _describe_sources(sources, show_store(settings.store))
        )
        return 0
    reports = [report_model(settings, name, asks=options.ask) for name in options.names]
    if options.json:
        print(render_json(reports[0] if len(reports) == 1 else {"models": reports}))
    else:
        print("\n\n".join(report.text for report in reports))
    return 0 if all(report.is_known for report in reports) else 1


def report_model(settings: Settings, model: str, *, asks: bool = False) -> ModelReport:
    # What the book logs about an unknown model is in the report; what an upstream has answered is not.
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    logging.getLogger("gateway.discovery").setLevel(logging.INFO)
    return asyncio.run(describe_model(settings, model, asks=asks))


async def describe_model(settings: Settings, model: str, *, asks: bool = False) -> ModelReport:
    """asks: whether the upstreams are asked for their lists, with their own keys or with none."""
    async with _gather(settings) as known:
        if asks:
            await _ask(known, model)
        places = [await _find(known, ServedModel(_NOBODY, name, model)) for name in settings.upstreams]
        is_known = all(place.context or place.input for place in places)
        advice = [] if is_known else list(_list_advice(known, model, asks=asks))
        return ModelReport(model=model, is_known=is_known, upstreams=places, advice=advice)


def _list_sources(settings: Settings) -> dict[str, Any]:
    """Every source of windows, in the order in which they count, with what it holds."""
    return {
        "rules": list_rules(settings),
        "upstreams": [upstream.name for upstream in settings.upstreams.values() if upstream.discover],
        "learned": len(_read_learned(settings)),
        "table": ModelTable.load().size,
    }


def _describe_sources(sources: Mapping[str, Any], store: str) -> str:
    rules, asked = sources["rules"], ", ".join(sources["upstreams"]) or "none"
    return "\n".join(
        [
            f"settings   rules: {len(rules)}; the first that fits a name counts",
            *map(_describe_rule, rules),
            f"upstreams  asked for their lists at the first request: {asked}",
            f"learned    from errors of upstreams, in {store}: {sources['learned']}",
            f"table      names of models: {sources['table']:,}, by their first word:",
            *_count_families(ModelTable.load()),
        ]
    )


def _describe_rule(rule: Mapping[str, Any]) -> str:
    place = f" at {rule['upstream']}" if rule["upstream"] else ""
    parts = [f"{name} {rule[name]:,}" for name in ("context", "input", "output") if rule[name]]
    parts += [f"policy {rule['policy']}"] if rule["policy"] else []
    return f"  {rule['origin']}  {rule['match']!r}{place}: {', '.join(parts)}"


@asynccontextmanager
async def _gather(settings: Settings) -> AsyncIterator[_Knowledge]:
    store = SqliteStore(None)
    await store.open()
    storage = Storage(store, settings.retention.seconds, settings.cache.records_bytes)
    learned = _read_learned(settings)
    for key, group, value in learned:
        store.put(key, value, settings.retention.seconds, group=group)
    owners = {each.record.owner for each in storage.records.learned.parse_listed(learned)}
    table = ModelTable.load()
    book = LimitsBook(settings, ModelLists(), table, State(storage).calibrations)
    rules = {tenant.id: tenant.rules for tenant in list_tenants(settings) if tenant.rules}
    prices = PriceList(settings, load_price_table())
    try:
        yield _Knowledge(settings, book, table, sorted(owners), rules, prices)
    finally:
        await store.close()


def _read_learned(settings: Settings) -> list[ListedRecord]:
    """What a gateway has learned. A command only looks at it."""
    folder = find_folder(settings.store)
    return read_snapshot(folder, LEARNED) if folder is not None else []


async def _ask(known: _Knowledge, model: str) -> None:
    async with Client() as client:
        discovery = Discovery(known.book, client, tasks := BackgroundTasks("model list"))
        for upstream in known.settings.upstreams.values():
            discovery.notice(_NOBODY, upstream, model, ())
        await tasks.finish()


async def _find(known: _Knowledge, served: ServedModel) -> PlaceFacts:
    settings, limits = known.settings, await known.book.load(served)
    source = known.book.name_source(served)
    price = known.prices.find(served.model, served.upstream)
    return PlaceFacts(
        upstream=served.upstream,
        context=limits.context,
        input=limits.input,
        output=limits.output,
        source=source,
        origin=_show_origin(known, served),
        price={**render_price(price), "name": price.name} if price is not None else None,
        price_origin=_show_price_origin(settings, price, served) if price is not None else None,
        policies=[_list_policy(name, policy, limits) for name, policy in _find_policies(settings, served)],
        tenants=await _find_tenants(known, served),
    )


def _list_policy(name: str, policy: Policy, limits: Limits) -> PolicyFacts:
    found = choose_thresholds(policy, limits, RequestSize())
    return PolicyFacts(
        name=name,
        preset=policy.preset,
        auto=policy.compaction.auto,
        economy=policy.economy,
        soft=found.soft if found is not None else None,
        hard=found.hard if found is not None else None,
        target=found.target if found is not None else None,
    )


async def _find_tenants(known: _Knowledge, served: ServedModel) -> list[TenantFacts]:
    """Errors teach the window for the tenant alone that got them, and a tenant may have rules of its own."""
    found = []
    for owner in sorted({*known.owners, *known.rules}):
        own = served._replace(owner=owner)
        limits = await known.book.load(own)
        rule = _find_own_rule(known, own)
        if rule is not None or known.book.name_source(own) in ("learned", "guessed"):
            source = f"its own rule with match {rule.match!r}" if rule else _show_origin(known, own)
            name = Tenant(owner, None, "").display_name
            found.append(TenantFacts(name=name, window=limits.context or limits.input, source=source))
    return found


def _find_own_rule(known: _Knowledge, served: ServedModel) -> ModelRule | None:
    """The rule of this tenant alone that names the model's limits."""
    rules = (rule for rule in known.rules.get(served.owner, ()) if rule.is_about_limits)
    return next((rule for rule in rules if rule.applies_to(served.model, served.upstream)), None)


def _find_policies(settings: Settings, served: ServedModel) -> list[tuple[str, Policy]]:
    """Those of all tenants, unless a rule for the model names one."""
    policies = Policies(settings)
    tenants = list_tenants(settings) or [Tenant(_NOBODY, None, "default")]
    chosen = [policies.choose(tenant, served.upstream, served.model) for tenant in tenants]
    return [
        (name, policy) for name, policy in settings.policies.items() if any(policy is each for each in chosen)
    ]


def _find_rule(settings: Settings, fits: Callable[[ModelRule], bool]) -> tuple[str, ModelRule] | None:
    """The first of the rules for all tenants that does, with its place in the file."""
    rules = zip(settings.model_origins, settings.models, strict=True)
    return next(((origin, rule) for origin, rule in rules if fits(rule)), None)


def _show_origin(known: _Knowledge, served: ServedModel) -> str:
    """Of the limits."""
    source = known.book.name_source(served)
    if source == "table":
        return f"the bundled table, as {known.table.find_name(served.model)}"
    if source == "configured":
        found = _find_rule(
            known.settings,
            lambda rule: rule.is_about_limits and rule.applies_to(served.model, served.upstream),
        )
        # A name that is too long for any model is not looked up anywhere.
        return _show_rule_origin(found) if found is not None else _SOURCES["unknown"]
    return _SOURCES.get(source, source)


def _show_price_origin(settings: Settings, price: Price, served: ServedModel) -> str:
    found = _find_rule(
        settings, lambda rule: rule.price is not None and rule.applies_to(served.model, served.upstream)
    )
    return _show_rule_origin(found) if found is not None else f"the bundled table, as {price.name}"


def _show_rule_origin(found: tuple[str, ModelRule]) -> str:
    origin, rule = found
    return f"{origin}, the rule with match {rule.match!r}"


def _list_advice(known: _Knowledge, model: str, *, asks: bool) -> Iterator[str]:
    """For a model whose window is unknown."""
    yield _UNKNOWN
    settings = known.settings
    near = _find_rule(
        settings,
        lambda rule: any(
            rule.nearly_applies_to(model, upstream) and not rule.applies_to(model, upstream)
            for upstream in settings.upstreams
        ),
    )
    if near is not None:
        origin, rule = near
        yield f"  {origin}: match {rule.match!r} nearly fits; case counts, and a dot is a dot."
    names = difflib.get_close_matches(model, known.table.rows, _SHOWN_NEAREST, _SIMILARITY)
    if names:
        yield "  The nearest names in the bundled table:"
        for name in names:
            yield f"    {name}: {_show_tokens(known.table.rows[name].context)}"
    if not asks and any(upstream.discover for upstream in settings.upstreams.values()):
        yield "  Perhaps the upstream names it: `refold models` with --ask asks for its list."
    yield "  Or name it in the settings file, with the window of your server:"
    yield "models:"
    yield f"  - {{match: {json.dumps(model)}, context: 32768, output: 4096}}"


def _show_tokens(tokens: int | None, of_what: str = "") -> str:
    return f"{tokens:,} tokens{of_what}" if tokens else "unknown"


def _count_families(table: ModelTable) -> Iterator[str]:
    families: dict[str, list[int]] = {}
    for name, limits in table.rows.items():
        found = _FAMILY.search(name.rpartition("/")[2].lower())
        families.setdefault(found[0] if found else name, []).append(limits.context or limits.input or 0)
    counted = Counter({family: len(windows) for family, windows in families.items()})
    shown = counted.most_common(_SHOWN_FAMILIES)
    for family, count in shown:
        windows = families[family]
        yield f"  {family:12}{count:6,}   windows of {min(windows):,} to {max(windows):,}"
    yield f"  {'others':12}{counted.total() - sum(count for _, count in shown):6,}"


def _describe(place: PlaceFacts) -> Iterator[str]:
    yield f"  context  {_show_tokens(place.context, ' of prompt and reply')}"
    if place.input:
        yield f"  input    {_show_tokens(place.input, ' of the prompt')}"
    yield f"  output   {_show_tokens(place.output)}"
    yield f"  source   {place.origin}"
    if place.price is None:
        yield "  price    unknown, so no money is counted; `price` in a rule of `models` names it"
    else:
        yield f"  price    {_show_price(place.price)}"
        yield f"           for a million tokens, from {place.price_origin}"
    for policy in place.policies:
        off = "" if policy.auto else ": no automatic compaction"
        yield f"  policy   {policy.name}, preset {policy.preset}{off}"
        if policy.soft is not None and policy.auto:
            yield f"    soft   {policy.soft:,}: beyond it, a summary is prepared in the background"
            # By size alone where the model costs nothing.
            if policy.economy and (place.price is None or place.price["input"]):
                cost = "as much as" if policy.economy == 1 else f"{policy.economy:g} times"
                yield f"    early  below soft, as soon as old messages have cost {cost} a compaction"
            yield f"    hard   {policy.hard:,}: beyond it, a request waits for the summary"
            yield f"    target {policy.target:,}: the size aimed for after it"
    for tenant in place.tenants:
        yield f"  tenant   {tenant.name}: {_show_tokens(tenant.window)}, from {tenant.source}"


def _show_price(price: Mapping[str, float | str | None]) -> str:
    names = (("input", "in"), ("cached", "cached"), ("write", "written to the cache"), ("output", "out"))
    return ", ".join(f"${price[key]:g} {name}" for key, name in names if price[key] is not None)
