"""Numbers in few characters."""

from datetime import UTC, datetime

import pytest

from gateway.command_line.figures import draw_bar, show_ago, show_tokens, show_usd

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        *((None, "–"), (0, "0"), (999, "999"), (1_000, "1k"), (12_345, "12.3k"), (99_940, "99.9k")),
        *((99_960, "100k"), (128_000, "128k"), (999_499, "999k"), (999_500, "1M"), (1_250_000, "1.2M")),
    ],
)
def test_tokens_take_five_characters(tokens: int | None, shown: str) -> None:
    assert show_tokens(tokens) == shown and len(shown) <= 5


def test_money_that_is_not_known_is_not_nothing() -> None:
    assert [show_usd(usd) for usd in (None, 0.0, 0.0123, 12.345)] == ["–", "$0.00", "$0.0123", "$12.35"]


def test_times_are_said_in_one_unit() -> None:
    times = ("2026-11-23T11:59:55+00:00", "2026-11-23T11:57:00+00:00", "2026-11-23T09:00:00+00:00")
    assert [show_ago(time, NOW) for time in times] == ["5s", "3m", "3h"]
    assert show_ago("2026-11-20T12:00:00+00:00", NOW) == "3d"
    assert show_ago("2026-11-23T12:00:09+00:00", NOW) == "0s" and show_ago("never", NOW) == "–"


def test_a_bar_is_never_wider_than_its_place() -> None:
    assert draw_bar(50, 100, 10) == "█████░░░░░"
    assert draw_bar(50, 100, 10, limit=80) == "█████░░░│░"
    assert draw_bar(500, 100, 10, limit=80) == "█" * 10
    assert draw_bar(5, None, 10) == ""
