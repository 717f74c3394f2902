"""What `refold models` says of money: a model's price, where it is from, and when compactions pay."""

from collections.abc import Iterator
from typing import Any, Final

from gateway.activity.prices import PriceList
from gateway.core.money import Price, render_price
from gateway.core.policy import Policy
from gateway.settings import Settings

_UNKNOWN: Final = "unknown, so no money is counted; `price` in a rule of `models` names it"


def describe_price(settings: Settings, prices: PriceList, model: str, upstream: str) -> Iterator[str]:
    price = prices.find(model, upstream)
    yield f"  price    {_UNKNOWN if price is None else _show(price)}"
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
