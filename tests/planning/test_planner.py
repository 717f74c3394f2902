"""What is planned without counting, and what a decision is given."""

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.situation import Situation
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.history.view import View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Pruning, Summary
from gateway.core.sizing.estimate import Calibration
from tests.builders.chat import JSON, make_batch, make_pivot, make_plan, read, render
from tests.builders.compaction import (
    LIMITS,
    SUMMARIZING,
    CompactionParts,
    compaction_parts,
    head_of,
    receive,
    talk,
    turn_of,
)
from tests.builders.recalls import SPLICING, make_recall
from tests.builders.riding import RIDING
from tests.builders.state import make_store

# 1,000 bytes a turn; the soft threshold of LIMITS lies at 11,200 tokens.
_SHORT = receive(3, chars=1_000)
_LONGER = receive(4, chars=1_000)
_LARGE = receive(20, chars=1_000)


def answered(received: Received, tokens: int, longer: Received = _LONGER, **fields: Any) -> Turn:
    """The next turn, after an answer to the first body that told this usage."""
    head = head_of(received, prompt_tokens=tokens, output_tokens=0, **fields)
    return turn_of(longer, head=head)


async def is_planned(parts: CompactionParts, turn: Turn) -> bool:
    return await parts.planner.plan_unmeasured(turn) is not None


# Plans without counting


async def test_a_small_request_is_planned_without_counting() -> None:
    async with compaction_parts() as parts:
        plan = await parts.planner.plan_unmeasured(turn_of(_SHORT))
    assert plan is not None
    assert (plan.pivot, plan.batches, plan.new_batch, plan.output) == (None, (), None, None)
    assert plan.sent == plan.received == int(len(_SHORT.body.data) / 3.5)


async def test_a_request_that_may_be_above_the_soft_threshold_is_measured() -> None:
    async with compaction_parts() as parts:
        assert not await is_planned(parts, turn_of(_LARGE))
        assert await is_planned(parts, turn_of(_LARGE, limits=Limits(context=64_000)))


async def test_without_a_known_limit_nothing_is_measured() -> None:
    async with compaction_parts() as parts:
        assert await is_planned(parts, turn_of(_LARGE, limits=Limits()))


async def test_upstreams_usage_bounds_what_came_before_it() -> None:
    """By its bytes alone the large body might be above the threshold."""
    longer = receive(21, chars=1_000)
    async with compaction_parts() as parts:
        plan = await parts.planner.plan_unmeasured(answered(_LARGE, 5_000, longer))
        assert not await is_planned(parts, answered(_LARGE, 11_000, longer))
    assert plan is not None and 5_000 < plan.sent < 5_500


async def test_usage_of_another_scope_does_not_count() -> None:
    turn = answered(_LARGE, 5_000, receive(21, chars=1_000))
    async with compaction_parts() as parts:
        assert not await is_planned(parts, structs.replace(turn, scope="other"))


async def test_a_picture_is_measured() -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://x.example/a.png"}}
    received = read(render([{"role": "user", "content": [picture]}]))
    async with compaction_parts() as parts:
        assert not await is_planned(parts, turn_of(received))


async def test_a_reply_that_may_have_to_be_clamped_is_measured() -> None:
    body = render(talk(3, 1_000))[:-1] + b',"max_tokens":14000}'
    async with compaction_parts() as parts:
        assert not await is_planned(parts, turn_of(read(body)))
        assert await is_planned(parts, turn_of(read(body), limits=Limits(context=64_000)))


async def test_a_body_near_its_limit_in_bytes_is_measured() -> None:
    async with compaction_parts() as parts:
        size = len(_SHORT.body.data)
        assert not await is_planned(parts, turn_of(_SHORT, limits=replace(LIMITS, body_bytes=size)))
        assert await is_planned(parts, turn_of(_SHORT, limits=replace(LIMITS, body_bytes=3 * size)))


async def test_a_policy_that_prunes_eagerly_is_measured_from_its_minimum_on() -> None:
    eager = replace(SUMMARIZING, pruning=Pruning(eager=True, minimum_tokens=1_000, minimum_ratio=1.0))
    async with compaction_parts() as parts:
        assert not await is_planned(parts, turn_of(_SHORT, eager))
        assert await is_planned(parts, turn_of(_SHORT, replace(eager, prune=False)))


async def test_a_pivot_that_applies_early_is_looked_for() -> None:
    early = make_pivot(_SHORT.conversation, 3, is_early=True)
    async with compaction_parts() as parts:
        assert await is_planned(parts, answered(_SHORT, 900))
        await parts.state.pivots.save(early)
        assert not await is_planned(parts, answered(_SHORT, 900))
        # Without a window nothing would be decided.
        head = head_of(_SHORT, prompt_tokens=900, output_tokens=0)
        assert await is_planned(parts, turn_of(_LONGER, limits=Limits(), head=head))
        # Once it is in use, nothing is left to look for.
        assert await is_planned(parts, answered(_SHORT, 900, pivot=early.key))


@pytest.mark.parametrize(("pause_seconds", "expected"), [(3_500.0, False), (3_700.0, True)])
async def test_after_an_hour_the_cache_is_known_to_be_cold(pause_seconds: float, expected: bool) -> None:
    thrifty = replace(SUMMARIZING, economy=1.0)
    ledger = BranchLedger(answered_seconds=time.time() - pause_seconds)
    async with compaction_parts() as parts:
        turn = answered(_SHORT, 900, ledger=ledger)
        assert (await parts.gather(structs.replace(turn, policy=thrifty))).is_cold is expected
        assert await is_planned(parts, structs.replace(turn, policy=thrifty)) is not expected
        unpriced = replace(SUMMARIZING, economy=0.0)
        assert not (await parts.gather(structs.replace(turn, policy=unpriced))).is_cold
        # There were replies since that this head knows nothing of.
        much_later = answered(_SHORT, 900, receive(6, chars=1_000), ledger=ledger)
        assert not (await parts.gather(structs.replace(much_later, policy=thrifty))).is_cold


# What is active


async def test_the_pivot_and_the_batches_of_the_nearest_head_stay_active() -> None:
    pivot = make_pivot(_SHORT.conversation, 3, saved_tokens=700)
    batch = make_batch(_SHORT.conversation, [Mark(4)], saved_tokens=50)
    turn = answered(_SHORT, 900, pivot=pivot.key, batches=(batch.key,))
    async with compaction_parts() as parts:
        await parts.state.pivots.save(pivot)
        parts.state.pivots.save_batch(batch)
        plan = await parts.planner.plan_unmeasured(turn)
    assert plan is not None and (plan.pivot, plan.batches) == (pivot, (batch,))
    assert plan.received == plan.sent + 750


async def test_what_is_active_is_loaded_from_the_store() -> None:
    pivot = make_pivot(_SHORT.conversation, 3)
    batch = make_batch(_SHORT.conversation, [Mark(4)])
    turn = answered(_SHORT, 900, pivot=pivot.key, batches=(batch.key,))
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        await parts.state.pivots.save(pivot)
        parts.state.pivots.save_batch(batch)
    async with compaction_parts(store=store) as parts:
        active = await parts.planner.load_active(turn)
    assert (active.pivot, list(active.batches), active.is_complete) == (pivot, [batch], True)


@pytest.mark.parametrize("missing", [{"pivot": "ab"}, {"batches": ("ab",)}])
async def test_a_request_is_measured_if_something_of_its_head_is_gone(missing: JSON) -> None:
    async with compaction_parts() as parts:
        turn = answered(_SHORT, 900, **missing)
        assert not (await parts.planner.load_active(turn)).is_complete
        assert not await is_planned(parts, turn)


async def test_the_usage_before_an_edit_of_the_summary_does_not_count() -> None:
    async with compaction_parts() as parts:
        pivot = make_pivot(_SHORT.conversation, 3)
        await parts.state.pivots.save(pivot)
        turn = answered(_SHORT, 900, pivot=pivot.key)
        assert await is_planned(parts, turn)
        await parts.state.pivots.save(replace(pivot, version=2, summary="word " * 500, tokens=600))
        assert not await is_planned(parts, turn)
        situation = await parts.gather(turn)
    assert situation.known.head is None
    assert situation.sticky is not None and situation.sticky.version == 2
    assert situation.estimate(View(situation.sticky, {})).tokens > 600


async def test_calls_of_the_tool_are_left_out_of_a_request_without_tools_and_not_counted() -> None:
    body: JSON = json.loads(_LONGER.body.data)
    received = [read(json.dumps(fields).encode()) for fields in (body, body | {"tools": []})]
    armed, bare = [structs.replace(each, format=replace(each.format, recall=SPLICING)) for each in received]
    called = make_recall(_LONGER.conversation, 1, tokens=70)
    async with compaction_parts() as parts:
        parts.state.recalls.hold(called)
        plans = [
            await parts.planner.plan_unmeasured(answered(_SHORT, 900, each, recalls=(called.key,)))
            for each in (armed, bare)
        ]
    assert [plan.recalls for plan in plans if plan is not None] == [(called,), ()]
    assert [plan.received - plan.sent for plan in plans if plan is not None] == [-70, 0]


async def test_a_pivot_of_another_branch_is_not_active() -> None:
    other = make_pivot(read(render([{"role": "user", "content": "Other."}, *talk(3)])).conversation, 3)
    async with compaction_parts() as parts:
        await parts.state.pivots.save(other)
        active = await parts.planner.load_active(answered(_SHORT, 900, pivot=other.key))
    assert (active.pivot, active.is_complete) == (None, False)


# Situations


async def test_a_situation_holds_what_was_measured_and_stored() -> None:
    pivot, newer = make_pivot(_SHORT.conversation, 3), make_pivot(_SHORT.conversation, 5)
    turn = answered(_SHORT, 900, pivot=pivot.key)
    async with compaction_parts() as parts:
        for each in (newer, pivot):
            await parts.state.pivots.save(each)
        parts.state.calibrations.save("t", turn.meter, Calibration(1.5, 3))
        situation = await parts.planner.gather(turn, may_compact=True, may_digest=True)
    assert (situation.sticky, list(situation.pivots)) == (pivot, [pivot, newer])
    assert situation.known.head == turn.head and situation.known.head_view == View(pivot, {})
    assert situation.known.calibration.ratio == 1.5
    assert len(situation.sizes.messages) == len(_LONGER.conversation.messages)
    assert (situation.may_compact, situation.may_digest, situation.in_tokens) == (True, True, None)


@pytest.mark.parametrize("names", [(), (("toy", "small"),)])
async def test_a_situation_tells_whether_summaries_ride(names: tuple[tuple[str, str], ...]) -> None:
    policy = replace(RIDING, summary=Summary(model_map=names))
    async with compaction_parts() as parts:
        situation = await parts.planner.gather(turn_of(_SHORT, policy), may_compact=True)
    assert situation.rides == (not names)


async def test_a_policy_may_forbid_compactions_and_digests() -> None:
    async with compaction_parts() as parts:
        turn = turn_of(_SHORT, replace(SUMMARIZING, auto=False))
        situation = await parts.planner.gather(turn, may_compact=True, may_digest=True)
    assert (situation.may_compact, situation.may_digest) == (False, False)


async def test_usage_says_nothing_if_something_of_its_head_is_gone() -> None:
    async with compaction_parts() as parts:
        situation = await parts.planner.gather(answered(_SHORT, 900, pivot="ab"), may_compact=True)
    assert (situation.sticky, situation.known.head) == (None, None)


async def test_near_a_limit_in_bytes_sizes_include_bytes_and_the_tokens_are_kept() -> None:
    size = len(_SHORT.body.data)
    async with compaction_parts() as parts:
        turn = turn_of(_SHORT, limits=replace(LIMITS, body_bytes=size))
        situation = await parts.planner.gather(turn, may_compact=True)
        plain = await parts.planner.gather(turn_of(_SHORT), may_compact=True)
    assert situation.in_tokens is not None and situation.in_tokens.sizes == plain.sizes
    assert situation.estimate(View(None, {})).tokens == pytest.approx(16_000, rel=0.01)
    assert situation.estimate_tokens(View(None, {})) == plain.estimate(View(None, {}))


async def test_what_a_plan_sends_is_counted() -> None:
    pivot = make_pivot(_LARGE.conversation, 39, tokens=200)
    async with compaction_parts() as parts:
        whole = await parts.planner.count_sent(turn_of(_LARGE), make_plan())
        compacted = await parts.planner.count_sent(turn_of(_LARGE), make_plan(pivot))
    assert 5_000 < whole < 5_500
    assert compacted < 600


# When to prepare


async def test_a_compaction_is_prepared_above_the_soft_threshold_alone() -> None:
    turn = turn_of(_SHORT)
    unlimited, summarizing = turn_of(_SHORT, limits=Limits()), turn_of(_SHORT, purpose="summary")
    assert turn.thresholds is not None
    soft = turn.thresholds.soft
    async with compaction_parts() as parts:
        planner = parts.planner
        assert [planner.is_past_soft(turn, tokens) for tokens in (soft, soft + 1)] == [False, True]
        assert not planner.is_past_soft(unlimited, 10**6)
        assert not planner.is_past_soft(summarizing, 10**6)


# Decisions


def _note_thread(situation: Situation, more: int) -> tuple[int, int]:
    return threading.get_ident(), len(situation.conversation.messages) + more


async def test_a_decision_about_a_long_conversation_is_made_in_a_thread() -> None:
    async with compaction_parts() as parts:
        turns = [turn_of(received) for received in (_SHORT, receive(2_000, chars=1))]
        short, long = [await parts.gather(turn) for turn in turns]
        assert await parts.planner.choose(_note_thread, short, 1) == (threading.get_ident(), 8)
        thread, messages = await parts.planner.choose(_note_thread, long, 1)
    assert thread != threading.get_ident()
    assert messages == 4_002
