"""What holds of the thresholds of every request, and which windows are too small."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import (
    RequestSize,
    Thresholds,
    choose_thresholds,
    count_turns_that_fit,
    find_small_window,
)
from gateway.core.policy import Keep, Policy, Trigger

_ADAPTIVE = Policy()
_SOURCE = Policy(trigger=Trigger(formula="source"))
_MONOTONIC = ("hard", "soft", "target", "tail", "opening", "summary")
_windows = st.one_of(st.integers(4_000, 2_000_000), st.integers(4_000, 140_000), st.integers(77_900, 100_100))
_turns = st.one_of(st.just(0.0), st.floats(1, 50_000), st.floats(1, 1e7))
_optional = st.one_of(st.none(), st.integers(0, 3_000_000))


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


@given(limits(), demands())
def test_only_the_adaptive_formula_leaves_room_for_turns(limits: Limits, size: RequestSize) -> None:
    free = replace(_ADAPTIVE, trigger=Trigger(fewest_turns=0))
    for policy in (_SOURCE, _UTILIZATION, free):
        assert choose_thresholds(policy, limits, size) == choose_thresholds(
            policy, limits, replace(size, turn=0.0)
        )


_UTILIZATION = Policy(
    trigger=Trigger(
        formula="ratio", hard_ratio=0.95, soft_ratio=0.8, reserve_minimum=16_384, reserve_maximum=16_384
    ),
    keep=Keep(tail_window=0.4),
)


def test_ratios_are_not_rounded_down_by_binary_fractions() -> None:
    trigger = Trigger(formula="ratio", hard_ratio=0.9, soft_ratio=0.9, reserve_ratio=0.0)
    for window in range(4_000, 2_000_000, 9_970):
        assert thresholds_at(window, Policy(trigger=trigger)).hard == window * 9 // 10


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


@example(7_001, 1.0, 1.0, None, 7_001, 6_969)
@given(
    st.integers(4_000, 2_000_000),
    st.floats(0, 1),
    st.floats(1, 1e6),
    st.one_of(st.none(), st.integers(1, 200_000)),
    st.integers(0, 100_000),
    st.integers(0, 50_000),
)
def test_six_turns_fit_or_the_window_that_is_named_holds_them(
    window: int, share: float, turn: float, requested: int | None, minimum: int, more_opening: int
) -> None:
    floor = int(share * window)
    size = RequestSize(requested=requested, turn=turn, floor=floor, minimum_reply=minimum)
    thresholds = choose_thresholds(_ADAPTIVE, Limits(context=window), size)
    assert thresholds is not None
    found = find_small_window(_ADAPTIVE, Limits(context=window), size, floor + more_opening)
    assert (found is None) == (count_turns_that_fit(thresholds, size) >= 6)
    if found is None:
        return
    assert 0 <= found.turns < 6 and found.sufficient is not None
    larger = Limits(context=found.sufficient)
    whole = RequestSize(requested=requested, turn=turn, floor=floor + more_opening, minimum_reply=minimum)
    assert find_small_window(_ADAPTIVE, larger, whole, whole.floor) is None
