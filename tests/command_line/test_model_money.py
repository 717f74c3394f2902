"""A model's price and where it is from, and when compactions pay."""

from pathlib import Path

import pytest

from gateway.activity.prices import load_price_table, make_price_list
from gateway.command_line.model_money import describe_economy, describe_price, list_price
from gateway.core.money import Price
from gateway.core.policy import Policy
from gateway.settings import Settings
from tests.builders.settings import PLAIN, load_text


def describe(settings: Settings, model: str) -> list[str]:
    prices = make_price_list(settings, load_price_table())
    return [line.strip() for line in describe_price(settings, prices, model, "default")]


def test_a_price_is_shown_with_its_source(tmp_path: Path) -> None:
    rules = "  - {match: 'gpt*', context: 9000}\n  - {match: 'gpt*', price: {input: 2, output: 8}}\n"
    text = f"{PLAIN}models:\n{rules}"
    money, source = describe(load_text(tmp_path, text), "gpt-4o")
    assert money == "price    $2 in, $8 out"
    line = 1 + text[: text.index("price")].count("\n")
    assert source.endswith(f"f.yaml:{line}, the rule with match 'gpt*'")
    money, source = describe(load_text(tmp_path, PLAIN), "gpt-4o")
    assert money == "price    $2.5 in, $1.25 cached, $10 out"
    assert source == "for a million tokens, from the bundled table, as gpt-4o"
    (unknown,) = describe(load_text(tmp_path, PLAIN), "made-up")
    assert "unknown" in unknown


def test_programs_get_it_by_the_names_of_the_settings() -> None:
    assert list_price(None) is None
    price = list_price(Price(input=2, output=8, cached_input=0.5, name="m"))
    assert price == {"input": 2, "cached": 0.5, "write": None, "output": 8, "name": "m"}


@pytest.mark.parametrize(
    ("economy", "price", "said"),
    [
        (1.0, Price(input=2, output=8), ["as much as a compaction"]),
        (2.5, None, ["2.5 times a compaction"]),
        (0.0, Price(input=2, output=8), []),
        (1.0, Price(input=0, output=0), []),
    ],
)
def test_when_compactions_pay_is_said(economy: float, price: Price | None, said: list[str]) -> None:
    lines = describe_economy(Policy(economy=economy), price)
    assert [line.partition("have cost ")[2] for line in lines] == said
