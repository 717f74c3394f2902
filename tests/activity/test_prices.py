"""Prices by the rules of the settings, then by the bundled table."""

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.prices import PriceList, find_no_price, load_price_table, parse_price_table
from gateway.core.money import Price
from gateway.settings import ModelPrice, ModelRule

_TABLE = load_price_table()
_BUNDLED = PriceList((), _TABLE)


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("gpt-4o", Price(input=2.5, cached_input=1.25, output=10)),
        ("openai/gpt-4o", Price(input=2.5, cached_input=1.25, output=10)),
        ("claude-sonnet-4-5", Price(input=3, cached_input=0.3, cache_write=3.75, output=15)),
        ("anthropic.claude-sonnet-4-5", Price(input=3, cached_input=0.3, cache_write=3.75, output=15)),
        ("models/gemini-2.5-pro", Price(input=1.25, cached_input=0.125, output=10)),
        ("deepseek-chat", Price(input=0.28, cached_input=0.028, output=0.42)),
        ("qwen-plus", Price(input=0.4, output=1.2)),
    ],
)
def test_the_bundled_table_knows_usual_models(model: str, price: Price) -> None:
    assert _BUNDLED.find(model) == price


@pytest.mark.parametrize("model", ["", "my-model", "Qwen/Qwen3-32B", "llama3.1:8b", "_source", "gpt-4o" * 99])
def test_a_model_that_is_not_in_the_table_has_no_price(model: str) -> None:
    assert _BUNDLED.find(model) is None


@given(st.text())
def test_a_name_of_any_characters_raises_nothing(model: str) -> None:
    _BUNDLED.find(model)


def test_the_first_rule_that_matches_wins_over_the_table() -> None:
    rules = [
        ModelRule(match="gpt-4o-mini", price=ModelPrice(input=1, output=2)),
        # Without a price it says nothing here.
        ModelRule(match="*", context=8_000),
        ModelRule(match="gpt-4o*", price=ModelPrice(input=3, cached=0, output=4)),
    ]
    prices = PriceList(rules, _TABLE)
    assert prices.find("gpt-4o-mini") == Price(input=1, output=2)
    assert prices.find("gpt-4o-2024-08-06") == Price(input=3, cached_input=0, output=4)
    assert prices.find("gpt-5.1") == _TABLE["gpt-5.1"]


def test_a_tenant_and_an_upstream_may_have_prices_of_their_own() -> None:
    for_all = ModelRule(match="m", price=ModelPrice(input=1, output=1))
    elsewhere = ModelRule(match="m", upstream="b", price=ModelPrice(input=2, output=2))
    own = ModelRule(match="m", price=ModelPrice(input=3, output=3))
    prices = PriceList([elsewhere, for_all], {}, {"t": [own]})
    for upstream, owner, expected in [
        ("a", "", 1),
        ("b", "", 2),
        (None, "", 2),
        ("a", "t", 3),
        ("a", "u", 1),
    ]:
        found = prices.find("m", upstream, owner)
        assert found is not None and found.input == expected


def test_without_prices_no_model_has_one() -> None:
    assert find_no_price("gpt-4o") is None


def test_every_row_of_the_table_is_plausible() -> None:
    data = json.loads(files("gateway").joinpath("data/model_prices.json").read_bytes())
    source = data.pop("_source")
    assert source["models"] == len(data) == len(_TABLE) and source["licence"] == "MIT"
    for name, price in _TABLE.items():
        assert 0 < price.input <= price.output <= 2_000 or price.input > price.output > 0, name
        assert price.cached_input is None or 0 < price.cached_input <= price.input, name


def test_an_absent_price_of_a_cache_is_unset() -> None:
    table = parse_price_table(b'{"_source":{},"m":{"input":1,"output":2}}')
    assert table == {"m": Price(input=1, output=2)}
