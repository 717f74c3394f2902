from dataclasses import FrozenInstanceError

import pytest

from gateway.core.policy import Policy


def test_a_policy_is_immutable() -> None:
    policy = Policy()
    with pytest.raises(FrozenInstanceError):
        policy.auto = False  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        policy.keep.tail_tokens = 0  # type: ignore[misc]


def test_equal_policies_are_the_same_key() -> None:
    assert {Policy(): 1}[Policy()] == 1


def test_the_default_is_what_the_design_says() -> None:
    policy = Policy()
    trigger, keep, pruning, summary = policy.trigger, policy.keep, policy.pruning, policy.summary
    assert (policy.name, policy.auto, policy.prune, trigger.formula) == ("adaptive", True, True, "adaptive")
    assert (trigger.reserve_minimum, trigger.reserve_maximum, trigger.reserve_ratio) == (8_000, 20_000, 0.25)
    assert (trigger.hard_ratio, trigger.client_margin, trigger.client_margin_from) == (0.75, 36_000, 100_000)
    assert (trigger.growth_turns, trigger.soft_minimum, trigger.soft_maximum) == (2.0, 0.05, 0.25)
    assert (trigger.target_ratio, keep.tail_tokens, keep.tail_ratio, keep.opening_ratio) == (
        0.5,
        20_000,
        0.15,
        0.15,
    )
    assert (pruning.protect_tokens, pruning.minimum_tokens, pruning.keep_turns) == (40_000, 20_000, 0)
    assert (pruning.protect_ratio, pruning.minimum_ratio, pruning.eager) == (0.3, 0.1, False)
    assert (summary.max_tokens, summary.max_ratio) == (4_096, 0.1)
