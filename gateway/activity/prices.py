"""Which model costs what: by the rules of the tenant and of the settings, then by the bundled table.

`data/model_prices.json` comes from litellm (MIT, see data/NOTICE.md); its `_source` names the rules. A model
that neither knows has no price: what it costs is unknown, not nothing.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Final

import msgspec

from gateway.core.limits.model_limits import LONGEST_NAME_CHARS, make_names
from gateway.core.money import Price
from gateway.settings import Settings
from gateway.tenants import list_tenants

_FOUND_NAMES: Final = 1_024


# As `PriceList.find`.
FindPrice = Callable[[str, str | None, str], Price | None]


class _PriceRow(msgspec.Struct):
    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None


class PriceList:
    """Rules of single tenants come before those for all. table: by the name of a model."""

    def __init__(self, settings: Settings, table: Mapping[str, Price]) -> None:
        self._rules = settings.models
        self._own = {each.id: each.rules for each in list_tenants(settings)}
        self._table = table
        self._find_cached = lru_cache(_FOUND_NAMES)(self._search)

    def find(self, model: str, upstream: str | None = None, owner: str = "", /) -> Price | None:
        """The price of a model for a tenant, or None if it is not known.

        upstream: None where it is not known, so that a rule for any of them will do.
        """
        if len(model) > LONGEST_NAME_CHARS:
            return None
        return self._find_cached(model, upstream, owner if owner in self._own else "")

    def _search(self, model: str, upstream: str | None, owner: str) -> Price | None:
        for rule in (*self._own.get(owner, ()), *self._rules):
            if rule.price is not None and rule.applies_to(model, upstream or rule.upstream or ""):
                return rule.price.name(rule.match)
        return next((self._table[name] for name in make_names(model) if name in self._table), None)


def load_price_table() -> dict[str, Price]:
    """The bundled prices. About 1 ms."""
    data = files("gateway").joinpath("data/model_prices.json").read_bytes()
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    del raw["_source"]
    rows = {name: msgspec.json.decode(row, type=_PriceRow) for name, row in raw.items()}
    return {name: Price(name=name, **msgspec.structs.asdict(row)) for name, row in rows.items()}
