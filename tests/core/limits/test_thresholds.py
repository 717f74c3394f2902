import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import (
    RequestSize,
    Thresholds,
    choose_thresholds,
    count_turns_that_fit,
    usable_tokens,
)
from gateway.core.policy import Keep, Policy, Trigger
from gateway.core.sizing.usage import Usage
from tests.shared_data import SHARED, requires_shared

_ADAPTIVE = Policy()
_SOURCE = Policy(trigger=Trigger(formula="source"))
_MONOTONIC = ("hard", "soft", "target", "tail", "opening", "summary")

_windows = st.one_of(st.integers(4_000, 2_000_000), st.integers(4_000, 140_000), st.integers(77_900, 100_100))
_turns = st.one_of(st.just(0.0), st.floats(1, 50_000), st.floats(1, 1e7))
_optional = st.one_of(st.none(), st.integers(0, 3_000_000))


def exceeds_usable(usage: Usage, limits: Limits, trigger: Trigger) -> bool:
    """Whether the next call would exceed the usable input. Cached tokens count once in `usage`."""
    usable = usable_tokens(limits, trigger)
    if usable is None:
        return False
    return usage.total >= usable if trigger.at_line else usage.total > usable


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """A window from 4K to 2M tokens with a context limit, an input limit, or both."""
    context, limit = draw(_windows), draw(_windows)
    known = draw(st.sampled_from(["context", "input", "both"]))
    return Limits(
        context=None if known == "input" else context,
        input=None if known == "context" else min(limit, context) if known == "both" else limit,
        output=draw(_optional),
    )


def demands() -> st.SearchStrategy[RequestSize]:
    return st.builds(
        RequestSize,
        requested=_optional,
        growth=st.floats(0, 1e7, allow_nan=False),
        turn=_turns,
        floor=st.integers(0, 3_000_000),
    )


def thresholds_at(window: int, policy: Policy = _ADAPTIVE, **size: float) -> Thresholds:
    thresholds = choose_thresholds(policy, Limits(context=window), RequestSize(**size))  # type: ignore[arg-type]
    assert thresholds is not None
    return thresholds


@pytest.mark.parametrize("unlimited", [Limits(), Limits(output=4_096), Limits(context=0, input=0)])
def test_unknown_limits_give_no_thresholds(unlimited: Limits) -> None:
    assert choose_thresholds(_ADAPTIVE, unlimited, RequestSize()) is None


# Calculated by hand from docs/design.md (When it is full), without a requested reply, growth or floor.
@pytest.mark.parametrize(
    ("window", "hard", "soft", "target", "tail", "opening", "summary"),
    [
        (16_000, 12_000, 11_200, 6_000, 1_800, 2_400, 1_600),
        (32_000, 24_000, 22_400, 12_000, 3_600, 4_800, 3_200),
        (128_000, 92_000, 85_600, 46_000, 13_800, 19_200, 4_096),
        (200_000, 150_000, 140_000, 75_000, 20_000, 30_000, 4_096),
        (1_000_000, 750_000, 700_000, 375_000, 20_000, 150_000, 4_096),
    ],
)
def test_the_thresholds_of_usual_windows(
    window: int, hard: int, soft: int, target: int, tail: int, opening: int, summary: int
) -> None:
    assert thresholds_at(window) == Thresholds(
        window=window,
        context=window,
        hard=hard,
        soft=soft,
        target=target,
        tail=tail,
        opening=opening,
        summary=summary,
        longest_summary=summary,
    )


# The thresholds at which clients compact. Ours must be lower.
@pytest.mark.parametrize(
    ("window", "clients"),
    [
        (128_000, [95_000, 96_000, 102_000, 102_000, 104_000, 107_000, 115_000]),
        (200_000, [160_000, 160_000, 162_000, 167_000, 167_000, 168_000, 180_000]),
    ],
)
@pytest.mark.parametrize("requested", [None, 4_096, 32_000])
def test_the_hard_threshold_is_below_that_of_every_client(
    window: int, clients: list[int], requested: int | None
) -> None:
    thresholds = choose_thresholds(_ADAPTIVE, Limits(context=window), RequestSize(requested=requested))
    assert thresholds is not None and thresholds.hard < min(clients)


def test_a_reserve_above_a_quarter_lowers_the_hard_threshold() -> None:
    # reserve = min(max(20,000, 8,000), 20,000, 0.25 x 48,000 = 12,000) = 12,000
    assert thresholds_at(48_000, requested=20_000).hard == 36_000
    wide = replace(_ADAPTIVE, trigger=Trigger(hard_ratio=0.95))
    # reserve = min(max(requested, 8,000), 20,000): 60,000 - 8,000, - 12,000, - 15,000 (a quarter)
    hard = [thresholds_at(60_000, wide, requested=requested).hard for requested in (1, 12_000, 32_000)]
    assert hard == [52_000, 48_000, 45_000]


def test_an_input_limit_determines_the_window() -> None:
    thresholds = choose_thresholds(
        _ADAPTIVE, Limits(context=400_000, input=272_000, output=128_000), RequestSize()
    )
    # window = min(400,000, 272,000 + 20,000); hard = min(219,000, 272,000, 256,000)
    assert thresholds is not None and (thresholds.window, thresholds.context, thresholds.hard) == (
        292_000,
        400_000,
        219_000,
    )
    small = choose_thresholds(_ADAPTIVE, Limits(input=8_000), RequestSize())
    # reserve = 0.25 x 8,000; window = 10,000; hard = min(7,500, 8,000)
    assert small is not None and (small.window, small.context, small.hard) == (10_000, None, 7_500)


def test_growth_lowers_the_soft_threshold_by_two_turns_up_to_a_quarter_of_the_window() -> None:
    soft = [thresholds_at(200_000, growth=growth).soft for growth in (0, 1_000, 10_000, 20_000, 1e9)]
    assert soft == [140_000, 140_000, 130_000, 110_000, 100_000]


def test_a_floor_raises_the_target_by_half() -> None:
    targets = [thresholds_at(200_000, floor=floor).target for floor in (0, 50_000, 150_000, 999_999)]
    assert targets == [75_000, 100_000, 150_000, 150_000]


def test_the_source_formula_has_one_threshold() -> None:
    known = Limits(context=200_000, output=64_000)
    thresholds = choose_thresholds(_SOURCE, known, RequestSize(growth=9_000, requested=7))
    assert thresholds is not None and (thresholds.hard, thresholds.soft) == (168_000, 168_000)
    capped = choose_thresholds(_SOURCE, Limits(context=400_000, input=272_000, output=8_000), RequestSize())
    assert capped is not None and capped.hard == 272_000


def test_the_source_formula_keeps_at_least_a_quarter_of_the_window() -> None:
    thresholds = choose_thresholds(_SOURCE, Limits(context=4_096), RequestSize())
    assert thresholds is not None and thresholds.hard == 1_024


@given(limits(), demands(), st.sampled_from([_ADAPTIVE, _SOURCE]))
def test_all_thresholds_are_positive_and_in_order(limits: Limits, size: RequestSize, policy: Policy) -> None:
    thresholds = choose_thresholds(policy, limits, size)
    assert thresholds is not None
    assert 0 < thresholds.soft <= thresholds.hard < thresholds.window
    assert 0 < thresholds.target <= thresholds.hard
    assert min(thresholds.tail, thresholds.opening, thresholds.summary) > 0
    assert thresholds.window <= (limits.context or thresholds.window)


@given(
    st.builds(
        RequestSize,
        requested=_optional,
        growth=st.floats(0, 1e7),
        turn=_turns,
        floor=st.one_of(st.integers(0, 3_000_000), st.integers(0, 40_000)),
    ),
    _windows,
    st.integers(1, 5_000),
    _optional,
)
def test_no_threshold_falls_when_the_window_grows(
    size: RequestSize, window: int, more: int, output: int | None
) -> None:
    for step in (1, 3, more):
        small = choose_thresholds(_ADAPTIVE, Limits(context=window, output=output), size)
        large = choose_thresholds(_ADAPTIVE, Limits(context=window + step, output=output), size)
        assert small is not None and large is not None
        for line in _MONOTONIC:
            assert getattr(small, line) <= getattr(large, line), line


@pytest.mark.parametrize("growth", [0.0, 50.0, 5_000.0, 1e9])
def test_no_threshold_falls_where_the_client_margin_begins(growth: float) -> None:
    windows = [*range(77_900, 78_200), *range(99_900, 100_100)]
    thresholds = [thresholds_at(window, growth=growth) for window in windows]
    for line in _MONOTONIC:
        values = [getattr(each, line) for each in thresholds]
        assert values == sorted(values), line


# hard, what the turns leave of it above the floor, and how summary and tail share that.
@pytest.mark.parametrize(
    ("window", "floor", "turn", "soft", "target", "tail", "summary"),
    [
        # 150,000 - 30,000 - 6 x 5,000 = 90,000: more than everything needs.
        (200_000, 30_000, 5_000, 130_000, 90_000, 20_000, 4_096),
        # 18,000 - 8,000 - 6 x 1,000 = 4,000: half each.
        (24_000, 8_000, 1_000, 16_000, 12_000, 2_000, 2_000),
        # 18,000 - 8,000 - 6 x 1,250 = 2,500: one turn for the tail.
        (24_000, 8_000, 1_250, 16_750, 10_500, 1_250, 1_250),
        # 36,000 - 16,000 - 6 x 2,500 = 5,000: the same with twice as much of everything.
        (48_000, 16_000, 2_500, 33_500, 21_000, 2_500, 2_500),
        # No room for six turns: one for the tail, and the least that a summary needs.
        (24_000, 8_000, 2_000, 16_000, 11_024, 2_000, 1_024),
        (48_000, 16_000, 4_000, 32_000, 22_000, 4_000, 2_000),
    ],
)
def test_tail_and_summary_share_what_six_turns_leave(
    window: int, floor: int, turn: float, soft: int, target: int, tail: int, summary: int
) -> None:
    found = thresholds_at(window, growth=2 * turn, turn=turn, floor=floor)
    assert (found.soft, found.target, found.tail, found.summary) == (soft, target, tail, summary)


@given(limits(), demands())
def test_six_turns_fit_between_two_compactions_wherever_they_can(limits: Limits, size: RequestSize) -> None:
    thresholds = choose_thresholds(_ADAPTIVE, limits, size)
    assert thresholds is not None
    if not size.turn or count_turns_that_fit(thresholds, size) < 6:
        return
    lead = thresholds.hard - thresholds.soft
    kept = max(thresholds.tail, lead, size.turn)
    # A token for rounding; the smallest tail is a turn, and the least summary 1,024 tokens or its usual cap.
    assert size.floor + thresholds.summary + kept + 6 * size.turn <= thresholds.hard + 1
    assert thresholds.target + 6 * size.turn <= thresholds.hard + 1


@given(limits(), demands())
def test_a_summary_gives_way_no_further_than_to_a_useful_length(limits: Limits, size: RequestSize) -> None:
    usual = choose_thresholds(_ADAPTIVE, limits, replace(size, turn=0.0))
    found = choose_thresholds(_ADAPTIVE, limits, size)
    assert usual is not None and found is not None
    assert min(usual.summary, 1_024) <= found.summary <= usual.summary == found.longest_summary
    assert found.tail <= usual.tail and found.target <= usual.target and found.soft >= usual.soft
    assert found.hard == usual.hard


@given(st.integers(128_000, 2_000_000), st.floats(0, 0.2), st.floats(0, 0.04))
def test_usual_turns_in_large_windows_change_no_threshold(window: int, floor: float, turn: float) -> None:
    size = RequestSize(growth=2 * turn * window, turn=turn * window, floor=int(floor * window))
    known = Limits(context=window)
    usual = choose_thresholds(_ADAPTIVE, known, replace(size, turn=0.0))
    assert choose_thresholds(_ADAPTIVE, known, size) == usual


@given(limits(), demands())
def test_only_the_adaptive_formula_leaves_room_for_turns(limits: Limits, size: RequestSize) -> None:
    free = replace(_ADAPTIVE, trigger=Trigger(fewest_turns=0))
    for policy in (_SOURCE, _UTILIZATION, free):
        assert choose_thresholds(policy, limits, size) == choose_thresholds(
            policy, limits, replace(size, turn=0.0)
        )


@given(limits(), demands())
def test_a_policy_without_a_tail_keeps_no_tail(limits: Limits, size: RequestSize) -> None:
    policy = replace(_SOURCE, keep=Keep(tail_tokens=0, tail_ratio=0.0, opening=False))
    thresholds = choose_thresholds(policy, limits, size)
    assert thresholds is not None and thresholds.tail == 0


_UTILIZATION = Policy(
    trigger=Trigger(
        formula="ratio", hard_ratio=0.95, soft_ratio=0.8, reserve_minimum=16_384, reserve_maximum=16_384
    ),
    keep=Keep(tail_window=0.4),
)


# ratio x window - reserve; the reserve is 16,384, or a quarter of the window if that is less.
@pytest.mark.system(12)
@pytest.mark.parametrize(
    ("window", "hard", "soft", "tail"),
    [(200_000, 173_616, 143_616, 80_000), (16_000, 11_200, 8_800, 6_400), (4_000, 2_800, 2_200, 1_600)],
)
def test_ratio_thresholds_are_parts_of_the_window_less_the_reserve(
    window: int, hard: int, soft: int, tail: int
) -> None:
    thresholds = thresholds_at(window, _UTILIZATION)
    assert (thresholds.hard, thresholds.soft, thresholds.tail) == (hard, soft, tail)


def test_ratios_are_not_rounded_down_by_binary_fractions() -> None:
    trigger = Trigger(formula="ratio", hard_ratio=0.9, soft_ratio=0.9, reserve_ratio=0.0)
    for window in range(4_000, 2_000_000, 9_970):
        assert thresholds_at(window, Policy(trigger=trigger)).hard == window * 9 // 10


def test_a_threshold_that_counts_as_full_is_one_token_lower() -> None:
    source = replace(_SOURCE.trigger, at_line=True)
    assert thresholds_at(100_000, Policy(trigger=source)).hard == 67_999
    assert thresholds_at(100_000, _SOURCE).hard == 68_000


def test_a_reserve_is_kept_below_an_input_limit() -> None:
    limits = Limits(context=400_000, input=272_000, output=128_000)
    for reserve, hard in ((0, 272_000), (None, 252_000), (50_000, 222_000)):
        trigger = replace(_SOURCE.trigger, input_reserve=reserve)
        thresholds = choose_thresholds(Policy(trigger=trigger), limits, RequestSize())
        assert thresholds is not None and thresholds.hard == hard


@given(limits(), demands(), st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.booleans())
def test_ratio_thresholds_are_positive_and_in_order(
    limits: Limits, size: RequestSize, hard: float, soft: float, at_line: bool
) -> None:
    trigger = Trigger(formula="ratio", hard_ratio=hard, soft_ratio=soft, at_line=at_line)
    thresholds = choose_thresholds(Policy(trigger=trigger), limits, size)
    assert thresholds is not None
    assert 1 <= thresholds.soft <= thresholds.hard < thresholds.window


@given(st.integers(4_096, 2_000_000), st.one_of(st.none(), st.integers(1, 64_000)))
def test_a_clients_own_summary_passes_as_long_as_it_fits(window: int, requested: int | None) -> None:
    known = Limits(context=window)
    usual = choose_thresholds(_ADAPTIVE, known, RequestSize(requested=requested))
    own = choose_thresholds(_ADAPTIVE, known, RequestSize(requested=requested, purpose="summary"))
    assert usual is not None and own is not None
    assert usual.hard <= own.hard == own.soft < own.window
    assert own.hard >= 0.75 * window


@pytest.mark.parametrize(
    ("window", "least_gets"), [(200_000, 0), (16_000, 1_000), (15_000, 1_250), (14_999, 0)]
)
def test_a_minimum_reply_has_its_room_unless_it_needs_a_third_of_the_window(
    window: int, least_gets: int
) -> None:
    plain, thresholds = thresholds_at(window), thresholds_at(window, minimum_reply=5_000)
    assert plain.hard - thresholds.hard == plain.soft - thresholds.soft == least_gets


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
        # The recorded formula has no cap on the output, but ours has one.
        cap = max(_CAP, limits.output or 0)
        trigger = Trigger(output_cap=cap)
        assert exceeds_usable(read_tokens(case), limits, trigger) == case["seed_formula"], case["name"]


@requires_shared
def test_the_later_formula_decides_as_recorded() -> None:
    decided = [case for case in read_cases() if case["auto"]]
    assert decided
    for case in decided:
        trigger = replace(_CURRENT, input_reserve=case.get("reserved"))
        assert exceeds_usable(read_tokens(case), Limits(**case["limit"]), trigger) == case["current"], case[
            "name"
        ]


@pytest.mark.system(1)
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
def test_usable_tokens_follow_the_source_formula(limits: Limits, usable: int | None) -> None:
    assert usable_tokens(limits, Trigger()) == usable


def test_an_exactly_full_window_does_not_overflow() -> None:
    limits = Limits(context=100_000, output=8_000)
    assert not exceeds_usable(Usage(90_000, 2_000), limits, Trigger())
    assert exceeds_usable(Usage(90_000, 2_001), limits, Trigger())


@pytest.mark.system(1)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_without_a_context_limit_nothing_overflows(prompt: int, output: int) -> None:
    assert not exceeds_usable(Usage(prompt, output), Limits(input=10), Trigger())
