"""Rules about prices: what they apply to, and which are refused."""

from pathlib import Path

import pytest

from gateway.core.money import Price
from gateway.settings import PriceRule, load_settings
from tests.builders.settings import PLAIN, assert_refused


def test_a_rule_is_read_with_its_prices(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f'{PLAIN}prices: [{{match: "gpt-4o*", input: 2.5, cached_input: 1.25, output: 10}}]\n')
    (rule,) = load_settings(path, {}).prices
    assert rule.applies_to("gpt-4o-mini") and not rule.applies_to("gpt-4")
    assert rule.price == Price(input=2.5, cached_input=1.25, output=10)


def test_a_model_may_cost_nothing() -> None:
    assert PriceRule(match="*", input=0, output=0).price == Price(input=0, output=0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{match: m, input: -1, output: 1}", "prices[0].input"),
        ("{match: m, input: 1}", "prices[0].output"),
        ("{match: '^m$', input: 1, output: 1}", "is not a regular expression"),
        ("{match: m, input: 1, output: 1, outptu: 2}", "output"),
        ("{match: m, input: .inf, output: 1}", "prices[0].input"),
    ],
)
def test_a_rule_that_says_nothing_sensible_is_refused(tmp_path: Path, rule: str, expected: str) -> None:
    assert_refused(tmp_path, f"{PLAIN}prices:\n  - {rule}\n", 4, expected)
