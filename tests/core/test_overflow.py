import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits import Limits
from gateway.core.overflow import is_overflow, usable_tokens
from gateway.core.usage import Usage
from tests.shared_data import SHARED, requires_shared

_CAP = 32_000


@requires_shared
def test_the_source_formula_decides_as_recorded() -> None:
    cases = json.loads((SHARED / "data" / "vectors.json").read_text("utf-8"))["is_overflow"]["cases"]
    decided = [case for case in cases if case["seed_formula"] is not None]
    assert decided
    for case in decided:
        tokens = case["tokens"]
        prompt = tokens["input"] + tokens["cache_read"] + tokens["cache_write"]
        limits = Limits(**case["limit"])
        # The recorded formula has no cap on the output; ours (DESIGN §4) has one.
        cap = max(_CAP, limits.output or 0)
        assert is_overflow(Usage(prompt, tokens["output"]), limits, cap) == case["seed_formula"], case["name"]


@pytest.mark.parametrize(
    ("limits", "usable"),
    [
        (Limits(), None),
        (Limits(input=5), None),
        (Limits(context=0, input=5), None),
        (Limits(context=100_000), 68_000),
        (Limits(context=100_000, output=0), 68_000),
        (Limits(context=100_000, output=8_000), 92_000),
        (Limits(context=100_000, output=64_000), 68_000),
        (Limits(context=100_000, input=50_000, output=8_000), 50_000),
        (Limits(context=100_000, input=0, output=8_000), 92_000),
    ],
)
def test_what_is_usable(limits: Limits, usable: int | None) -> None:
    assert usable_tokens(limits, _CAP) == usable


def test_exactly_full_is_not_over() -> None:
    limits = Limits(context=100_000, output=8_000)
    assert not is_overflow(Usage(90_000, 2_000), limits, _CAP)
    assert is_overflow(Usage(90_000, 2_001), limits, _CAP)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_without_a_context_limit_nothing_overflows(prompt: int, output: int) -> None:
    assert not is_overflow(Usage(prompt, output), Limits(input=10), _CAP)
