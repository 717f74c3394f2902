import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits import Limits
from gateway.core.overflow import is_overflow, usable_tokens
from gateway.core.policy import Trigger
from gateway.core.usage import Usage
from tests.shared_data import SHARED, requires_shared

_CAP = 32_000
_CURRENT = Trigger(input_reserve=None, at_line=True)


def read_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((SHARED / "data" / "vectors.json").read_text("utf-8"))[
        "is_overflow"
    ]["cases"]
    return cases


def read_tokens(case: dict[str, Any]) -> Usage:
    tokens = case["tokens"]
    return Usage(tokens["input"] + tokens["cache_read"] + tokens["cache_write"], tokens["output"])


@requires_shared
def test_the_source_formula_decides_as_recorded() -> None:
    decided = [case for case in read_cases() if case["seed_formula"] is not None]
    assert decided
    for case in decided:
        limits = Limits(**case["limit"])
        # The recorded formula has no cap on the output; ours (DESIGN §4) has one.
        cap = max(_CAP, limits.output or 0)
        trigger = Trigger(output_cap=cap)
        assert is_overflow(read_tokens(case), limits, trigger) == case["seed_formula"], case["name"]


@requires_shared
def test_the_later_formula_with_headroom_in_both_branches_decides_as_recorded() -> None:
    decided = [case for case in read_cases() if case["auto"]]
    assert decided
    for case in decided:
        trigger = replace(_CURRENT, input_reserve=case.get("reserved"))
        assert is_overflow(read_tokens(case), Limits(**case["limit"]), trigger) == case["current"], case[
            "name"
        ]


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
    assert usable_tokens(limits, Trigger()) == usable


def test_exactly_full_is_not_over() -> None:
    limits = Limits(context=100_000, output=8_000)
    assert not is_overflow(Usage(90_000, 2_000), limits, Trigger())
    assert is_overflow(Usage(90_000, 2_001), limits, Trigger())


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_without_a_context_limit_nothing_overflows(prompt: int, output: int) -> None:
    assert not is_overflow(Usage(prompt, output), Limits(input=10), Trigger())
