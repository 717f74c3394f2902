"""What is decided about a request, and after its response."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.decision import CompactFirst, DigestFirst, decide, decide_after, find_ready_pivot
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import RefusedRequest, Situation
from gateway.core.history.conversation import Conversation, find_open_group
from gateway.core.history.head import BranchLedger
from gateway.core.history.pivot import Mark, Pivot, find_eligible_pivots
from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, choose_thresholds
from gateway.core.policy import Compaction, Keep, Policy, Pruning, Summary, Trigger
from gateway.core.refusal import Overflow
from gateway.core.sizing.estimate import MeasuredRequest, Sizes
from tests.decisions.builders import (
    CALIBRATED,
    JSON,
    NOTHING,
    bodies,
    converse,
    make_batch,
    make_head,
    make_pivot,
    make_tool_talk,
    pivot_at,
    planned,
    read,
    situate,
)
from tests.examples import examples

# Drawing whole conversations takes long.
few = examples(20, exhaustive=40)


def test_below_the_thresholds_nothing_is_done() -> None:
    plan = planned(situate(8_000))
    assert (plan.pivot, plan.batches, plan.new_batch, plan.output, plan.warning) == (
        None,
        (),
        None,
        None,
        None,
    )
    assert plan.received == plan.sent == pytest.approx(8_000, abs=20)


def weigh_exactly(total: int, **fields: Any) -> Situation:
    """Beside 11,000 tokens of messages the environment has the rest."""
    situation = situate(11_000, results=0.5, **fields)
    return replace(situation, sizes=replace(situation.sizes, environment=total - 11_000))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_threshold_itself_is_not_above_it(more: int) -> None:
    """Hard 12,000, soft 11,200."""
    assert isinstance(decide(weigh_exactly(12_000 + more)), CompactFirst) == (more > 0)
    assert (decide_after(weigh_exactly(11_200 + more), 11_200 + more) is not None) == (more > 0)
    early, ready = replace(Policy(), trigger=Trigger(early=True)), pivot_at(15)
    plan = planned(weigh_exactly(11_200 + more, policy=early, pivots=[ready]))
    assert (plan.pivot is not None) == (more > 0)
    # It is applied above the hard threshold if it leaves no more than that: 100, 2 x 1,290 and its summary.
    ready = replace(pivot_at(17), tokens=12_000 - 100 - 2 * 1_290 + more)
    decision = decide(situate(13_000, results=0.5, pivots=[ready]))
    assert (isinstance(decision, Plan) and decision.pivot == ready) == (more <= 0)


def test_between_the_thresholds_a_batch_that_is_enough_is_taken() -> None:
    plan = planned(situate(11_500, results=0.97))
    assert plan.new_batch is not None and plan.batches == (plan.new_batch,)
    assert plan.sent < 6_050
    assert plan.received == pytest.approx(11_500, abs=20)
    assert plan.new_batch.saved_tokens == pytest.approx(plan.received - plan.sent, abs=20)


def test_between_the_thresholds_a_batch_that_is_not_enough_is_not_taken() -> None:
    assert planned(situate(11_500, results=0.5)).new_batch is None


def test_an_eager_policy_prunes_below_the_thresholds_too() -> None:
    eager = replace(Policy(), pruning=Pruning(eager=True))
    assert planned(situate(8_000, policy=eager)).new_batch is not None
    assert (
        planned(situate(8_000, policy=replace(eager, compaction=Compaction(prune=False)))).new_batch is None
    )


@pytest.mark.system(11)
def test_a_partial_policy_takes_a_batch_that_is_not_enough_but_only_above_the_soft_threshold() -> None:
    partial = replace(Policy(), pruning=Pruning(partial=True))
    assert planned(situate(11_500, results=0.5, policy=partial)).new_batch is not None
    assert planned(situate(11_000, results=0.97, policy=partial)).new_batch is None


@pytest.mark.system(12)
def test_a_policy_that_applies_early_takes_a_ready_pivot_from_the_soft_threshold_on() -> None:
    early = replace(Policy(), trigger=Trigger(early=True))
    ready = pivot_at(15)
    assert planned(situate(11_500, results=0.5, policy=early, pivots=[ready])).pivot == ready
    assert planned(situate(11_000, results=0.5, policy=early, pivots=[ready])).pivot is None
    # Without a ready pivot no request below the hard threshold waits.
    assert planned(situate(11_500, results=0.5, policy=early)).pivot is None
    # Its tail is not reduced by what will be added before the pivot is applied.
    late = situate(11_500, results=0.5)
    soon = replace(late, policy=replace(early, keep=Keep(tail_tokens=3_500, tail_ratio=1.0)))
    late = replace(late, policy=replace(late.policy, keep=soon.policy.keep))
    cuts = [decide_after(each, 11_500) for each in (late, soon)]
    assert [cut.covers for cut in cuts if cut is not None] == [17, 15]


def test_nothing_is_pruned_while_a_compaction_is_ready_or_in_progress() -> None:
    assert planned(situate(11_500, results=0.97, is_preparing=True)).new_batch is None
    assert planned(situate(11_500, results=0.97, pivots=[pivot_at(9)])).new_batch is None


def test_a_pivot_that_was_used_is_used_again_even_if_everything_would_fit() -> None:
    sticky = pivot_at(5)
    plan = planned(situate(4_000, sticky=sticky, pivots=[sticky, pivot_at(9)]))
    assert plan.pivot == sticky
    assert plan.received > plan.sent


def test_above_the_hard_threshold_without_a_pivot_it_compacts_first() -> None:
    plan = decide(situate(13_000, results=0.5))
    assert isinstance(plan, CompactFirst)
    assert (plan.cut.base, plan.cut.start, plan.cut.covers) == (None, 1, 19)


def test_the_next_pivot_builds_on_one_that_is_not_enough() -> None:
    early = pivot_at(3)
    plan = decide(situate(15_000, results=0.5, pivots=[early]))
    assert isinstance(plan, CompactFirst)
    assert (plan.cut.base, plan.cut.start) == (early, 3)


def test_chunks_are_compacted_to_near_the_target_and_not_just_below_the_hard_threshold() -> None:
    # The first pivot leaves 8,900 tokens, the second 2,900.
    some, most = pivot_at(7), pivot_at(17)
    situation = situate(13_000, results=0.5, pivots=[some])
    assert planned(situation).pivot == some
    compacting = replace(situation, has_compacted=True)
    step = decide(compacting)
    assert isinstance(step, CompactFirst) and step.cut.base == some
    assert planned(replace(compacting, pivots=[some, most])).pivot == most
    # Without a call left it is sent as it is.
    assert planned(replace(compacting, may_compact=False)).pivot == some


REFUSED = RefusedRequest(view=View(None, {}), overflow=Overflow(context=16_000, prompt_tokens=36_000))


def test_a_result_that_no_window_holds_leaves_whole_until_it_is_refused() -> None:
    plan = planned(situate(30_000, turns=1))
    assert (plan.name, plan.new_batch, plan.cut) == ("passthrough", None, 0)
    plan = planned(situate(30_000, turns=1, refused=REFUSED))
    assert plan.new_batch is not None and plan.new_batch.is_cut
    # 30,000 of ours were 36,000: of the 14,912 that fit beside a reply, 2 % stay free.
    assert plan.sent == pytest.approx(12_178, abs=5)
    assert (plan.name, plan.received - plan.sent) == ("cut", plan.cut)
    assert plan.warning is not None and "refused it as too long: message 3" in plan.warning
    assert [mark.position for mark in plan.new_batch.marks] == [2]


def test_without_numbers_our_count_says_how_much_of_what_was_refused_is_cut() -> None:
    unnumbered = replace(REFUSED, overflow=Overflow())
    # What the window holds beside a reply, and a little less.
    plan = planned(situate(30_000, turns=1, refused=unnumbered))
    assert plan.sent == pytest.approx(0.98 * 14_912, abs=5)


def test_what_was_cut_may_be_cut_further_without_another_refusal() -> None:
    first = planned(situate(30_000, turns=1, refused=REFUSED))
    grown = situate(150_000, turns=1, results=0.98, limits=Limits(context=13_000))
    marked = replace(grown, batches=list(first.batches))
    plan = planned(marked)
    assert plan.name == "cut" and plan.new_batch is not None
    assert [mark.position for mark in plan.new_batch.marks] == [2]
    assert marked.thresholds is not None and plan.sent <= marked.thresholds.target + 5


def test_true_usage_counts_more_than_our_own_count() -> None:
    conversation = converse(make_tool_talk(10))
    head = make_head(conversation, length=19, prompt_tokens=12_500, output_tokens=0)
    known = replace(CALIBRATED, head=head)
    assert isinstance(decide(situate(8_000, results=0.5, known=known)), CompactFirst)
    assert planned(situate(8_000, results=0.5)).pivot is None


@pytest.mark.parametrize("fields", [{"may_compact": False}, {"limits": Limits()}, {"pivots": [pivot_at(9)]}])
def test_nothing_is_prepared_against_the_policy_without_a_limit_or_with_a_newer_pivot(fields: JSON) -> None:
    situation = situate(11_500, results=0.5, **fields)
    assert decide_after(situation, 11_500) is None


def test_usage_of_a_request_sent_before_the_newest_pivot_was_made_triggers_nothing() -> None:
    """The request was sent with the old pivot; a newer one is ready when its usage comes back."""
    old, new = pivot_at(3), pivot_at(9)
    situation = situate(11_500, results=0.5, sticky=old, pivots=[old])
    swapped = replace(situation, pivots=[old, new])
    assert decide_after(swapped, 99_000) is None
    assert find_ready_pivot(swapped) == new and find_ready_pivot(situation) is None
    # The same usage with the new pivot active counts.
    after = replace(situation, sticky=new, pivots=[old, new])
    cut = decide_after(after, 99_000)
    assert cut is not None and cut.base == new


def test_old_messages_that_have_cost_enough_are_compacted_below_the_soft_threshold() -> None:
    situation = situate(8_000, turns=80, results=0.5)
    assert decide_after(situation, 8_000) is None
    due = decide_after(situation, 8_000, is_due=True)
    assert due is not None
    # The next request applies it, so that the tail is not reduced by what would be added until then.
    assert situation.thresholds is not None
    tail = sum(situation.calibrated.messages[due.covers :])
    assert situation.thresholds.tail - 200 <= tail <= situation.thresholds.tail
    assert decide_after(replace(situation, may_compact=False), 8_000, is_due=True) is None
    assert decide_after(situate(2_000, results=0.5), 2_000, is_due=True) is None


def test_a_pivot_is_applied_at_once_if_old_messages_have_cost_enough() -> None:
    ready, later, due = pivot_at(15), pivot_at(17), BranchLedger(is_due=True)
    assert planned(situate(8_000, pivots=[ready], ledger=due)).pivot == ready
    assert planned(situate(8_000, pivots=[ready, later], ledger=due)).pivot == later
    assert planned(situate(8_000, pivots=[ready, later], sticky=ready)).pivot == ready


def test_a_cold_cache_is_the_time_for_a_pivot_that_is_ready() -> None:
    thrifty, ready = replace(Policy(), economy=1.0), pivot_at(15)
    assert planned(situate(8_000, policy=thrifty, pivots=[ready], is_cold=True)).pivot == ready
    assert planned(situate(8_000, policy=thrifty, pivots=[ready])).pivot is None
    unpriced = replace(Policy(), economy=0.0)
    assert planned(situate(8_000, policy=unpriced, pivots=[ready], is_cold=True)).pivot is None


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    conversation = read(draw(bodies(min_turns=1, max_turns=8))).conversation
    count = len(conversation.messages)
    size = st.builds(lambda tokens: Size(tokens, 4 * tokens), st.sampled_from([5, 50, 500, 3_000]))
    sizes = Sizes(
        messages=draw(st.lists(size, min_size=count, max_size=count)), environment=draw(st.integers(0, 3_000))
    )
    pivots = draw_pivots(draw, conversation)
    sticky = draw(st.sampled_from([None, *pivots]))
    results = [at for at, message in enumerate(conversation.messages) if message.results]
    marked = [at for at in results if draw(st.booleans())]
    batch = make_batch(conversation, [Mark(at) for at in marked], length=max(0, count - 1))
    eager = Pruning(eager=True, keep_turns=2, protect_ratio=1.0, minimum_ratio=1.0)
    bare = replace(Policy(), pruning=eager, keep=Keep(opening=False, tail_tokens=0))
    everything = Pruning(eager=True, protects="everything", overshoot=True, calibrated=False, part_tokens=500)
    cutting = Pruning(eager=True, over_chars=1_000, keep_chars=200, keep_messages=4, protect_tokens=0)
    policies = [
        Policy(),
        bare,
        replace(Policy(), compaction=Compaction(auto=False)),
        replace(bare, pruning=everything, trigger=Trigger(formula="source", at_line=True)),
        replace(
            Policy(),
            pruning=cutting,
            trigger=Trigger(formula="ratio", hard_ratio=0.95, soft_ratio=0.8, early=True),
            keep=Keep(opening=False, tail_window=0.4),
            summary=Summary(digest_at_line=True),
        ),
        replace(Policy(), keep=Keep(tail_tokens=0, tail_messages=6), pruning=Pruning(partial=True)),
    ]
    return Situation(
        owner="t",
        conversation=conversation,
        sizes=sizes,
        policy=draw(st.sampled_from(policies)),
        limits=Limits(context=draw(st.sampled_from([None, 4_000, 8_000, 16_000]))),
        requested=draw(st.sampled_from([None, 500, 32_000])),
        growth=draw(st.sampled_from([0.0, 2_000.0])),
        known=CALIBRATED,
        sticky=sticky,
        pivots=pivots,
        batches=[batch] if marked else [],
        may_compact=draw(st.booleans()),
        may_digest=draw(st.booleans()),
        is_preparing=draw(st.booleans()),
    )


def draw_pivots(draw: st.DrawFn, conversation: Conversation) -> list[Pivot]:
    covers = draw(st.sets(st.integers(1, max(1, len(conversation.messages) - 1)), max_size=3))
    made = [make_pivot(conversation, at) for at in covers if at > conversation.opening_end]
    boundaries = [pivot for pivot in made if not conversation.messages[pivot.covers].results]
    return find_eligible_pivots(conversation, boundaries)


@few
@given(situations())
def test_a_plan_uses_only_what_is_eligible_and_never_the_open_group(situation: Situation) -> None:
    plan = decide(situation)
    open_group = find_open_group(situation.conversation)
    if not isinstance(plan, Plan):
        assert situation.may_compact if isinstance(plan, CompactFirst) else situation.may_digest
        assert plan.cut.covers <= open_group
        return
    assert plan.pivot is None or plan.pivot in situation.pivots
    assert plan.view.start <= open_group
    assert plan.sent <= plan.received


@few
@given(situations())
def test_what_was_active_stays_active_or_is_covered_by_more(situation: Situation) -> None:
    plan = decide(situation)
    if not isinstance(plan, Plan):
        return
    in_force = situation.sticky.covers if situation.sticky else 0
    assert plan.view.start >= in_force
    for batch in situation.batches:
        for mark in batch.marks:
            shown = plan.view.marks.get(mark.position)
            assert mark.position < plan.view.start or shown == mark


@few
@given(situations())
def test_deciding_again_about_a_planned_request_changes_nothing(situation: Situation) -> None:
    plan = decide(situation)
    if isinstance(plan, Plan) and plan.view != NOTHING:
        again = decide(replace(situation, sticky=plan.pivot, batches=list(plan.batches)))
        assert not isinstance(again, Plan) or again.view == plan.view


def test_a_history_that_no_window_holds_becomes_a_digest_if_no_summary_is_available() -> None:
    situation = situate(14_000, may_compact=False, may_digest=True)
    assert isinstance(decide(situation), Plan)
    not_any_more = situate(20_000, may_compact=False, may_digest=True)
    decision = decide(not_any_more)
    assert isinstance(decision, DigestFirst)
    assert decide(replace(not_any_more, may_compact=True)) == CompactFirst(cut=decision.cut)
    # After one digest the largest texts are cut, if it was refused.
    last = replace(not_any_more, may_digest=False)
    assert planned(last).new_batch is None
    assert planned(replace(last, refused=REFUSED)).name == "cut"


@pytest.mark.system(18)
def test_a_policy_may_want_a_digest_at_the_hard_threshold_if_no_summary_is_available() -> None:
    wanting = replace(Policy(), summary=Summary(digest_at_line=True))
    situation = situate(14_000, results=0.5, may_compact=False, may_digest=True, policy=wanting)
    assert isinstance(decide(situation), DigestFirst)
    assert isinstance(decide(replace(situation, may_compact=True)), CompactFirst)
    assert isinstance(decide(replace(situation, may_digest=False)), Plan)
    below = situate(11_900, results=0.5, may_compact=False, may_digest=True, policy=wanting)
    assert isinstance(decide(below), Plan)


def test_a_retry_with_smaller_limits_keeps_every_mark_of_the_first_try() -> None:
    """Both batches are decided at one chain, which is also the key of their record."""
    first = planned(situate(11_500, results=0.97))
    batches = list(first.batches)
    smaller = situate(11_500, results=0.97, limits=Limits(context=8_000), growth=5_000.0, batches=batches)
    again = planned(smaller)
    assert len(again.view.marks) > len(first.view.marks)
    stored = {batch.key: batch for batch in again.batches}
    shown = {mark.position for batch in stored.values() for mark in batch.marks}
    assert shown == set(again.view.marks)


@few
@given(situations(), st.integers(0, 40_000))
def test_a_prepared_compaction_frees_enough(situation: Situation, total: int) -> None:
    plan = decide(situation)
    if not isinstance(plan, Plan):
        return
    cut = decide_after(replace(situation, sticky=plan.pivot), total)
    if cut is None:
        return
    thresholds = choose_thresholds(
        situation.policy, situation.limits, RequestSize(requested=situation.requested)
    )
    assert situation.may_compact and thresholds is not None
    assert cut.start < cut.covers <= len(situation.conversation.messages)
    assert cut.replaced_tokens - min(cut.cap_tokens, 0.9 * cut.replaced_tokens) >= 0.05 * thresholds.hard
    assert cut.base == plan.pivot


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
