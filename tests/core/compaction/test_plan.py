"""What a plan holds of the situation that it is made of."""

from dataclasses import replace

import pytest

from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Sizes
from gateway.core.sizing.payload import MeasuredRequest
from tests.builders.chat import converse, make_batch, make_tool_talk
from tests.core.compaction.test_decision import pivot_at, planned, situate


def test_a_leading_block_that_no_window_holds_cannot_be_cut() -> None:
    short = Sizes(messages=[Size(20, 80)] * 3, environment=30_000)
    plan = planned(situate(200, turns=1, sizes=short))
    assert plan.batches == ()
    assert plan.warning is not None and "there is nothing to replace" in plan.warning


@pytest.mark.parametrize("limits", [Limits(), Limits(output=4_096)])
def test_without_known_limits_what_was_active_stays_active_and_nothing_is_added(limits: Limits) -> None:
    sticky = pivot_at(5)
    batch = make_batch(converse(make_tool_talk(10)), [Mark(8)])
    plan = planned(situate(10**6, limits=limits, sticky=sticky, pivots=[sticky], batches=[batch]))
    assert (plan.pivot, plan.batches, plan.new_batch, plan.output) == (sticky, (batch,), None, None)
    untouched = planned(situate(10**6, limits=limits, pivots=[sticky]))
    assert (untouched.pivot, untouched.batches) == (None, ())


def test_batches_that_a_pivot_covers_are_dropped() -> None:
    sticky = pivot_at(5)
    conversation = converse(make_tool_talk(10))
    covered, seen = (
        make_batch(conversation, [Mark(2)], length=7),
        make_batch(conversation, [Mark(8)], length=9),
    )
    plan = planned(situate(4_000, sticky=sticky, pivots=[sticky], batches=[covered, seen]))
    assert plan.batches == (seen,)


def test_the_reply_is_clamped_to_what_is_left() -> None:
    plan = planned(situate(9_000, requested=32_000))
    assert plan.output == 16_000 - plan.sent - int(plan.sent * 0.25) - 64


def test_bytes_and_pictures_leave_the_reply_the_room_that_the_tokens_leave() -> None:
    heavy = situate(11_000, requested=8_000)
    light = situate(2_000, requested=8_000)
    plain = MeasuredRequest(light.sizes, light.known, light.limits)
    assert planned(heavy).output is not None
    assert planned(replace(heavy, in_tokens=plain)).output is None


def test_a_small_window_is_named_once_a_pivot_is_in_use_and_only_where_tokens_fill_it() -> None:
    # Ten turns of 1,900 tokens, and 12,000 tokens below the hard threshold.
    sticky = pivot_at(15)
    situation = situate(19_100, sticky=sticky, pivots=[sticky])
    small = planned(situation).small_window
    assert small is not None and (small.window, small.turn, small.turns) == (16_000, 1_900, 4)
    assert planned(replace(situation, sticky=None, pivots=[], may_compact=False)).small_window is None
    assert planned(replace(situation, limits=Limits(context=24_000))).small_window is None
    by_hand = replace(situation, policy=Policy(auto=False), may_compact=False)
    assert planned(by_hand).small_window is None
    pictures = MeasuredRequest(situation.sizes, situation.known, situation.limits)
    assert planned(replace(situation, in_tokens=pictures)).small_window is None
