import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.clamp import SMALLEST_REPLY_TOKENS, choose_output
from gateway.core.sizing.estimate import Estimate


@pytest.mark.parametrize(
    ("requested", "context", "tokens", "unsure", "expected"),
    [
        (None, 16_000, 15_000, 0, None),
        (32_000, None, 15_000, 0, None),
        (4_000, 16_000, 11_936, 0, None),
        (4_000, 16_000, 11_937, 0, 3_999),
        (4_000, 16_000, 11_000, 937, 3_999),
        (32_000, 16_000, 4_000, 0, 11_936),
        (32_000, 16_000, 15_900, 0, 1_024),
        (32_000, 16_000, 99_000, 0, 1_024),
        (1_024, 16_000, 16_000, 0, None),
        (500, 16_000, 16_000, 0, None),
    ],
)
def test_the_reply_is_clamped_to_what_is_left(
    requested: int | None, context: int | None, tokens: int, unsure: int, expected: int | None
) -> None:
    assert choose_output(requested, context, Estimate(tokens, unsure)) == expected


_TOKENS = st.integers(0, 2_000_000)


@given(_TOKENS, _TOKENS, _TOKENS, _TOKENS)
def test_clamping_never_raises_the_output_and_is_idempotent(
    requested: int, context: int, tokens: int, unsure: int
) -> None:
    estimate = Estimate(tokens, unsure)
    clamped = choose_output(requested, context, estimate)
    if clamped is None:
        return
    assert SMALLEST_REPLY_TOKENS <= clamped < requested
    assert clamped == SMALLEST_REPLY_TOKENS or tokens + unsure + clamped <= context
    assert choose_output(clamped, context, estimate) is None


@pytest.mark.parametrize(
    ("least", "expected"), [(0, 1_024), (500, 1_024), (5_000, 5_000), (5_400, 1_024), (40_000, 1_024)]
)
def test_a_minimum_reply_is_respected_unless_it_is_too_large_for_the_window(
    least: int, expected: int
) -> None:
    assert choose_output(32_000, 16_000, Estimate(15_900, 0), least) == expected
    assert choose_output(4_999, 16_000, Estimate(15_900, 0), 5_000) is None
