"""Which model costs what: by the rules of the settings, then by the bundled table.

`data/model_prices.json` comes from litellm (MIT, see data/NOTICE.md); its `_source` names the rules. A model
that neither knows has no price: what it costs is unknown, not nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Final

import msgspec

from gateway.core.limits.model_names import LONGEST_NAME_CHARS, make_names
from gateway.core.money import Price
from gateway.settings.price_rule import PriceRule

# Gives the price of a model, or None if it is not known.
FindPrice = Callable[[str], Price | None]

_FOUND_NAMES: Final = 1_024


class _PriceRow(msgspec.Struct):
    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None


class PriceList:
    """rules: those that come first take precedence. table: by the name of a model."""

    def __init__(self, rules: Sequence[PriceRule], table: Mapping[str, Price]) -> None:
        self._rules = [(rule, rule.price) for rule in rules]
        self._table = table
        self._find_cached = lru_cache(_FOUND_NAMES)(self._search)

    def find(self, model: str) -> Price | None:
        return self._find_cached(model) if len(model) <= LONGEST_NAME_CHARS else None

    def _search(self, model: str) -> Price | None:
        for rule, price in self._rules:
            if rule.applies_to(model):
                return price
        return next((self._table[name] for name in make_names(model) if name in self._table), None)


def find_no_price(_: str) -> Price | None:
    return None


def load_price_table() -> dict[str, Price]:
    """The bundled prices. About 1 ms."""
    return parse_price_table(files("gateway").joinpath("data/model_prices.json").read_bytes())


def parse_price_table(data: bytes) -> dict[str, Price]:
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    del raw["_source"]
    rows = {name: msgspec.json.decode(row, type=_PriceRow) for name, row in raw.items()}
    return {name: Price(name=name, **msgspec.structs.asdict(row)) for name, row in rows.items()}
