"""The sums over the conversations of each tenant, and of each model. Values in, values out."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from gateway.activity.economics import round_usd, sum_economics
from gateway.activity.rows import Row, count_sessions
from gateway.admin.answers import ModelTotals, TenantTotals, TotalsPage
from gateway.core.money import sum_usd

# Clients choose the names of models. Those with the most requests are listed, the others are one sum.
MOST_MODELS: Final = 100
_SUMS: Final = ("requests", "compactions", "prunings", "cache_breaks", "saved_tokens", "summary_tokens")
_MONEY: Final = ("saved_usd", "spent_usd", "summary_usd")


def make_totals(rows: Sequence[Row]) -> TotalsPage:
    """Tenants in the order of their names; models with the most requests first."""
    tenants = _group((row.tenant, row) for row in rows)
    models = _group((row.model, row) for row in rows)
    ranked = sorted(models, key=lambda name: (-sum(row.requests for row in models[name]), name))
    sums = [ModelTotals(model=name, **_sum(models[name])) for name in ranked[:MOST_MODELS]]
    others = [row for name in ranked[MOST_MODELS:] for row in models[name]]
    if others:
        sums.append(ModelTotals(model=None, **_sum(others)))
    return TotalsPage(
        tenants=[TenantTotals(tenant=name, **_sum(tenants[name])) for name in sorted(tenants)], models=sums
    )


def _group(named: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for name, row in named:
        groups.setdefault(name, []).append(row)
    return groups


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in _SUMS}
    counted = count_sessions(rows)
    sums["conversations"] = counted.sessions
    sums["received_tokens"] = sum(row.total_received_tokens for row in rows)
    sums["sent_tokens"] = sum(row.total_sent_tokens for row in rows)
    for name in _MONEY:
        sums[name] = round_usd(sum_usd(getattr(row, name) for row in rows))
    sums["economics"] = replace(sum_economics(row.economics for row in rows), died=counted.died)
    return sums
