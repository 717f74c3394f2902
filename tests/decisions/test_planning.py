"""What is planned without counting, what a decision is given, and what answers and refusals teach."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.history.head import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.history.view import View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Compaction, Pruning
from gateway.core.refusal import Overflow
from gateway.core.sizing.usage import Usage
from gateway.limits.book import ServedModel
from gateway.reporting.events import Overflowed
from gateway.wire.registry import RESPONSES
from tests.builders.chat import make_plan
from tests.builders.state import save_pivot
from tests.decisions.builders import JSON, WINDOW_16K, make_batch, make_pivot, render, talk
from tests.decisions.parts import SUMMARIZING, Parts, head_of, planning_parts, receive, receive_body, turn_of

# 1,000 bytes a turn; the soft threshold of WINDOW_16K lies at 11,200 tokens.
_SHORT = receive(3, chars=1_000)
_LONGER = receive(4, chars=1_000)
_LARGE = receive(20, chars=1_000)


def answered(received: Received, tokens: int, longer: Received = _LONGER, **fields: Any) -> Turn:
    """The next turn, after an answer to the first body that told this usage."""
    head = head_of(received, prompt_tokens=tokens, output_tokens=0, **fields)
    return turn_of(longer, head=head)


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    async with planning_parts() as made:
        yield made


async def is_planned(parts: Parts, turn: Turn) -> bool:
    return await parts.planner.plan_unmeasured(turn) is not None


async def test_a_small_request_is_planned_without_counting(parts: Parts) -> None:
    plan = await parts.planner.plan_unmeasured(turn_of(_SHORT))
    assert plan is not None
    assert (plan.pivot, plan.batches, plan.new_batch, plan.output) == (None, (), None, None)
    assert plan.sent == plan.received == int(len(_SHORT.body.data) / 3.5)


def with_reply(tokens: int) -> Received:
    return receive_body(render(talk(3, 1_000))[:-1] + b',"max_tokens":%d}' % tokens)


_EAGER = replace(SUMMARIZING, pruning=Pruning(eager=True, minimum_tokens=1_000, minimum_ratio=1.0))
_PICTURE = {"type": "image_url", "image_url": {"url": "http://x.example/a.png"}}
_SIZE = len(_SHORT.body.data)


@pytest.mark.parametrize(
    ("turn", "is_measured"),
    [
        # It may be above the soft threshold.
        (turn_of(_LARGE), True),
        (turn_of(_LARGE, limits=Limits(context=64_000)), False),
        (turn_of(receive_body(render([{"role": "user", "content": [_PICTURE]}]))), True),
        # Its reply may have to be clamped.
        (turn_of(with_reply(14_000)), True),
        (turn_of(with_reply(14_000), limits=Limits(context=64_000)), False),
        # It is near its limit in bytes.
        (turn_of(_SHORT, limits=replace(WINDOW_16K, body_bytes=_SIZE)), True),
        (turn_of(_SHORT, limits=replace(WINDOW_16K, body_bytes=3 * _SIZE)), False),
        # A policy that prunes eagerly may find its minimum.
        (turn_of(_SHORT, _EAGER), True),
        (turn_of(_SHORT, replace(_EAGER, compaction=Compaction(prune=False))), False),
    ],
)
async def test_a_request_is_measured_only_if_something_may_have_to_be_done(
    parts: Parts, turn: Turn, is_measured: bool
) -> None:
    assert await is_planned(parts, turn) is not is_measured


async def test_upstreams_usage_bounds_what_came_before_it(parts: Parts) -> None:
    """By its bytes alone the large body might be above the threshold."""
    longer = receive(21, chars=1_000)
    plan = await parts.planner.plan_unmeasured(answered(_LARGE, 5_000, longer))
    assert not await is_planned(parts, answered(_LARGE, 11_000, longer))
    assert plan is not None and 5_000 < plan.sent < 5_500


async def test_a_pivot_that_is_due_is_looked_for(parts: Parts) -> None:
    early, due = make_pivot(_SHORT.conversation, 3), BranchLedger(is_due=True)
    assert await is_planned(parts, answered(_SHORT, 900, ledger=due))
    await save_pivot(parts.state, early)
    assert not await is_planned(parts, answered(_SHORT, 900, ledger=due))
    assert await is_planned(parts, answered(_SHORT, 900))
    # Without a window nothing would be decided.
    head = head_of(_SHORT, prompt_tokens=900, output_tokens=0)
    assert await is_planned(parts, turn_of(_LONGER, limits=Limits(), head=head))
    # Once it is in use, nothing is left to look for.
    assert await is_planned(parts, answered(_SHORT, 900, pivot=early.key, ledger=due))


@pytest.mark.parametrize(("pause_seconds", "expected"), [(3_500.0, False), (3_700.0, True)])
async def test_after_an_hour_the_cache_is_known_to_be_cold(
    parts: Parts, pause_seconds: float, expected: bool
) -> None:
    thrifty = replace(SUMMARIZING, economy=1.0)
    ledger = BranchLedger(answered_seconds=time.time() - pause_seconds)
    turn = answered(_SHORT, 900, ledger=ledger)
    assert (await parts.gather(structs.replace(turn, policy=thrifty))).is_cold is expected
    assert await is_planned(parts, structs.replace(turn, policy=thrifty)) is not expected
    unpriced = replace(SUMMARIZING, economy=0.0)
    assert not (await parts.gather(structs.replace(turn, policy=unpriced))).is_cold
    # There were replies since that this head knows nothing of.
    much_later = answered(_SHORT, 900, receive(6, chars=1_000), ledger=ledger)
    assert not (await parts.gather(structs.replace(much_later, policy=thrifty))).is_cold


async def test_the_pivot_and_the_batches_of_the_nearest_head_stay_active(parts: Parts) -> None:
    pivot = make_pivot(_SHORT.conversation, 3, saved_tokens=700)
    batch = make_batch(_SHORT.conversation, [Mark(4)], saved_tokens=50)
    turn = answered(_SHORT, 900, pivot=pivot.key, batches=(batch.key,))
    await save_pivot(parts.state, pivot)
    parts.state.pivots.save_batch(batch)
    plan = await parts.planner.plan_unmeasured(turn)
    assert plan is not None and (plan.pivot, plan.batches) == (pivot, (batch,))
    assert plan.received == plan.sent + 750


@pytest.mark.parametrize("missing", [{"pivot": "ab"}, {"batches": ("ab",)}])
async def test_a_request_is_measured_if_something_of_its_head_is_gone(parts: Parts, missing: JSON) -> None:
    turn = answered(_SHORT, 900, **missing)
    assert not (await parts.planner.load_active(turn)).is_complete
    assert not await is_planned(parts, turn)


async def test_the_usage_before_an_edit_of_the_summary_does_not_count(parts: Parts) -> None:
    pivot = make_pivot(_SHORT.conversation, 3)
    await save_pivot(parts.state, pivot)
    turn = answered(_SHORT, 900, pivot=pivot.key)
    assert await is_planned(parts, turn)
    await save_pivot(parts.state, replace(pivot, version=2, summary="word " * 500, tokens=600))
    assert not await is_planned(parts, turn)
    situation = await parts.gather(turn)
    assert situation.known.head is None
    assert situation.sticky is not None and situation.sticky.version == 2
    assert situation.estimate(View(situation.sticky, {})).tokens > 600


async def test_near_a_limit_in_bytes_sizes_include_bytes_and_the_tokens_are_kept(parts: Parts) -> None:
    size = len(_SHORT.body.data)
    turn = turn_of(_SHORT, limits=replace(WINDOW_16K, body_bytes=size))
    situation = await parts.planner.gather(turn, may_compact=True)
    plain = await parts.planner.gather(turn_of(_SHORT), may_compact=True)
    assert situation.in_tokens is not None and situation.in_tokens.sizes == plain.sizes
    assert situation.estimate(View(None, {})).tokens == pytest.approx(16_000, rel=0.01)
    assert situation.estimate_tokens(View(None, {})) == plain.estimate(View(None, {}))


async def test_a_compaction_is_prepared_above_the_soft_threshold_alone(parts: Parts) -> None:
    turn = turn_of(_SHORT)
    unlimited, summarizing = turn_of(_SHORT, limits=Limits()), turn_of(_SHORT, purpose="summary")
    assert turn.thresholds is not None
    soft = turn.thresholds.soft
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


@pytest.mark.parametrize(
    ("overflow", "is_first", "context", "learned"),
    [
        (Overflow(context=16_384), True, 16_384, 16_384),
        # Upstream counts 40,000 tokens where we counted 20,000, and takes 32,000 of its own.
        (Overflow(context=32_000, prompt_tokens=40_000), True, 16_000, 32_000),
        # Without a number the next try is a tenth smaller, and teaches the window if it is the first.
        (Overflow(), True, 18_000, 18_000),
        (Overflow(), False, 18_000, None),
    ],
)
async def test_a_refusal_teaches_the_window_and_what_is_tried_next(
    parts: Parts, overflow: Overflow, is_first: bool, context: int, learned: int | None
) -> None:
    turn = turn_of(_SMALL, limits=Limits(context=32_000))
    plan = replace(make_plan(), sent=20_000)
    next_turn = await parts.learner.learn_from_refusal(turn, plan, overflow, _SENT_BYTES, is_first=is_first)
    assert (next_turn.limits.context, (await limits_of(parts)).context) == (context, learned)
    assert next_turn.thresholds is not None


@pytest.mark.parametrize(("sent_bytes", "expected"), [(200_000, 180_000), (65_536, 58_982), (65_535, None)])
async def test_too_many_bytes_without_a_number_prove_a_smaller_limit_unless_they_were_few(
    parts: Parts, sent_bytes: int, expected: int | None
) -> None:
    refused = Overflow(kind="bytes")
    turn = await parts.learner.learn_from_refusal(
        turn_of(_SMALL), make_plan(), refused, sent_bytes, is_first=True
    )
    assert turn.limits.body_bytes == expected


async def test_a_small_request_is_counted_until_the_calibration_is_settled(parts: Parts) -> None:
    turn, usage = turn_of(_SMALL), Usage(3_000, 10)
    for _ in range(3):
        assert parts.learner.is_worth_counting(turn, make_plan(), usage)
        await parts.learner.learn_from_response(turn, make_plan(), usage)
    assert not parts.learner.is_worth_counting(turn, make_plan(), usage)


async def test_a_large_request_is_counted_near_its_thresholds_alone(parts: Parts) -> None:
    near, far = (
        turn_of(_LARGE_OF_LEARNING, limits=Limits(context=64_000)),
        turn_of(_LARGE_OF_LEARNING, limits=Limits(context=10**6)),
    )
    wants = [parts.learner.is_worth_counting(turn, make_plan(), Usage(40_000, 0)) for turn in (near, far)]
    assert wants == [True, False]


async def test_a_usage_that_did_not_grow_is_looked_at(parts: Parts) -> None:
    """Nothing else would count it: the request is large, and no limit is known."""
    head = head_of(receive(39), prompt_tokens=40_000)
    learner = parts.learner
    turn = turn_of(_LARGE_OF_LEARNING, limits=Limits(), head=head)
    assert learner.is_worth_counting(turn, make_plan(), Usage(40_000, 10))
    assert not learner.is_worth_counting(turn, make_plan(), Usage(41_000, 10))


async def test_the_ratio_between_upstreams_count_and_ours_is_learned(parts: Parts) -> None:
    turn = turn_of(_SMALL)
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
    parts: Parts, items: list[JSON], options: JSON
) -> None:
    asked = {"type": "message", "role": "user", "content": "x" * 4_000}
    body = {"model": "toy", "input": [*items, asked], **options}
    turn = turn_of(receive_body(json.dumps(body).encode(), RESPONSES))
    await parts.learner.learn_from_response(turn, make_plan(), Usage(3_000, 10))
    assert parts.state.calibrations.find("t", turn.meter).samples == 0


async def test_a_silently_truncated_prompt_teaches_the_window_and_is_reported(parts: Parts) -> None:
    head = head_of(_SMALL, prompt_tokens=4_000)
    turn = turn_of(_LONGER_OF_LEARNING, limits=Limits(), head=head)
    with parts.bus.subscribe() as heard:
        learned = await parts.learner.learn_from_response(turn, make_plan(), Usage(4_000, 1_000))
        reported = await heard.next()
    assert parts.state.calibrations.find("t", turn.meter).samples == 0
    assert isinstance(reported, Overflowed) and reported.kind == "truncation"
    assert learned is not None and learned.thresholds is not None
    assert learned.limits.context == 4_500


async def test_a_reply_that_filled_the_window_tells_its_size(parts: Parts) -> None:
    parts.learner.learn_from_full_window(turn_of(_SMALL), Usage(7_000, 1_192))
    assert (await limits_of(parts)).context == 8_192
