from dataclasses import replace

from gateway.core.compaction.summary import Accepted
from gateway.core.policy import Keep
from gateway.core.sizing.estimate import Calibration
from tests.builders.chat import make_pivot
from tests.builders.compaction import (
    PROMPTS,
    SUMMARIZING,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    turn_of,
)

_RECEIVED = receive(4)


async def test_a_summary_becomes_a_pivot_for_the_chain_that_it_covers() -> None:
    async with compaction_parts() as parts:
        turn, situation, cut = turn_of(_RECEIVED), make_situation(_RECEIVED), make_cut(5)
        pivot = await parts.pivots.make_summary(turn, situation, cut, Accepted("A summary.", 100))
        assert (pivot.key, pivot.covers) == (_RECEIVED.conversation.chain[5].hex(), 5)
        assert (pivot.summary, pivot.resume, pivot.question) == ("A summary.", PROMPTS.resume, None)
        assert (pivot.is_digest, pivot.saved_tokens) == (False, 3_900)
        assert pivot.created_seconds == parts.clock.now
        # The summary and the resume text by our count, and what stands around them.
        assert pivot.tokens == 12 + 3 + 2


async def test_without_the_opening_a_question_comes_before_the_summary() -> None:
    policy = replace(SUMMARIZING, keep=Keep(opening=False))
    async with compaction_parts() as parts:
        situation, cut = make_situation(_RECEIVED, policy), make_cut(5, start=0)
        pivot = await parts.pivots.make_summary(
            turn_of(_RECEIVED, policy), situation, cut, Accepted("A summary.", 100)
        )
    assert (pivot.question, pivot.opening_end, pivot.opening_tokens) == (PROMPTS.question, 0, 0)


async def test_a_pivot_that_builds_on_another_adds_up_what_both_saved() -> None:
    base = make_pivot(_RECEIVED.conversation, 3, saved_tokens=500)
    async with compaction_parts() as parts:
        situation, cut = make_situation(_RECEIVED), make_cut(5, base)
        pivot = await parts.pivots.make_summary(
            turn_of(_RECEIVED), situation, cut, Accepted("A summary.", 100)
        )
    assert pivot.saved_tokens == 500 + 3_900


async def test_a_digest_stays_within_its_cap_and_is_the_same_each_time() -> None:
    async with compaction_parts() as parts:
        turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
        cut = make_cut(7, cap_tokens=200)
        first = await parts.pivots.make_digest(turn, situation, cut)
        again = await parts.pivots.make_digest(turn, situation, cut)
        tokens = await parts.sizer.count(first.owner, first.summary, "chars")
    assert first == again
    assert first.is_digest and 0 < tokens <= 200


async def test_a_digest_is_shorter_for_a_model_that_counts_more_tokens() -> None:
    situation = make_situation(_RECEIVED)
    tripled = replace(situation, known=replace(situation.known, calibration=Calibration(3.0, 1)))
    async with compaction_parts() as parts:
        pivot = await parts.pivots.make_digest(turn_of(_RECEIVED), tripled, make_cut(7, cap_tokens=300))
        tokens = await parts.sizer.count(pivot.owner, pivot.summary, "chars")
    assert 0 < 3 * tokens <= 300


async def test_dropped_turns_leave_the_policys_note() -> None:
    async with compaction_parts() as parts:
        pivot = await parts.pivots.make_note(turn_of(_RECEIVED), make_situation(_RECEIVED), make_cut(5))
    assert (pivot.summary, pivot.is_digest) == (PROMPTS.dropped, True)
