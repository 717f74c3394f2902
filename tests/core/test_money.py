import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.money import Price, add_usd, count_saved_usd, count_usd, sum_usd
from gateway.core.sizing.usage import Usage

_PRICE = Price(input=3, cached_input=0.3, cache_write=3.75, output=15)


@pytest.mark.parametrize(
    ("price", "usage", "usd"),
    [
        (_PRICE, Usage(1_000_000, 0), 3.0),
        (_PRICE, Usage(0, 1_000_000), 15.0),
        (_PRICE, Usage(1_000_000, 0, 1_000_000), 0.3),
        (_PRICE, Usage(1_000_000, 0, 0, 1_000_000), 3.75),
        (_PRICE, Usage(1_000_000, 100_000, 600_000, 300_000), 0.3 + 0.18 + 1.125 + 1.5),
        # Without a price of its own a cached token costs as much as any other.
        (Price(input=2, output=8), Usage(1_000_000, 0, 400_000, 100_000), 2.0),
        # An upstream that reports more cached tokens than the prompt has.
        (_PRICE, Usage(100, 0, 1_000, 1_000), 100 * 0.3 / 1e6),
        (Price(input=0, output=0), Usage(5, 5), 0.0),
    ],
)
def test_a_request_costs_each_kind_of_token_at_its_price(price: Price, usage: Usage, usd: float) -> None:
    assert count_usd(price, usage) == pytest.approx(usd)


def test_saved_tokens_cost_what_the_cache_costs_where_there_is_one() -> None:
    assert count_saved_usd(_PRICE, 1_000_000, is_cached=False) == pytest.approx(3.0)
    assert count_saved_usd(_PRICE, 1_000_000, is_cached=True) == pytest.approx(0.3)
    assert count_saved_usd(Price(input=3, output=15), 1_000_000, is_cached=True) == pytest.approx(3.0)


def test_an_unknown_sum_stays_unknown_and_adds_nothing_to_a_known_one() -> None:
    assert add_usd(None, None) is None
    assert add_usd(None, 1.0) == add_usd(1.0, None) == 1.0
    assert add_usd(1.0, 2.0) == 3.0
    assert sum_usd([None, 1.0, None, 2.0]) == 3.0
    assert sum_usd([]) is None


@given(*[st.integers(0, 10**9)] * 4)
def test_cached_tokens_never_make_a_request_dearer_where_the_cache_is_cheaper(
    prompt: int, output: int, cached: int, more: int
) -> None:
    less = count_usd(_PRICE, Usage(prompt, output, cached + more))
    assert less <= count_usd(_PRICE, Usage(prompt, output, cached)) + 1e-9
