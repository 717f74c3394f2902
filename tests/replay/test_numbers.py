"""Numbers as tables show them."""

import pytest

from gateway.replay.numbers import UNKNOWN, show_share, show_tokens, show_usd


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (999, "999"), (1_000, "1.00K"), (12_340, "12.3K"), (128_000, "128K"), (2_810_000, "2.81M")],
)
def test_tokens_have_three_digits_and_a_letter(count: int, shown: str) -> None:
    assert show_tokens(count) == shown


@pytest.mark.parametrize(
    ("usd", "shown"),
    [(0.0, "$0.00"), (0.0042, "$0.0042"), (0.126, "$0.13"), (-12.5, "-$12.50"), (1234.5, "$1,234")],
)
def test_money_shows_cents_unless_it_is_much_or_very_little(usd: float, shown: str) -> None:
    assert show_usd(usd) == shown


def test_what_is_not_known_is_no_zero() -> None:
    assert (show_tokens(None), show_usd(None), show_share(None)) == (UNKNOWN,) * 3
    assert show_share(0.9876) == "98.8%"
