"""`refold models`: which window and price a model gets, from which source, and when it is compacted.

The limits are those that a running gateway would use, by the same rules. What errors have taught it is read
from its store; upstreams are asked only if that is wanted.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from gateway.activity.prices import PriceList, load_price_table, make_price_list
from gateway.bounds.background import BackgroundTasks
from gateway.command_line.json_reports import list_rules
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, choose_thresholds
from gateway.core.money import Price, render_price
from gateway.core.policy import Policy
from gateway.http.client import Client
from gateway.limits.book import LimitsBook, ModelLists, ModelTable, ServedModel
from gateway.limits.discovery import Discovery
from gateway.settings import ModelRule, Settings
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


@dataclass(frozen=True)
class ModelReport:
    """is_known: whether the window is known at every upstream. facts: the same for programs."""

    text: str
    is_known: bool
    facts: Mapping[str, Any]


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


async def describe_model(settings: Settings, model: str, *, asks: bool = False) -> ModelReport:
    """asks: whether the upstreams are asked for their lists, with their own keys or with none."""
    async with _gather(settings) as known:
        if asks:
            await _ask(known, model)
        # Upstreams of which the same is known are shown together.
        places: dict[tuple[str, ...], list[str]] = {}
        found, facts = [], []
        for upstream in settings.upstreams:
            served = ServedModel(_NOBODY, upstream, model)
            found.append(await known.book.load(served))
            facts.append(_list_facts(known, served, found[-1]))
            lines = [*_describe(known, served, found[-1]), *await _describe_tenants(known, served)]
            places.setdefault(tuple(lines), []).append(upstream)
        text = []
        for lines_of_some, names in places.items():
            text += [model if len(places) == 1 else f"{model} at {', '.join(names)}", *lines_of_some]
        is_known = all(limits.context or limits.input for limits in found)
        text += [_NOTE] if is_known else _list_advice(known, model, asks=asks)
        return ModelReport(
            "\n".join(text), is_known, {"model": model, "is_known": is_known, "upstreams": facts}
        )


def list_sources(settings: Settings) -> dict[str, Any]:
    """What `describe_sources` says, for programs."""
    return {
        "rules": list_rules(settings),
        "upstreams": [upstream.name for upstream in settings.upstreams.values() if upstream.discover],
        "learned": len(_read_learned(settings)),
        "table": ModelTable.load().size,
    }


def describe_sources(settings: Settings) -> str:
    """Every source of windows, in the order in which they count, with what it holds."""
    table = ModelTable.load()
    rules = [
        f"  {origin}  {rule.match!r}{f' at {rule.upstream}' if rule.upstream else ''}: {_show_rule(rule)}"
        for origin, rule in zip(settings.model_origins, settings.models, strict=True)
    ]
    asked = [upstream.name for upstream in settings.upstreams.values() if upstream.discover]
    return "\n".join(
        [
            f"settings   rules: {len(rules)}; the first that fits a name counts",
            *rules,
            f"upstreams  asked for their lists at the first request: {', '.join(asked) or 'none'}",
            f"learned    from errors of upstreams, in {settings.store}: {len(_read_learned(settings))}",
            f"table      names of models: {table.size:,}, by their first word:",
            *_count_families(table),
        ]
    )


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
    prices = make_price_list(settings, load_price_table())
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


def _list_facts(known: _Knowledge, served: ServedModel, limits: Limits) -> dict[str, Any]:
    return {
        "upstream": served.upstream,
        "context": limits.context,
        "input": limits.input,
        "output": limits.output,
        "source": known.book.name_source(served),
        "price": list_price(known.prices.find(served.model, served.upstream)),
        "policies": [
            {
                "name": name,
                "preset": policy.preset,
                "auto": policy.compaction.auto,
                "economy": policy.economy,
                **_list_thresholds(policy, limits),
            }
            for name, policy in _find_policies(known.settings, served)
        ],
    }


def _list_thresholds(policy: Policy, limits: Limits) -> dict[str, int | None]:
    found = choose_thresholds(policy, limits, RequestSize())
    if found is None:
        return {"soft": None, "hard": None, "target": None}
    return {"soft": found.soft, "hard": found.hard, "target": found.target}


def _describe(known: _Knowledge, served: ServedModel, limits: Limits) -> Iterator[str]:
    yield f"  context  {_show_tokens(limits.context, ' of prompt and reply')}"
    if limits.input:
        yield f"  input    {_show_tokens(limits.input, ' of the prompt')}"
    yield f"  output   {_show_tokens(limits.output)}"
    yield f"  source   {_show_source(known, served)}"
    yield from describe_price(known.settings, known.prices, served.model, served.upstream)
    price = known.prices.find(served.model, served.upstream)
    for name, policy in _find_policies(known.settings, served):
        thresholds = choose_thresholds(policy, limits, RequestSize())
        off = "" if policy.compaction.auto else ": no automatic compaction"
        yield f"  policy   {name}, preset {policy.preset}{off}"
        if thresholds is not None and policy.compaction.auto:
            yield f"    soft   {thresholds.soft:,}: beyond it, a summary is prepared in the background"
            yield from describe_economy(policy, price)
            yield f"    hard   {thresholds.hard:,}: beyond it, a request waits for the summary"
            yield f"    target {thresholds.target:,}: the size aimed for after it"


async def _describe_tenants(known: _Knowledge, served: ServedModel) -> list[str]:
    """Errors teach the window for the tenant alone that got them, and a tenant may have rules of its own."""
    lines = []
    for owner in sorted({*known.owners, *known.rules}):
        own = served._replace(owner=owner)
        limits = await known.book.load(own)
        rule = _find_own_rule(known, own)
        if rule is not None or known.book.name_source(own) in ("learned", "guessed"):
            tenant = Tenant(owner, None, "").display_name
            window = _show_tokens(limits.context or limits.input)
            source = f"its own rule with match {rule.match!r}" if rule else _show_source(known, own)
            lines.append(f"  tenant   {tenant}: {window}, from {source}")
    return lines


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


def _show_source(known: _Knowledge, served: ServedModel) -> str:
    source, settings = known.book.name_source(served), known.settings
    if source == "configured":
        rules = zip(settings.model_origins, settings.models, strict=True)
        fitting = (
            f"{origin}, the rule with match {rule.match!r}"
            for origin, rule in rules
            if rule.is_about_limits and rule.applies_to(served.model, served.upstream)
        )
        # A name that is too long for any model is not looked up anywhere.
        return next(fitting, _SOURCES["unknown"])
    if source == "table":
        return f"the bundled table, as {known.table.find_name(served.model)}"
    return _SOURCES.get(source, source)


def _list_advice(known: _Knowledge, model: str, *, asks: bool) -> Iterator[str]:
    """For a model whose window is unknown."""
    yield _UNKNOWN
    settings = known.settings
    near = next(
        (
            (origin, rule)
            for origin, rule in zip(settings.model_origins, settings.models, strict=True)
            for upstream in settings.upstreams
            if rule.nearly_applies_to(model, upstream) and not rule.applies_to(model, upstream)
        ),
        None,
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


def _show_rule(rule: ModelRule) -> str:
    parts = [
        f"{name} {value:,}"
        for name, value in (("context", rule.context), ("input", rule.input), ("output", rule.output))
        if value
    ]
    return ", ".join(parts + ([f"policy {rule.policy}"] if rule.policy else []))


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


_UNKNOWN_PRICE: Final = "unknown, so no money is counted; `price` in a rule of `models` names it"


def describe_price(settings: Settings, prices: PriceList, model: str, upstream: str) -> Iterator[str]:
    price = prices.find(model, upstream)
    yield f"  price    {_UNKNOWN_PRICE if price is None else _show(price)}"
    if price is not None:
        yield f"           for a million tokens, from {_find_source(settings, price, model, upstream)}"


def list_price(price: Price | None) -> dict[str, Any] | None:
    """By the names that a rule of the settings gives them, with the name of the rule."""
    return {**render_price(price), "name": price.name} if price is not None else None


def describe_economy(policy: Policy, price: Price | None) -> Iterator[str]:
    """Nothing where sizes alone decide: by the policy, or because the model costs nothing."""
    if not policy.economy or (price is not None and not price.input):
        return
    cost = "as much as" if policy.economy == 1 else f"{policy.economy:g} times"
    yield f"    early  below soft, as soon as old messages have cost {cost} a compaction"


def _show(price: Price) -> str:
    parts = (
        ("in", price.input),
        ("cached", price.cached_input),
        ("written to the cache", price.cache_write),
        ("out", price.output),
    )
    return ", ".join(f"${usd:g} {name}" for name, usd in parts if usd is not None)


def _find_source(settings: Settings, price: Price, model: str, upstream: str) -> str:
    fitting = (
        f"{origin}, the rule with match {rule.match!r}"
        for origin, rule in zip(settings.model_origins, settings.models, strict=True)
        if rule.price is not None and rule.applies_to(model, upstream)
    )
    return next(fitting, f"the bundled table, as {price.name}")
