"""What answers and refusals teach: how upstream counts, and where its limits are."""

import json

import pytest

from gateway.conversations.turn import Turn
from gateway.core.limits.model_limits import Limits
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.usage import Usage
from gateway.limits.book import ServedModel
from gateway.reporting.events import Overflowed
from tests.builders.chat import JSON, make_pivot, make_plan
from tests.builders.compaction import CompactionParts, compaction_parts, head_of, receive, turn_of
from tests.builders.responses import read as read_responses

_SMALL = receive(3)
_LONGER = receive(4)
_LARGE = receive(40)
_MODEL = ServedModel("t", "toy", "toy")
_SENT_BYTES = 200_000


async def limits_of(parts: CompactionParts) -> Limits:
    return await parts.limits.load(_MODEL)


async def learn_from_refusal(
    parts: CompactionParts, overflow: Overflow, sent: int = 20_000, *, is_first: bool = True
) -> Turn:
    plan = make_plan()
    plan.sent = sent
    turn = turn_of(_SMALL, limits=Limits(context=32_000))
    return await parts.learner.learn_from_refusal(turn, plan, overflow, _SENT_BYTES, is_first=is_first)


# Which answers are counted


async def test_a_small_request_is_counted_until_the_calibration_is_settled() -> None:
    turn, usage = turn_of(_SMALL), Usage(3_000, 10)
    async with compaction_parts() as parts:
        for _ in range(3):
            assert parts.learner.is_worth_counting(turn, make_plan(), usage)
            await parts.learner.learn_from_response(turn, make_plan(), usage)
        assert not parts.learner.is_worth_counting(turn, make_plan(), usage)


async def test_a_tiny_prompt_is_never_counted() -> None:
    async with compaction_parts() as parts:
        assert not parts.learner.is_worth_counting(turn_of(_SMALL), make_plan(), Usage(200, 10))


async def test_a_large_request_is_counted_near_its_thresholds_alone() -> None:
    near, far = turn_of(_LARGE, limits=Limits(context=64_000)), turn_of(_LARGE, limits=Limits(context=10**6))
    async with compaction_parts() as parts:
        wants = [parts.learner.is_worth_counting(turn, make_plan(), Usage(40_000, 0)) for turn in (near, far)]
    assert wants == [True, False]


async def test_a_usage_that_did_not_grow_is_looked_at() -> None:
    """Nothing else would count it: the request is large, and no limit is known."""
    head = head_of(receive(39), prompt_tokens=40_000)
    async with compaction_parts() as parts:
        learner = parts.learner
        turn = turn_of(_LARGE, limits=Limits(), head=head)
        assert learner.is_worth_counting(turn, make_plan(), Usage(40_000, 10))
        assert not learner.is_worth_counting(turn, make_plan(), Usage(41_000, 10))


# Calibration


async def test_the_ratio_between_upstreams_count_and_ours_is_learned() -> None:
    turn = turn_of(_SMALL)
    async with compaction_parts() as parts:
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
    turn = turn_of(read_responses(json.dumps(body).encode()))
    async with compaction_parts() as parts:
        await parts.learner.learn_from_response(turn, make_plan(), Usage(3_000, 10))
        assert parts.state.calibrations.find("t", turn.meter).samples == 0


# Truncation


async def test_a_silently_truncated_prompt_teaches_the_window_and_is_reported() -> None:
    head = head_of(_SMALL, prompt_tokens=4_000)
    async with compaction_parts() as parts:
        turn = turn_of(_LONGER, limits=Limits(), head=head)
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
    async with compaction_parts() as parts:
        turn = turn_of(_LONGER, head=head)
        assert await parts.learner.learn_from_response(turn, make_plan(), Usage(4_000, 10)) is None
        assert parts.state.calibrations.find("t", turn.meter).samples == 0


async def test_a_prompt_under_another_pivot_is_not_compared() -> None:
    head = head_of(_SMALL, prompt_tokens=4_000)
    plan = make_plan(make_pivot(_LONGER.conversation, 5))
    async with compaction_parts() as parts:
        turn = turn_of(_LONGER, limits=Limits(), head=head)
        assert await parts.learner.learn_from_response(turn, plan, Usage(4_000, 10)) is None


# Refusals


async def test_the_window_that_a_refusal_names_is_learned() -> None:
    async with compaction_parts() as parts:
        turn = await learn_from_refusal(parts, Overflow(kind="tokens", context=16_384))
        assert (await limits_of(parts)).context == 16_384
    assert turn.limits.context == 16_384 and turn.thresholds is not None


async def test_if_the_prompt_fits_by_our_count_the_window_is_scaled_to_our_units() -> None:
    """Upstream counts 40,000 tokens where we counted 20,000, and takes 32,000 of its own."""
    async with compaction_parts() as parts:
        overflow = Overflow(kind="tokens", context=32_000, prompt_tokens=40_000)
        turn = await learn_from_refusal(parts, overflow)
        assert (await limits_of(parts)).context == 32_000
    assert turn.limits.context == 16_000


async def test_without_a_number_the_next_try_is_a_tenth_smaller() -> None:
    async with compaction_parts() as parts:
        turn = await learn_from_refusal(parts, Overflow(kind="tokens"))
        assert (await limits_of(parts)).context == 18_000
    assert turn.limits.context is not None and turn.limits.context <= 18_000


async def test_a_refused_retry_without_a_number_teaches_no_window() -> None:
    async with compaction_parts() as parts:
        await learn_from_refusal(parts, Overflow(kind="tokens"), is_first=False)
        assert (await limits_of(parts)).context is None


async def test_too_many_bytes_without_a_number_prove_a_smaller_limit() -> None:
    async with compaction_parts() as parts:
        turn = await learn_from_refusal(parts, Overflow(kind="bytes"))
    assert turn.limits.body_bytes == int(0.9 * _SENT_BYTES)


async def test_a_small_body_that_is_refused_proves_no_limit_in_bytes() -> None:
    async with compaction_parts() as parts:
        turn = turn_of(_SMALL)
        learned = await parts.learner.learn_from_refusal(
            turn, make_plan(), Overflow(kind="bytes"), 60_000, is_first=True
        )
    assert learned.limits.body_bytes is None


async def test_a_reply_that_filled_the_window_tells_its_size() -> None:
    async with compaction_parts() as parts:
        parts.learner.learn_from_full_window(turn_of(_SMALL), Usage(7_000, 1_192))
        assert (await limits_of(parts)).context == 8_192


async def test_an_answer_to_a_larger_prompt_disproves_a_window() -> None:
    async with compaction_parts() as parts:
        await learn_from_refusal(parts, Overflow(kind="tokens", context=4_096))
        await parts.learner.learn_from_response(turn_of(_SMALL), make_plan(), Usage(9_000, 10))
        assert (await limits_of(parts)).context is None
