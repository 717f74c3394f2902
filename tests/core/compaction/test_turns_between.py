"""Conversations of a hundred requests in small windows: how many turns fit between two compactions."""

import random

import pytest

from gateway.core.policy import Policy, Trigger
from tests.builders.long_run import play

_TURNS = 100


def draw_turns(average: int, *, spread: float, large_every: int = 0) -> list[int]:
    """large_every: one of so many turns is four times as large as the average of the others."""
    rng = random.Random(1)
    return [
        4 * average
        if large_every and turn % large_every == large_every - 1
        else int(average * rng.uniform(1 - spread, 1 + spread))
        for turn in range(_TURNS)
    ]


# A third of the window is floor. Before there was a rule for turns, these took 18 to 31 compactions.
@pytest.mark.parametrize("spread", [0.0, 0.6])
@pytest.mark.parametrize(
    ("window", "floor", "turn"),
    [
        (16_000, 5_333, 640),
        (24_000, 8_000, 960),
        (24_000, 8_000, 1_200),
        (48_000, 16_000, 1_920),
        (48_000, 16_000, 2_400),
    ],
)
def test_six_turns_fit_between_two_compactions(window: int, floor: int, turn: int, spread: float) -> None:
    run = play(Policy(), window, floor, draw_turns(turn, spread=spread))
    assert 1 <= len(run.compacted) <= _TURNS / 6 + 1
    assert min(run.caps) >= 1_024
    assert max(plan.sent for plan in run.plans) <= 0.75 * window


# As Codex and Qwen Code in tests/agents, where a turn adds 0.08 of the window. Before: 62 and 48 compactions.
@pytest.mark.parametrize(("window", "floor", "turn"), [(24_000, 8_000, 1_920), (48_000, 16_000, 3_840)])
def test_a_window_that_is_too_small_holds_as_many_turns_as_it_can_and_this_is_said(
    window: int, floor: int, turn: int
) -> None:
    run = play(Policy(), window, floor, draw_turns(turn, spread=0.0))
    assert run.turns_between == 4
    small = run.plans[-1].small_window
    assert small is not None and (small.turns, small.floor) == (3, floor)
    assert small.sufficient is not None
    larger = play(Policy(), small.sufficient, floor, draw_turns(turn, spread=0.0))
    assert larger.turns_between >= 6
    assert all(plan.small_window is None for plan in larger.plans)


@pytest.mark.parametrize(("window", "floor"), [(24_000, 8_000), (48_000, 16_000)])
def test_large_outputs_now_and_then_change_little(window: int, floor: int) -> None:
    """Every tenth turn is four times as large, so that the average is 0.04 of the window."""
    turns = draw_turns(int(0.04 / 1.3 * window), spread=0.6, large_every=10)
    run = play(Policy(), window, floor, turns)
    assert len(run.compacted) <= _TURNS / 6 + 1


def test_nothing_is_said_before_the_first_compaction() -> None:
    run = play(Policy(), 24_000, 8_000, draw_turns(1_920, spread=0.0))
    assert all(plan.small_window is None for plan in run.plans[: run.compacted[0]])


@pytest.mark.parametrize("window", [128_000, 200_000, 1_000_000])
def test_large_windows_are_compacted_as_without_the_rule(window: int) -> None:
    """Turns of 4 % of the window beside a floor of a tenth."""
    free = Policy(trigger=Trigger(fewest_turns=0))
    turns = draw_turns(int(0.04 * window), spread=0.3)
    with_rule, without = (play(policy, window, window // 10, turns) for policy in (Policy(), free))
    assert (with_rule.compacted, with_rule.caps) == (without.compacted, without.caps)
