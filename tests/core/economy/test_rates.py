"""Relative prices, from price lists and from what an upstream has reported."""

from dataclasses import replace

import pytest

from gateway.core.economy.rates import Rates, choose_rates, with_cache
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        (Price(input=1.25, cached_input=0.125, output=10), Rates(1.0, 0.1, 8.0)),
        (Price(input=4, cached_input=0.5, cache_write=5, output=20), Rates(1.25, 0.125, 5.0)),
        (Price(input=2, output=6), Rates(1.0, 1.0, 3.0)),
        (Price(input=2, cached_input=4, output=6), Rates(1.0, 1.0, 3.0)),
    ],
)
def test_rates_are_prices_beside_fresh_input(price: Price, expected: Rates) -> None:
    found = choose_rates(price)
    assert found == expected
    assert found.caches == (expected.read < 1)
    assert with_cache(found) == found


@pytest.mark.parametrize("price", [None, Price(input=0, output=0)])
@pytest.mark.parametrize(("has_cached", "read"), [(True, 0.1), (False, 1.0)])
def test_without_a_price_cached_tokens_tell(price: Price | None, has_cached: bool, read: float) -> None:
    expected = Rates(1.0, read, 8.0, is_free=price is not None, is_guessed=True)
    found = choose_rates(price, BranchLedger(has_cached=has_cached))
    assert found == expected
    assert with_cache(found) == replace(expected, read=0.1)


def test_a_cache_that_marks_ask_for_counts_only_where_it_shows() -> None:
    marked = Price(input=4, cached_input=0.5, cache_write=5, output=20)
    assert choose_rates(marked, BranchLedger(is_uncached=True)) == Rates(1.0, 1.0, 5.0)
    # A miss of a cache that needs no marks says nothing.
    automatic = Price(input=4, cached_input=0.5, output=20)
    assert choose_rates(automatic, BranchLedger(is_uncached=True)) == Rates(1.0, 0.125, 5.0)


def test_a_call_is_weighed_in_tokens_of_fresh_input() -> None:
    rates = Rates(write=1.25, read=0.1, output=5.0)
    assert rates.weigh(Usage(1_000, 10, cached_tokens=600, cache_write_tokens=200)) == 200 + 60 + 250 + 50
    assert rates.weigh(Usage(1_000, 10)) == 1_050
