"""What is planned without counting, what a decision is given, and what answers and refusals teach."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.history.view import View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Pruning
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.estimate import Calibration
from gateway.core.sizing.usage import Usage
from gateway.limits.book import ServedModel
from gateway.reporting.events import Overflowed
from gateway.wire.formats.responses import RESPONSES
from tests.decisions.builders import JSON, WINDOW_16K, make_batch, make_pivot, render, talk
from tests.decisions.parts import (
    SUMMARIZING,
    Parts,
    head_of,
    make_plan,
    planning_parts,
    receive,
    receive_body,
    turn_of,
)

# 1,000 bytes a turn; the soft threshold of WINDOW_16K lies at 11,200 tokens.
_SHORT = receive(3, chars=1_000)


_LONGER = receive(4, chars=1_000)


_LARGE = receive(20, chars=1_000)


def answered(received: Received, tokens: int, longer: Received = _LONGER, **fields: Any) -> Turn:
    """The next turn, after an answer to the first body that told this usage."""
    head = head_of(received, prompt_tokens=tokens, output_tokens=0, **fields)
    return turn_of(longer, head=head)


async def is_planned(parts: Parts, turn: Turn) -> bool:
    return await parts.planner.plan_unmeasured(turn) is not None


async def test_a_small_request_is_planned_without_counting() -> None:
    async with planning_parts() as parts:
        plan = await parts.planner.plan_unmeasured(turn_of(_SHORT))
    assert plan is not None
    assert (plan.pivot, plan.batches, plan.new_batch, plan.output) == (None, (), None, None)
    assert plan.sent == plan.received == int(len(_SHORT.body.data) / 3.5)


async def test_a_request_that_may_be_above_the_soft_threshold_is_measured() -> None:
    async with planning_parts() as parts:
        assert not await is_planned(parts, turn_of(_LARGE))
        assert await is_planned(parts, turn_of(_LARGE, limits=Limits(context=64_000)))


async def test_upstreams_usage_bounds_what_came_before_it() -> None:
    """By its bytes alone the large body might be above the threshold."""
    longer = receive(21, chars=1_000)
    async with planning_parts() as parts:
        plan = await parts.planner.plan_unmeasured(answered(_LARGE, 5_000, longer))
        assert not await is_planned(parts, answered(_LARGE, 11_000, longer))
    assert plan is not None and 5_000 < plan.sent < 5_500


async def test_a_picture_is_measured() -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://x.example/a.png"}}
    received = receive_body(render([{"role": "user", "content": [picture]}]))
    async with planning_parts() as parts:
        assert not await is_planned(parts, turn_of(received))


async def test_a_reply_that_may_have_to_be_clamped_is_measured() -> None:
    body = render(talk(3, 1_000))[:-1] + b',"max_tokens":14000}'
    async with planning_parts() as parts:
        assert not await is_planned(parts, turn_of(receive_body(body)))
        assert await is_planned(parts, turn_of(receive_body(body), limits=Limits(context=64_000)))


async def test_a_body_near_its_limit_in_bytes_is_measured() -> None:
    async with planning_parts() as parts:
        size = len(_SHORT.body.data)
        assert not await is_planned(parts, turn_of(_SHORT, limits=replace(WINDOW_16K, body_bytes=size)))
        assert await is_planned(parts, turn_of(_SHORT, limits=replace(WINDOW_16K, body_bytes=3 * size)))


async def test_a_policy_that_prunes_eagerly_is_measured_from_its_minimum_on() -> None:
    eager = replace(SUMMARIZING, pruning=Pruning(eager=True, minimum_tokens=1_000, minimum_ratio=1.0))
    async with planning_parts() as parts:
        assert not await is_planned(parts, turn_of(_SHORT, eager))
        assert await is_planned(parts, turn_of(_SHORT, replace(eager, prune=False)))


async def test_a_pivot_that_applies_early_is_looked_for() -> None:
    early = make_pivot(_SHORT.conversation, 3, is_early=True)
    async with planning_parts() as parts:
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
    async with planning_parts() as parts:
        turn = answered(_SHORT, 900, ledger=ledger)
        assert (await parts.gather(structs.replace(turn, policy=thrifty))).is_cold is expected
        assert await is_planned(parts, structs.replace(turn, policy=thrifty)) is not expected
        unpriced = replace(SUMMARIZING, economy=0.0)
        assert not (await parts.gather(structs.replace(turn, policy=unpriced))).is_cold
        # There were replies since that this head knows nothing of.
        much_later = answered(_SHORT, 900, receive(6, chars=1_000), ledger=ledger)
        assert not (await parts.gather(structs.replace(much_later, policy=thrifty))).is_cold


async def test_the_pivot_and_the_batches_of_the_nearest_head_stay_active() -> None:
    pivot = make_pivot(_SHORT.conversation, 3, saved_tokens=700)
    batch = make_batch(_SHORT.conversation, [Mark(4)], saved_tokens=50)
    turn = answered(_SHORT, 900, pivot=pivot.key, batches=(batch.key,))
    async with planning_parts() as parts:
        await parts.state.pivots.save(pivot)
        parts.state.pivots.save_batch(batch)
        plan = await parts.planner.plan_unmeasured(turn)
    assert plan is not None and (plan.pivot, plan.batches) == (pivot, (batch,))
    assert plan.received == plan.sent + 750


@pytest.mark.parametrize("missing", [{"pivot": "ab"}, {"batches": ("ab",)}])
async def test_a_request_is_measured_if_something_of_its_head_is_gone(missing: JSON) -> None:
    async with planning_parts() as parts:
        turn = answered(_SHORT, 900, **missing)
        assert not (await parts.planner.load_active(turn)).is_complete
        assert not await is_planned(parts, turn)


async def test_the_usage_before_an_edit_of_the_summary_does_not_count() -> None:
    async with planning_parts() as parts:
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


async def test_a_situation_holds_what_was_measured_and_stored() -> None:
    pivot, newer = make_pivot(_SHORT.conversation, 3), make_pivot(_SHORT.conversation, 5)
    turn = answered(_SHORT, 900, pivot=pivot.key)
    async with planning_parts() as parts:
        for each in (newer, pivot):
            await parts.state.pivots.save(each)
        parts.state.calibrations.save("t", turn.meter, Calibration(1.5, 3))
        situation = await parts.planner.gather(turn, may_compact=True, may_digest=True)
    assert (situation.sticky, list(situation.pivots)) == (pivot, [pivot, newer])
    assert situation.known.head == turn.head and situation.known.head_view == View(pivot, {})
    assert situation.known.calibration.ratio == 1.5
    assert len(situation.sizes.messages) == len(_LONGER.conversation.messages)
    assert (situation.may_compact, situation.may_digest, situation.in_tokens) == (True, True, None)


async def test_a_policy_may_forbid_compactions_and_digests() -> None:
    async with planning_parts() as parts:
        turn = turn_of(_SHORT, replace(SUMMARIZING, auto=False))
        situation = await parts.planner.gather(turn, may_compact=True, may_digest=True)
    assert (situation.may_compact, situation.may_digest) == (False, False)


async def test_near_a_limit_in_bytes_sizes_include_bytes_and_the_tokens_are_kept() -> None:
    size = len(_SHORT.body.data)
    async with planning_parts() as parts:
        turn = turn_of(_SHORT, limits=replace(WINDOW_16K, body_bytes=size))
        situation = await parts.planner.gather(turn, may_compact=True)
        plain = await parts.planner.gather(turn_of(_SHORT), may_compact=True)
    assert situation.in_tokens is not None and situation.in_tokens.sizes == plain.sizes
    assert situation.estimate(View(None, {})).tokens == pytest.approx(16_000, rel=0.01)
    assert situation.estimate_tokens(View(None, {})) == plain.estimate(View(None, {}))


async def test_what_a_plan_sends_is_counted() -> None:
    pivot = make_pivot(_LARGE.conversation, 39, tokens=200)
    async with planning_parts() as parts:
        whole = await parts.planner.count_sent(turn_of(_LARGE), make_plan())
        compacted = await parts.planner.count_sent(turn_of(_LARGE), make_plan(pivot))
    assert 5_000 < whole < 5_500
    assert compacted < 600


async def test_a_compaction_is_prepared_above_the_soft_threshold_alone() -> None:
    turn = turn_of(_SHORT)
    unlimited, summarizing = turn_of(_SHORT, limits=Limits()), turn_of(_SHORT, purpose="summary")
    assert turn.thresholds is not None
    soft = turn.thresholds.soft
    async with planning_parts() as parts:
        planner = parts.planner
        assert [planner.is_past_soft(turn, tokens) for tokens in (soft, soft + 1)] == [False, True]
        assert not planner.is_past_soft(unlimited, 10**6)
        assert not planner.is_past_soft(summarizing, 10**6)


_SMALL = receive(3)


_LONGER_OF_LEARNING = receive(4)


_LARGE_OF_LEARNING = receive(40)


_MODEL = ServedModel("t", "toy", "toy")


_SENT_BYTES = 200_000


async def limits_of(parts: Parts) -> Limits:
    return await parts.limits.load(_MODEL)


async def learn_from_refusal(
    parts: Parts, overflow: Overflow, sent: int = 20_000, *, is_first: bool = True
) -> Turn:
    plan = make_plan()
    plan.sent = sent
    turn = turn_of(_SMALL, limits=Limits(context=32_000))
    return await parts.learner.learn_from_refusal(turn, plan, overflow, _SENT_BYTES, is_first=is_first)


async def test_a_small_request_is_counted_until_the_calibration_is_settled() -> None:
    turn, usage = turn_of(_SMALL), Usage(3_000, 10)
    async with planning_parts() as parts:
        for _ in range(3):
            assert parts.learner.is_worth_counting(turn, make_plan(), usage)
            await parts.learner.learn_from_response(turn, make_plan(), usage)
        assert not parts.learner.is_worth_counting(turn, make_plan(), usage)


async def test_a_tiny_prompt_is_never_counted() -> None:
    async with planning_parts() as parts:
        assert not parts.learner.is_worth_counting(turn_of(_SMALL), make_plan(), Usage(200, 10))


async def test_a_large_request_is_counted_near_its_thresholds_alone() -> None:
    near, far = (
        turn_of(_LARGE_OF_LEARNING, limits=Limits(context=64_000)),
        turn_of(_LARGE_OF_LEARNING, limits=Limits(context=10**6)),
    )
    async with planning_parts() as parts:
        wants = [parts.learner.is_worth_counting(turn, make_plan(), Usage(40_000, 0)) for turn in (near, far)]
    assert wants == [True, False]


async def test_a_usage_that_did_not_grow_is_looked_at() -> None:
    """Nothing else would count it: the request is large, and no limit is known."""
    head = head_of(receive(39), prompt_tokens=40_000)
    async with planning_parts() as parts:
        learner = parts.learner
        turn = turn_of(_LARGE_OF_LEARNING, limits=Limits(), head=head)
        assert learner.is_worth_counting(turn, make_plan(), Usage(40_000, 10))
        assert not learner.is_worth_counting(turn, make_plan(), Usage(41_000, 10))


async def test_the_ratio_between_upstreams_count_and_ours_is_learned() -> None:
    turn = turn_of(_SMALL)
    async with planning_parts() as parts:
        sizes = await parts.sizer.measure(_SMALL, "tiktoken")
        raw = sizes.environment + sum(size.tokens for size in sizes.messages)
        assert await parts.learner.learn_from_response(turn, make_plan(), Usage(2 * raw, 10)) is None
        calibration = parts.state.calibrations.find("t", turn.meter)
    assert (calibration.ratio, calibration.samples) == (2.0, 1)


@pytest.mark.parametrize(
    ("items", "options"),
    [
        ([], {"context_management": [{"type": "compaction"}]}),
        ([{"type": "compaction", "encrypted_content": "x" * 40}], {}),
    ],
)
async def test_a_request_that_upstream_shortens_itself_teaches_no_ratio(
    items: list[JSON], options: JSON
) -> None:
    asked = {"type": "message", "role": "user", "content": "x" * 4_000}
    body = {"model": "toy", "input": [*items, asked], **options}
    turn = turn_of(receive_body(json.dumps(body).encode(), RESPONSES))
    async with planning_parts() as parts:
        await parts.learner.learn_from_response(turn, make_plan(), Usage(3_000, 10))
        assert parts.state.calibrations.find("t", turn.meter).samples == 0


async def test_a_silently_truncated_prompt_teaches_the_window_and_is_reported() -> None:
    head = head_of(_SMALL, prompt_tokens=4_000)
    async with planning_parts() as parts:
        turn = turn_of(_LONGER_OF_LEARNING, limits=Limits(), head=head)
        with parts.bus.subscribe() as heard:
            learned = await parts.learner.learn_from_response(turn, make_plan(), Usage(4_000, 1_000))
            reported = await heard.next()
        assert parts.state.calibrations.find("t", turn.meter).samples == 0
    assert isinstance(reported, Overflowed) and reported.kind == "truncation"
    assert learned is not None and learned.thresholds is not None
    assert learned.limits.context == 4_500


async def test_a_usage_that_is_odd_but_not_clearly_truncated_teaches_nothing() -> None:
    """It fell by a little, as if upstream had dropped a thought."""
    head = head_of(_SMALL, prompt_tokens=4_300)
    async with planning_parts() as parts:
        turn = turn_of(_LONGER_OF_LEARNING, head=head)
        assert await parts.learner.learn_from_response(turn, make_plan(), Usage(4_000, 10)) is None
        assert parts.state.calibrations.find("t", turn.meter).samples == 0


async def test_a_prompt_under_another_pivot_is_not_compared() -> None:
    head = head_of(_SMALL, prompt_tokens=4_000)
    plan = make_plan(make_pivot(_LONGER_OF_LEARNING.conversation, 5))
    async with planning_parts() as parts:
        turn = turn_of(_LONGER_OF_LEARNING, limits=Limits(), head=head)
        assert await parts.learner.learn_from_response(turn, plan, Usage(4_000, 10)) is None


async def test_the_window_that_a_refusal_names_is_learned() -> None:
    async with planning_parts() as parts:
        turn = await learn_from_refusal(parts, Overflow(kind="tokens", context=16_384))
        assert (await limits_of(parts)).context == 16_384
    assert turn.limits.context == 16_384 and turn.thresholds is not None


async def test_if_the_prompt_fits_by_our_count_the_window_is_scaled_to_our_units() -> None:
    """Upstream counts 40,000 tokens where we counted 20,000, and takes 32,000 of its own."""
    async with planning_parts() as parts:
        overflow = Overflow(kind="tokens", context=32_000, prompt_tokens=40_000)
        turn = await learn_from_refusal(parts, overflow)
        assert (await limits_of(parts)).context == 32_000
    assert turn.limits.context == 16_000


async def test_without_a_number_the_next_try_is_a_tenth_smaller() -> None:
    async with planning_parts() as parts:
        turn = await learn_from_refusal(parts, Overflow(kind="tokens"))
        assert (await limits_of(parts)).context == 18_000
    assert turn.limits.context is not None and turn.limits.context <= 18_000


async def test_a_refused_retry_without_a_number_teaches_no_window() -> None:
    async with planning_parts() as parts:
        await learn_from_refusal(parts, Overflow(kind="tokens"), is_first=False)
        assert (await limits_of(parts)).context is None


async def test_too_many_bytes_without_a_number_prove_a_smaller_limit() -> None:
    async with planning_parts() as parts:
        turn = await learn_from_refusal(parts, Overflow(kind="bytes"))
    assert turn.limits.body_bytes == int(0.9 * _SENT_BYTES)


async def test_a_small_body_that_is_refused_proves_no_limit_in_bytes() -> None:
    async with planning_parts() as parts:
        turn = turn_of(_SMALL)
        learned = await parts.learner.learn_from_refusal(
            turn, make_plan(), Overflow(kind="bytes"), 60_000, is_first=True
        )
    assert learned.limits.body_bytes is None


async def test_a_reply_that_filled_the_window_tells_its_size() -> None:
    async with planning_parts() as parts:
        parts.learner.learn_from_full_window(turn_of(_SMALL), Usage(7_000, 1_192))
        assert (await limits_of(parts)).context == 8_192
