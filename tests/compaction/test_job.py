import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from gateway.conversations.turn import Turn
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.compaction.summary import OVER_BUDGET
from gateway.core.history.pivot import Pivot
from gateway.core.policy import Method, Summary
from gateway.reporting.events import CompactionFailed, SessionCompacted
from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.chat import make_pivot
from tests.builders.compaction import (
    DIGESTING,
    PROMPTS,
    SUMMARIZING,
    CompactionParts,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    refuse,
    say,
    turn_of,
)
from tests.builders.quotas import make_limited_tenant
from tests.builders.state import make_store

_RECEIVED = receive(4)
_CUT = make_cut(5)
_KEY = _RECEIVED.conversation.chain[5].hex()
_TURN = turn_of(_RECEIVED)
_SITUATION = make_situation(_RECEIVED)
_REQUEST = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8)
_MANUAL = CompactionRequest(reason=CompactionReason.MANUAL, is_awaited=True, calls=8, trigger="manual")


class FullStore(MemoryStore):
    """Cannot write durably."""

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        raise StoreError("disk full")


async def test_a_summary_is_stored_and_reported() -> None:
    async with compaction_parts(say("It works now.")) as parts:
        with parts.bus.subscribe() as heard:
            result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
            boundary, compacted = await heard.next(), await heard.next()
        assert result.pivot is not None and result.pivot.summary.startswith("It works now.")
        assert parts.state.pivots.find(_KEY) == result.pivot
    assert (result.calls, result.model, result.pivot.resume) == (1, "toy", PROMPTS.resume)
    assert boundary is not None
    assert isinstance(compacted, SessionCompacted) and compacted.pre_tokens == result.pre_tokens > 4_000
    assert compacted.post_tokens == _SITUATION.count_after(_CUT.base, result.pivot) < result.pre_tokens


async def test_a_summary_that_fails_its_checks_is_not_stored() -> None:
    async with compaction_parts(say("")) as parts:
        with parts.bus.subscribe() as heard:
            result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
            failed = await heard.next()
        assert parts.state.pivots.find(_KEY) is None
    assert (result.pivot, result.failure, result.calls) == (None, "empty", 2)
    assert isinstance(failed, CompactionFailed) and failed.reason == "empty"


async def test_the_calls_of_a_summary_are_counted_and_no_usage_is_invented() -> None:
    async with compaction_parts(say(""), say("It works now.")) as parts:
        await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
        lines = parts.metrics.render().decode().splitlines()
        assert parts.job.count_open_breakers() == 0
    assert 'gateway_summary_calls_total{result="done",way="quoted"} 2.0' in lines
    assert "gateway_summary_call_seconds_count 2.0" in lines
    assert not any(line.startswith("gateway_summary_tokens_total{") for line in lines)


async def test_a_pivot_that_cannot_be_stored_is_not_used() -> None:
    store = FullStore()
    await store.open()
    async with compaction_parts(store=store) as parts:
        result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
        assert parts.state.pivots.find(_KEY) is None
    assert (result.pivot, result.failure) == (None, "store")


async def test_summaries_pause_while_they_cannot_be_stored_because_each_is_paid_for() -> None:
    store = FullStore()
    await store.open()
    async with compaction_parts(say("It works now."), store=store) as parts:
        results = [await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST) for _ in range(5)]
        assert [result.failure for result in results] == ["store"] * 3 + ["paused"] * 2
        assert parts.job.count_open_breakers() == 1
        assert len(parts.model.requests) == 3


@pytest.mark.parametrize("method", ["digest", "drop"])
async def test_other_methods_make_a_digest_without_a_call(method: Method) -> None:
    policy = replace(SUMMARIZING, summary=Summary(method=method))
    async with compaction_parts() as parts:
        result = await parts.job.compact(turn_of(_RECEIVED, policy), _SITUATION, _CUT, _REQUEST)
        assert parts.model.requests == []
    assert result.pivot is not None and result.pivot.is_digest
    assert (result.calls, result.model) == (0, None)


async def test_after_a_manual_compaction_the_model_is_not_told_to_resume() -> None:
    async with compaction_parts() as parts:
        result = await parts.job.compact(_TURN, _SITUATION, _CUT, _MANUAL)
    assert result.pivot is not None and result.pivot.resume == ""


# Pauses


async def fail(parts: CompactionParts, times: int) -> None:
    for _ in range(times):
        await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)


async def test_after_three_failures_the_summarizer_is_not_asked_for_a_minute() -> None:
    async with compaction_parts(refuse(403, "no")) as parts:
        await fail(parts, 2)
        assert parts.job.may_start(_TURN)
        await fail(parts, 1)
        assert not parts.job.may_start(_TURN)
        result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
        assert (result.failure, result.calls, len(parts.model.requests)) == ("paused", 0, 3)
        parts.clock.now += 60
        assert parts.job.may_start(_TURN)


async def test_one_attempt_is_made_after_a_pause_and_its_success_ends_the_pause() -> None:
    async with compaction_parts(*[refuse(403, "no")] * 3, say("It works now.")) as parts:
        await fail(parts, 3)
        parts.clock.now += 60
        result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
        assert result.pivot is not None
        assert parts.job.may_start(_TURN)


async def test_a_pause_is_for_one_tenant_and_for_calls_alone() -> None:
    other = turn_of(receive(4), tenant=replace(_TURN.tenant, id="other"))
    digesting = turn_of(_RECEIVED, replace(SUMMARIZING, summary=Summary(method="digest")))
    async with compaction_parts(refuse(403, "no")) as parts:
        await fail(parts, 3)
        assert [parts.job.may_start(turn) for turn in (_TURN, other, digesting)] == [False, True, True]


async def test_a_paused_manual_compaction_is_reported_and_an_automatic_one_is_not() -> None:
    async with compaction_parts(refuse(403, "no")) as parts:
        await fail(parts, 3)
        with parts.bus.subscribe() as heard:
            await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
            await parts.job.compact(_TURN, _SITUATION, _CUT, _MANUAL)
            failed = await heard.next()
    assert isinstance(failed, CompactionFailed) and failed.trigger == "manual"


# Digests


def make_summary() -> Pivot:
    return make_pivot(_RECEIVED.conversation, _CUT.covers, summary="A summary.")


async def test_a_digest_takes_the_place_of_a_missing_summary() -> None:
    async with compaction_parts() as parts:
        assert await parts.job.digest(_TURN, _SITUATION, _CUT, CompactionReason.HARD_THRESHOLD)
        stored = parts.state.pivots.find(_KEY)
    assert stored is not None and stored.is_digest


async def test_a_digest_is_not_made_over_a_summary() -> None:
    async with compaction_parts() as parts:
        await parts.state.pivots.save(make_summary())
        assert await parts.job.digest(_TURN, _SITUATION, _CUT, CompactionReason.HARD_THRESHOLD)
        assert parts.state.pivots.find(_KEY) == make_summary()


async def test_a_digest_never_replaces_a_summary_that_arrives_while_it_is_made() -> None:
    async with compaction_parts() as parts:
        digesting = asyncio.create_task(
            parts.job.digest(_TURN, _SITUATION, _CUT, CompactionReason.HARD_THRESHOLD)
        )
        # One step: the digest is now being made in a thread.
        await asyncio.sleep(0)
        await parts.state.pivots.save(make_summary())
        assert await digesting
        assert parts.state.pivots.find(_KEY) == make_summary()


def limit(parts: CompactionParts) -> Turn:
    """The turn as one of a client that continues none of its conversations."""
    for number in range(3):
        turn = turn_of(receive(3, 100 + number), is_unrecognized=True)
        parts.job.limiter.note_response(turn, needs_compaction=True)
    return structs.replace(_TURN, is_unrecognized=True)


async def test_a_client_that_continues_nothing_makes_no_calls() -> None:
    async with compaction_parts() as parts:
        assert parts.job.count_calls(_TURN) == _TURN.policy.summary.max_calls
        assert parts.job.count_calls(limit(parts)) == 0


async def test_the_digest_of_such_a_client_is_held_in_memory_alone() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        assert await parts.job.digest(limit(parts), _SITUATION, _CUT, CompactionReason.HARD_THRESHOLD)
        held = parts.state.pivots.find(_KEY)
        assert held is not None and held.is_digest
        assert await store.scan("") == []


async def test_a_digest_that_cannot_be_stored_is_not_ready() -> None:
    store = FullStore()
    await store.open()
    async with compaction_parts(store=store) as parts:
        assert not await parts.job.digest(_TURN, _SITUATION, _CUT, CompactionReason.HARD_THRESHOLD)


async def test_the_state_of_another_process_has_the_pivot() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
    async with compaction_parts(store=store) as parts:
        assert await parts.state.pivots.load("t", _KEY) == result.pivot


async def test_over_its_budget_a_tenant_gets_no_summary_and_its_digests_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tenant = make_limited_tenant("team-a", summary_calls_per_hour=1)
    turn = structs.replace(_TURN, tenant=tenant)
    async with compaction_parts(say("")) as parts:
        first = await parts.job.compact(turn, _SITUATION, _CUT, _REQUEST)
        assert (first.failure, first.calls) == ("over budget", 1)
        assert not parts.job.may_start(turn) and parts.job.count_calls(turn) == 0
        assert await parts.job.compact(turn, _SITUATION, _CUT, _REQUEST) == CompactionResult(OVER_BUDGET, 0)
        assert await parts.job.digest(turn, _SITUATION, _CUT, CompactionReason.HARD_THRESHOLD)
        assert parts.job.may_start(_TURN)
    assert len(parts.model.calls) == 1
    assert 'over_budget_total{tenant="team-a"} 1.0' in parts.metrics.render().decode()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "the summary budget of tenant team-a is used up: old turns become digests where they must"
    ]


async def test_who_asks_for_a_summary_beyond_the_budget_is_told(caplog: pytest.LogCaptureFixture) -> None:
    turn = structs.replace(_TURN, tenant=make_limited_tenant(summary_calls_per_hour=0))
    async with compaction_parts() as parts:
        for _ in range(2):
            result = await parts.job.compact(turn, _SITUATION, _CUT, _MANUAL)
            assert result.failure == "over budget"
    assert parts.model.calls == []


async def test_a_method_without_calls_needs_no_budget() -> None:
    turn = structs.replace(
        turn_of(_RECEIVED, DIGESTING), tenant=make_limited_tenant(summary_calls_per_hour=0)
    )
    async with compaction_parts() as parts:
        assert (await parts.job.compact(turn, _SITUATION, _CUT, _REQUEST)).pivot is not None


async def test_what_a_summary_used_is_counted_for_its_conversation() -> None:
    reply = say("It works now.", prompt_tokens=400, completion_tokens=30)
    async with compaction_parts(reply) as parts:
        await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
        activity = parts.activity.find(_TURN.conversation_id)
    assert activity is not None
    (note,) = activity.summaries
    assert (note.key, note.prompt_tokens, note.output_tokens, note.calls) == (_KEY, 400, 30, 1)
    assert activity.totals.compactions == 1


async def test_a_summary_that_another_process_was_faster_with_was_paid_for() -> None:
    reply = say("It works now.", prompt_tokens=400, completion_tokens=30)
    async with compaction_parts(reply) as parts:
        theirs = make_pivot(_RECEIVED.conversation, 5)
        await parts.state.pivots.save_new(theirs)
        result = await parts.job.compact(_TURN, _SITUATION, _CUT, _REQUEST)
        activity = parts.activity.find(_TURN.conversation_id)
    assert result.pivot == theirs and activity is not None
    assert (activity.totals.compactions, activity.totals.summary_prompt_tokens) == (0, 400)
    assert activity.summaries == []
