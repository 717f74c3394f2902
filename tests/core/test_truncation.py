import pytest

from gateway.core.estimate import Estimate
from gateway.core.truncation import is_truncated


@pytest.mark.parametrize(
    ("prompt_tokens", "estimate", "expected"),
    [
        (4_096, Estimate(20_000, 1_000), True),
        (9_499, Estimate(20_000, 1_000), True),
        (9_500, Estimate(20_000, 1_000), False),
        (20_000, Estimate(20_000, 1_000), False),
        # Before the first usage an estimate may be wrong by 70 %.
        (4_096, Estimate(20_000, 14_000), False),
        (2_048, Estimate(20_000, 14_000), True),
        # Too little to tell, and an answer that counted nothing.
        (900, Estimate(2_048, 0), False),
        (0, Estimate(20_000, 1_000), False),
    ],
)
def test_a_count_far_below_the_estimate_means_that_the_prompt_was_cut(
    prompt_tokens: int, estimate: Estimate, expected: bool
) -> None:
    assert is_truncated(prompt_tokens, estimate) is expected
