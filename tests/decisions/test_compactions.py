"""What an answer starts, what is stored before it is used, and when no summary is asked for."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.compaction.flow import Job
from gateway.compaction.turn_recorder import is_compaction_due
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.decision import decide
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    make_digest_request,
)
from gateway.core.compaction.summary import OVER_BUDGET
from gateway.core.history.head import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Compaction, Summary
from gateway.core.sizing.usage import Usage
from tests.builders.chat import make_plan
from tests.builders.compaction import (
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
from tests.builders.state import load_head, look_for_marker, make_store, save_pivot
from tests.decisions.builders import JSON, make_batch, make_pivot
from tests.decisions.parts import head_of

# 14 messages of users with 1,000 tokens each; above the soft threshold of a window of 16,000 tokens.
_RECEIVED = receive(14)
_SHORT = receive(2)
_FULL = Usage(13_000, 100)
_SMALL = Usage(1_000, 100)
# Below the soft threshold.
_BELOW = Usage(9_000, 100)
_THRIFTY = replace(SUMMARIZING, economy=1.0)
_REQUEST = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8)


async def settle(parts: CompactionParts) -> None:
    """Until the background tasks are done, and the tasks that they start."""
    async with asyncio.timeout(10):
        while parts.compactions.running.tasks:
            await asyncio.sleep(0)


async def observe(parts: CompactionParts, turn: Turn, usage: Usage | None, plan: Plan | None = None) -> None:
    parts.responses.record_response(turn, plan if plan is not None else make_plan(), usage)
    await settle(parts)


def pivots_of(parts: CompactionParts, received: Received) -> list[int]:
    """What the stored pivots of a conversation cover."""
    chain = received.conversation.chain
    return [at for at in range(1, len(chain)) if parts.state.pivots.find(chain[at].hex()) is not None]


@pytest.mark.parametrize(
    ("usage", "plan", "is_stored"),
    [
        (_SMALL, make_plan(), False),
        (Usage(6_000, 0), make_plan(), True),
        (_SMALL, make_plan(make_pivot(_SHORT.conversation, 3)), True),
    ],
)
async def test_a_head_is_stored_near_the_thresholds_and_with_a_pivot(
    usage: Usage, plan: Plan, is_stored: bool
) -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        parts.responses.record_response(turn_of(_SHORT), plan, usage)
    async with compaction_parts(store=store) as parts:
        head = await load_head(parts.state, _SHORT.conversation)
    assert (head is not None) is is_stored


async def test_what_is_new_in_a_prefix_is_in_the_store_before_the_request_is_sent() -> None:
    batch = make_batch(_SHORT.conversation, [Mark(2)])
    plan = replace(make_plan(make_pivot(_SHORT.conversation, 3), [batch]), new_batch=batch)
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        await parts.responses.secure(turn_of(_SHORT), make_plan())
        assert store.list_names() == []
        await parts.responses.secure(turn_of(_SHORT), plan)
    async with compaction_parts(store=store) as parts:
        head = await load_head(parts.state, _SHORT.conversation)
        assert head is not None and plan.pivot is not None
        assert (head.pivot, head.batches) == (plan.pivot.key, (batch.key,))
        stored = replace(batch, conversation="c")
        assert await parts.state.pivots.load_batches("t", [batch.key]) == [stored]


async def test_a_store_that_cannot_be_written_holds_no_request_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with compaction_parts() as parts:
        await parts.store.close()
        await parts.responses.secure(turn_of(_SHORT), make_plan(make_pivot(_SHORT.conversation, 3)))
    assert "background task failed" not in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": Limits()},
        {"policy": replace(SUMMARIZING, compaction=Compaction(auto=False))},
        {"purpose": "summary"},
    ],
)
async def test_nothing_is_prepared_without_a_limit_against_the_policy_or_for_a_clients_own_summary(
    changes: JSON,
) -> None:
    async with compaction_parts() as parts:
        await observe(parts, turn_of(_RECEIVED, **changes), _FULL)
        assert parts.model.requests == []


def due_turn(**fields: Any) -> Turn:
    """Below the soft threshold, after responses that have paid for a compaction."""
    ledger = BranchLedger(rent_tokens=1e6, base_tokens=2_000.0, reply_tokens=100.0)
    head = head_of(receive(13), prompt_tokens=8_000, ledger=ledger)
    defaults: JSON = {"policy": _THRIFTY, "head": head}
    return turn_of(_RECEIVED, **(defaults | fields))


async def test_a_summary_that_waits_for_its_threshold_is_used_once_it_is_due() -> None:
    """It needs no call any more, and the next request may arrive at another process."""
    store, longer, roomy = await make_store(), receive(15), Limits(context=128_000)
    async with compaction_parts(store=store) as parts:
        ready = make_pivot(_RECEIVED.conversation, 15)
        await save_pivot(parts.state, ready)
        await observe(parts, due_turn(limits=roomy), _BELOW)
        assert parts.model.requests == []
    async with compaction_parts(store=store) as parts:
        head = await load_head(parts.state, longer.conversation)
        turn = turn_of(longer, _THRIFTY, roomy, head=head)
        await parts.state.pivots.load("t", ready.key)
        assert await parts.planner.plan_unmeasured(turn) is None
        plan = decide(await parts.gather(turn))
    assert isinstance(plan, Plan) and plan.pivot == ready


async def test_a_compaction_that_fails_has_to_become_due_again() -> None:
    async with compaction_parts(refuse(500, "Out of order.")) as parts:
        await observe(parts, due_turn(), _BELOW)
        calls = len(parts.model.requests)
        assert calls and pivots_of(parts, _RECEIVED) == []
        for turns in range(15, 18):
            received = receive(turns)
            head = parts.state.heads.find(received.conversation, "scope")
            assert head is not None and head.ledger is not None
            assert head.ledger.rent_tokens < 20_000
            turn = turn_of(received, _THRIFTY, Limits(context=64_000), head=head)
            await observe(parts, turn, Usage(9_000 + 1_000 * (turns - 14), 100))
        assert len(parts.model.requests) == calls


async def test_one_chain_has_one_compaction_at_a_time() -> None:
    async with compaction_parts() as parts:
        turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
        first = parts.compactions.start(Job(turn, situation, make_cut(9), _REQUEST))
        second = parts.compactions.start(Job(turn, situation, make_cut(15), _REQUEST))
        assert first is second is parts.compactions.find_running(turn)
        await settle(parts)
        assert pivots_of(parts, _RECEIVED) == [9]
        assert parts.compactions.find_running(turn) is None


async def test_a_request_waits_only_for_a_pivot_that_it_could_use() -> None:
    """The last group of a request is open: no pivot may cover it."""
    async with compaction_parts() as parts:
        situation, short = make_situation(_RECEIVED), turn_of(_SHORT)
        parts.compactions.start(Job(turn_of(_RECEIVED), situation, make_cut(3), _REQUEST))
        assert parts.compactions.is_preparing(short)
        await settle(parts)
        parts.compactions.start(Job(turn_of(_RECEIVED), situation, make_cut(5), _REQUEST))
        assert not parts.compactions.is_preparing(short)


async def test_a_compaction_that_waits_for_its_turn_hurries_once_a_client_waits_for_it() -> None:
    """The background may take one of two places here."""
    others = [receive(14, chars) for chars in (4_000, 4_100, 4_200)]
    async with compaction_parts(most_summaries=(2, 2)) as parts:
        async with parts.slots.place("other", is_awaited=True):
            tasks = [
                parts.compactions.start(Job(turn_of(each), make_situation(each), make_cut(9), _REQUEST))
                for each in others
            ]
            await asyncio.sleep(0)
            assert (parts.slots.taken, parts.slots.waiting) == (1, 3)
            urgent = replace(_REQUEST, reason=CompactionReason.HARD_THRESHOLD, is_awaited=True)
            turn, situation = turn_of(others[2]), make_situation(others[2])
            assert parts.compactions.start(Job(turn, situation, make_cut(9), urgent)) is tasks[2]
            async with asyncio.timeout(10):
                assert (await tasks[2]).pivot is not None
            assert not tasks[0].done() and not tasks[1].done()
        assert all([(await task).pivot is not None for task in tasks])


async def test_a_stop_leaves_a_marker_and_the_next_process_compacts_again() -> None:
    store = await make_store()
    turn = turn_of(_RECEIVED)
    async with compaction_parts(store=store) as parts:
        parts.responses.record_response(turn, make_plan(), _FULL)
        while parts.compactions.find_running(turn) is None:
            await asyncio.sleep(0)
        await parts.compactions.running.tasks.close()
        assert pivots_of(parts, _RECEIVED) == []
    async with compaction_parts(store=store) as parts:
        head = await load_head(parts.state, _RECEIVED.conversation)
        assert head is not None
        await look_for_marker(parts.state, _RECEIVED.conversation)
        parts.manual.resume(structs.replace(turn, head=head))
        await settle(parts)
        assert len(pivots_of(parts, _RECEIVED)) == 1
        assert await parts.state.tasks.take("t", head.key) is None


async def test_a_compaction_that_ended_leaves_no_marker() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        await observe(parts, turn_of(_RECEIVED), _FULL)
    async with compaction_parts(store=store) as parts:
        await look_for_marker(parts.state, _RECEIVED.conversation)
        assert await parts.state.tasks.take("t", _RECEIVED.conversation.key.hex()) is None


# Failures and pauses


_FAILING = receive(4)
_CUT = make_cut(5)
_TURN = turn_of(_FAILING)
_SITUATION = make_situation(_FAILING)
_EVERY_CALL = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8)


async def test_a_summary_that_cannot_be_stored_is_used_from_memory() -> None:
    """It is paid for, and so would be the next one."""
    store = await make_store()
    store.is_full = True
    async with compaction_parts(say("It works now."), store=store) as parts:
        result = await parts.compactions.make(Job(_TURN, _SITUATION, _CUT, _EVERY_CALL))
        assert result.pivot is not None
        assert parts.state.pivots.find(result.pivot.key) == result.pivot
        assert parts.compactions.count_open_breakers() == 0


async def fail(parts: CompactionParts, times: int) -> None:
    for _ in range(times):
        await parts.compactions.make(Job(_TURN, _SITUATION, _CUT, _EVERY_CALL))


async def test_after_three_failures_the_summarizer_is_not_asked_for_a_minute() -> None:
    async with compaction_parts(refuse(403, "no")) as parts:
        await fail(parts, 2)
        assert parts.compactions.may_start(_TURN)
        await fail(parts, 1)
        assert not parts.compactions.may_start(_TURN)
        result = await parts.compactions.make(Job(_TURN, _SITUATION, _CUT, _EVERY_CALL))
        assert (result.failure, result.calls, len(parts.model.requests)) == ("paused", 0, 3)
        parts.clock.now += 60
        assert parts.compactions.may_start(_TURN)


async def test_one_attempt_is_made_after_a_pause_and_its_success_ends_the_pause() -> None:
    async with compaction_parts(*[refuse(403, "no")] * 4, say("It works now.")) as parts:
        await fail(parts, 3)
        for later, calls in ((59.9, 3), (0.2, 4), (59.7, 4)):
            parts.clock.now += later
            await fail(parts, 1)
            assert len(parts.model.requests) == calls
        parts.clock.now += 60
        result = await parts.compactions.make(Job(_TURN, _SITUATION, _CUT, _EVERY_CALL))
        assert result.pivot is not None
        assert parts.compactions.may_start(_TURN)


async def test_after_a_pause_only_one_attempt_is_under_way() -> None:
    async with compaction_parts(*[refuse(403, "no")] * 3, say("It works now.")) as parts:
        await fail(parts, 3)
        parts.clock.now += 60
        parts.model.gate.clear()
        attempt = asyncio.create_task(parts.compactions.make(Job(_TURN, _SITUATION, _CUT, _EVERY_CALL)))
        while len(parts.model.requests) == 3:
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            result = await parts.compactions.make(Job(_TURN, _SITUATION, _CUT, _EVERY_CALL))
        assert (result.failure, result.calls) == ("paused", 0)
        parts.model.gate.set()
        assert (await attempt).pivot is not None


async def test_a_pause_is_for_one_tenant_and_for_calls_alone() -> None:
    other = turn_of(receive(4), tenant=replace(_TURN.tenant, id="other"))
    digesting = turn_of(_FAILING, replace(SUMMARIZING, summary=Summary(method="digest")))
    async with compaction_parts(refuse(403, "no")) as parts:
        await fail(parts, 3)
        assert [parts.compactions.may_start(turn) for turn in (_TURN, other, digesting)] == [
            False,
            True,
            True,
        ]


async def test_over_its_budget_a_tenant_gets_no_summary_and_its_digests_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tenant = make_limited_tenant("team-a", summary_calls_per_hour=1)
    turn = structs.replace(_TURN, tenant=tenant)
    async with compaction_parts(say("")) as parts:
        first = await parts.compactions.make(Job(turn, _SITUATION, _CUT, _EVERY_CALL))
        assert (first.failure, first.calls) == ("over budget", 1)
        assert not parts.compactions.may_start(turn) and parts.compactions.count_calls(turn) == 0
        assert await parts.compactions.make(Job(turn, _SITUATION, _CUT, _EVERY_CALL)) == CompactionResult(
            OVER_BUDGET, 0
        )
        assert await parts.compactions.digest(
            Job(turn, _SITUATION, _CUT, make_digest_request(CompactionReason.HARD_THRESHOLD))
        )
        assert parts.compactions.may_start(_TURN)
    assert len(parts.model.calls) == 1
    assert 'over_budget_total{tenant="team-a"} 1.0' in parts.metrics.render().decode()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "the summary budget of tenant team-a is used up: old turns become digests where they must"
    ]


# When it is due


_TALK = receive(14)
_FRUGAL = replace(SUMMARIZING, economy=1.0)
_RICH = BranchLedger(rent_tokens=1e6, base_tokens=2_000.0, reply_tokens=100.0)


@pytest.mark.parametrize(
    ("changes", "ledger", "expected"),
    [
        ({}, _RICH, True),
        ({}, replace(_RICH, rent_tokens=10.0), False),
        ({}, None, False),
        ({"purpose": "summary"}, _RICH, False),
        ({"purpose": "agent"}, _RICH, True),
        ({"limits": Limits()}, _RICH, False),
        ({"policy": replace(SUMMARIZING, economy=0.0)}, _RICH, False),
        ({"policy": replace(_FRUGAL, compaction=Compaction(auto=False))}, _RICH, False),
    ],
)
def test_it_is_due_by_the_ledger_alone(changes: JSON, ledger: BranchLedger | None, expected: bool) -> None:
    defaults: JSON = {"policy": _FRUGAL}
    turn = turn_of(_TALK, **(defaults | changes))
    head = head_of(_TALK, prompt_tokens=9_000, ledger=ledger)
    assert is_compaction_due(turn, head) is expected
