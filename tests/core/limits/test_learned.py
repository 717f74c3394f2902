import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits

DAY = 86_400.0
NOW = 1_800_000_000.0
NOTHING = Learned(owner="t")

_TOKENS = st.one_of(st.none(), st.integers(-5, 200_000_000))
_LIMITS = st.builds(
    Limits, context=_TOKENS, input=_TOKENS, output=_TOKENS, body_bytes=_TOKENS, images=_TOKENS
)


def test_the_smallest_number_is_kept() -> None:
    learned = NOTHING.with_proof(Limits(context=65_536), NOW)
    learned = learned.with_proof(Limits(context=32_768, input=30_000), NOW + 1)
    learned = learned.with_proof(Limits(context=131_072), NOW + 2)
    assert learned.proven_at(NOW + 3) == Limits(context=32_768, input=30_000)


def test_a_proof_expires_after_a_week_and_the_same_proof_renews_it() -> None:
    learned = NOTHING.with_proof(Limits(context=8_192), NOW)
    assert learned.proven_at(NOW + 6.9 * DAY).context == 8_192
    assert learned.proven_at(NOW + 7.1 * DAY) == Limits()
    renewed = learned.with_proof(Limits(context=8_192), NOW + 3 * DAY)
    assert renewed.proven_at(NOW + 9 * DAY).context == 8_192


def test_a_larger_number_counts_only_after_the_smaller_one_has_expired() -> None:
    learned = NOTHING.with_proof(Limits(context=8_192), NOW)
    assert learned.with_proof(Limits(context=16_384), NOW + 3 * DAY) is learned
    later = learned.with_proof(Limits(context=16_384), NOW + 8 * DAY)
    assert later.proven_at(NOW + 8 * DAY).context == 16_384


def test_repeated_equal_errors_change_nothing() -> None:
    learned = NOTHING.with_proof(Limits(context=8_192), NOW)
    assert learned.with_proof(Limits(context=8_192), NOW + 60) is learned


def test_setting_back_the_clock_keeps_nothing_for_ever() -> None:
    learned = NOTHING.with_proof(Limits(context=8_192), NOW + 365 * DAY)
    assert learned.proven_at(NOW) == Limits()


def test_a_success_far_above_a_proven_window_disproves_it() -> None:
    learned = NOTHING.with_proof(Limits(context=300, body_bytes=9_000), NOW)
    assert learned.with_success(450) is learned
    assert learned.with_success(451).proven_at(NOW) == Limits(body_bytes=9_000)
    assert NOTHING.with_success(10**9) is NOTHING


@pytest.mark.parametrize("tokens", [-1, 0, 1, 255, 100_000_001, 10**30])
def test_an_implausible_number_is_ignored(tokens: int) -> None:
    limits = Limits(context=tokens, input=tokens, output=tokens, body_bytes=-1, images=10**30)
    assert NOTHING.with_proof(limits, NOW) is NOTHING
    assert NOTHING.with_proof(Limits(context=tokens, input=9_000), NOW).proven == Limits(input=9_000)


def test_an_error_without_numbers_bounds_the_window_a_tenth_below_the_request() -> None:
    learned = NOTHING.with_refusal(100_000, NOW)
    assert learned.suspected_at(NOW) == Limits(context=90_000)
    assert learned.with_refusal(90_000, NOW).suspected_at(NOW) == Limits(context=81_000)
    assert learned.with_refusal(200_000, NOW) is learned


def test_a_guess_holds_for_a_day() -> None:
    learned = NOTHING.with_refusal(100_000, NOW)
    assert learned.suspected_at(NOW + 0.9 * DAY).context == 90_000
    assert learned.suspected_at(NOW + 1.1 * DAY) == Limits()
    assert learned.with_refusal(200_000, NOW + 1.1 * DAY).suspected == 180_000


@pytest.mark.parametrize("tokens", [-10, 0, 500, 4_000, 200_000_000])
def test_an_error_for_a_tiny_request_is_not_about_the_window(tokens: int) -> None:
    assert NOTHING.with_refusal(tokens, NOW) is NOTHING


def test_numbers_replace_a_guess_and_a_guess_never_replaces_numbers() -> None:
    guessed = NOTHING.with_refusal(100_000, NOW)
    told = guessed.with_proof(Limits(context=128_000), NOW + 1)
    assert (told.suspected_at(NOW + 1), told.proven_at(NOW + 1)) == (Limits(), Limits(context=128_000))
    assert told.with_refusal(50_000, NOW + 2) is told
    assert told.with_refusal(50_000, NOW + 8 * DAY).suspected_at(NOW + 8 * DAY).context == 45_000


def test_a_limit_of_something_else_keeps_the_guess() -> None:
    guessed = NOTHING.with_refusal(100_000, NOW)
    told = guessed.with_proof(Limits(output=8_192), NOW)
    assert told.suspected_at(NOW) == Limits(context=90_000)


@given(st.lists(_LIMITS, max_size=6))
def test_learned_limits_only_shrink_and_are_plausible(told: list[Limits]) -> None:
    learned = NOTHING
    for each in told:
        before, learned = learned, learned.with_proof(each, NOW)
        assert learned.proven.with_caps(before.proven) == learned.proven
    for tokens in (learned.proven.context, learned.proven.input, learned.proven.output):
        assert tokens is None or 256 <= tokens <= 100_000_000
