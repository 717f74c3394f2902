"""Prices in rules about models: how they are read, and which are refused."""

from pathlib import Path

import pytest

from gateway.core.money import Price
from gateway.settings import ModelPrice, load_settings
from tests.builders.settings import PLAIN, assert_refused, load_text

_MODELS = 'models: [{match: "gpt-4o*", price: {input: 2.5, cached: 1.25, output: 10}}]\n'


def test_a_rule_is_read_with_its_price(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"{PLAIN}{_MODELS}tenants: [{{name: a, keys: [k], {_MODELS.strip()}}}]\n")
    settings = load_settings(path, {})
    for rule in (settings.models[0], settings.tenants[0].models[0]):
        assert rule.price is not None
        assert rule.price.name("m") == Price(input=2.5, cached_input=1.25, output=10)
        # It says nothing about limits, so that the ones of a later rule hold.
        assert not rule.is_about_limits


def test_a_price_may_be_left_empty(tmp_path: Path) -> None:
    (rule,) = load_text(tmp_path, f"{PLAIN}models: [{{match: m, context: 8000, price: null}}]\n").models
    assert rule.price is None and rule.is_about_limits


def test_a_model_may_cost_nothing() -> None:
    assert ModelPrice(input=0, output=0).name("m") == Price(input=0, output=0, name="m")


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        ("{input: -1, output: 1}", "models[0].price.input"),
        ("{input: 1}", "models[0].price.output"),
        ("{input: 1, output: 1, outptu: 2}", "output"),
        ("{input: .inf, output: 1}", "models[0].price.input"),
        ("{input: 1, cached_input: 0.1, output: 1}", "models[0].price.cached_input"),
    ],
)
def test_a_price_that_says_nothing_sensible_is_refused(tmp_path: Path, price: str, expected: str) -> None:
    assert_refused(tmp_path, f"{PLAIN}models:\n  - {{match: m, price: {price}}}\n", 4, expected)


def test_the_list_of_before_names_its_new_place(tmp_path: Path) -> None:
    rule = "prices: [{match: m, input: 1, output: 1}]\n"
    assert_refused(tmp_path, PLAIN + rule, 3, "'prices' has moved into the rules of 'models'")
