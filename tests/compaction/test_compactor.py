"""What an answer starts in the background, and what a restart brings back."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.compaction.answered_heads import name_prefix
from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.decision import decide
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionReason, CompactionRequest
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.usage import Usage
from gateway.reporting.events import Pruned
from tests.builders.chat import JSON, make_batch, make_pivot, make_plan
from tests.builders.compaction import (
    SUMMARIZING,
    CompactionParts,
    compaction_parts,
    head_of,
    make_cut,
    make_situation,
    receive,
    refuse,
    turn_of,
)
from tests.builders.state import look_for_marker, make_store

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
        while not parts.compactor.is_idle:
            await asyncio.sleep(0)


async def observe(parts: CompactionParts, turn: Turn, usage: Usage | None, plan: Plan | None = None) -> None:
    parts.compactor.record_response(turn, plan if plan is not None else make_plan(), usage)
    await settle(parts)


def pivots_of(parts: CompactionParts, received: Received) -> list[int]:
    """What the stored pivots of a conversation cover."""
    chain = received.conversation.chain
    return [at for at in range(1, len(chain)) if parts.state.pivots.find(chain[at].hex()) is not None]


# Heads


async def test_an_answer_leaves_a_head_with_its_usage() -> None:
    async with compaction_parts() as parts:
        turn = turn_of(_SHORT)
        head = parts.compactor.record_response(turn, make_plan(), Usage(1_000, 20))
        assert parts.state.heads.find(_SHORT.conversation, "scope") == head
    assert (head.prompt_tokens, head.output_tokens, head.length) == (1_000, 20, 5)
    assert (head.pivot, head.batches, head.conversation) == (None, (), "c")


async def test_growth_is_measured_between_two_answers() -> None:
    async with compaction_parts() as parts:
        before = head_of(_SHORT, prompt_tokens=600, output_tokens=0)
        head = parts.compactor.record_response(turn_of(_RECEIVED, head=before), make_plan(), Usage(1_000, 0))
        untold = parts.compactor.record_response(
            turn_of(_RECEIVED, head=replace(before, growth_tokens=70.0)), make_plan(), None
        )
    assert (head.growth_tokens, untold.growth_tokens) == (400.0, 70.0)


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
        parts.compactor.record_response(turn_of(_SHORT), plan, usage)
        parts.state.heads.flush()
    async with compaction_parts(store=store) as parts:
        head = await parts.state.heads.load("t", _SHORT.conversation, "scope")
    assert (head is not None) is is_stored


async def test_a_new_batch_is_stored_and_reported() -> None:
    batch = make_batch(_SHORT.conversation, [Mark(2)])
    plan = replace(make_plan(None, [batch]), new_batch=batch)
    async with compaction_parts() as parts:
        with parts.bus.subscribe() as heard:
            parts.compactor.record_response(turn_of(_SHORT), plan, _SMALL)
            pruned = await heard.next()
        assert await parts.state.pivots.load_batches("t", [batch.key]) == [batch]
    assert isinstance(pruned, Pruned) and pruned.marks == 1


async def test_what_is_new_in_a_prefix_is_in_the_store_before_the_request_is_sent() -> None:
    batch = make_batch(_SHORT.conversation, [Mark(2)])
    plan = replace(make_plan(make_pivot(_SHORT.conversation, 3), [batch]), new_batch=batch)
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        await parts.compactor.secure(turn_of(_SHORT), make_plan())
        assert await store.scan("") == []
        await parts.compactor.secure(turn_of(_SHORT), plan)
    async with compaction_parts(store=store) as parts:
        head = await parts.state.heads.load("t", _SHORT.conversation, "scope")
        assert head is not None and plan.pivot is not None
        assert (head.pivot, head.batches) == (plan.pivot.key, (batch.key,))
        assert await parts.state.pivots.load_batches("t", [batch.key]) == [batch]


async def test_a_prefix_that_is_in_the_store_is_not_written_for_each_request() -> None:
    plan = make_plan(make_pivot(_SHORT.conversation, 3))
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        await parts.compactor.secure(turn_of(_SHORT), plan)
        await parts.compactor.secure(turn_of(receive(4)), plan)
        assert await parts.state.heads.load(
            "t", receive(4).conversation, "scope"
        ) == await parts.state.heads.load("t", _SHORT.conversation, "scope")


async def test_a_store_that_cannot_be_written_holds_no_request_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no error of the task that writes, and the next request tries again."""
    turn, plan = turn_of(_SHORT), make_plan(make_pivot(_SHORT.conversation, 3))
    async with compaction_parts() as parts:
        await parts.store.close()
        await parts.compactor.secure(turn, plan)
        prefix = name_prefix(parts.state, turn, plan)
        assert not parts.state.heads.is_durable(turn.conversation_id, *prefix)
    assert "background task failed" not in caplog.text


async def test_a_compaction_that_waits_for_its_turn_hurries_once_a_client_waits_for_it() -> None:
    """The background may take one of two places here."""
    others = [receive(14, chars) for chars in (4_000, 4_100, 4_200)]
    turns = [turn_of(received) for received in others]
    async with compaction_parts(most_summaries=(2, 2)) as parts:
        async with parts.slots.place("other", is_awaited=True):
            tasks = [
                parts.compactor.start(turn, make_situation(received), make_cut(9), _REQUEST)
                for turn, received in zip(turns, others, strict=True)
            ]
            await asyncio.sleep(0)
            assert (parts.slots.taken, parts.slots.waiting) == (1, 3)
            urgent = replace(_REQUEST, reason=CompactionReason.HARD_THRESHOLD, is_awaited=True)
            again = parts.compactor.start(turns[2], make_situation(others[2]), make_cut(9), urgent)
            assert again is tasks[2]
            assert (await tasks[2]).pivot is not None
            assert not tasks[0].done() and not tasks[1].done()
        assert all([(await task).pivot is not None for task in tasks])


async def test_too_many_waiting_compactions_start_no_more_in_the_background() -> None:
    async with compaction_parts(most_summaries=(1, 1)) as parts:
        places = [parts.slots.place("t", is_awaited=False) for _ in range(5)]
        waiting = [asyncio.create_task(parts.slots.enter(place)) for place in places]
        await asyncio.sleep(0)
        assert parts.slots.is_crowded("t")
        await observe(parts, turn_of(_RECEIVED), _FULL)
        assert pivots_of(parts, _RECEIVED) == [] and parts.model.calls == []
        for task in waiting:
            task.cancel()


async def test_a_client_that_continues_nothing_leaves_nothing_in_the_store() -> None:
    """Until one of its requests is continued after all."""
    store = await make_store()
    digest = make_pivot(_SHORT.conversation, 3, is_digest=True)
    async with compaction_parts(store=store) as parts:
        for at in range(3):
            turn = turn_of(receive(14, 4_001 + at), is_unrecognized=True)
            parts.job.limiter.note_response(turn, needs_compaction=True)
        limited = turn_of(_SHORT, is_unrecognized=True)
        parts.state.pivots.hold(digest)
        await parts.compactor.secure(limited, make_plan(digest))
        head = parts.compactor.record_response(limited, make_plan(digest), _FULL)
        await settle(parts)
        parts.state.heads.flush()
        assert [key for key, _ in await store.scan("") if not key.startswith("calibration")] == []
        await parts.compactor.secure(turn_of(receive(3), head=head), make_plan(digest))
    async with compaction_parts(store=store) as parts:
        assert await parts.state.pivots.load("t", digest.key) == digest
        assert await parts.state.heads.load("t", receive(3).conversation, "scope") is not None


# Compactions after an answer


async def test_above_the_soft_threshold_a_compaction_is_prepared() -> None:
    async with compaction_parts() as parts:
        await observe(parts, turn_of(_RECEIVED), _FULL)
        assert len(parts.model.requests) == 1
        assert len(pivots_of(parts, _RECEIVED)) == 1


async def test_below_it_nothing_is_prepared() -> None:
    async with compaction_parts() as parts:
        await observe(parts, turn_of(_RECEIVED), Usage(9_000, 100))
        assert parts.model.requests == []


@pytest.mark.parametrize(
    "changes", [{"limits": Limits()}, {"policy": replace(SUMMARIZING, auto=False)}, {"purpose": "summary"}]
)
async def test_nothing_is_prepared_without_a_limit_against_the_policy_or_for_a_clients_own_summary(
    changes: JSON,
) -> None:
    async with compaction_parts() as parts:
        await observe(parts, turn_of(_RECEIVED, **changes), _FULL)
        assert parts.model.requests == []


async def test_nothing_is_prepared_while_a_newer_pivot_is_ready() -> None:
    async with compaction_parts() as parts:
        await parts.state.pivots.save(make_pivot(_RECEIVED.conversation, 15))
        await observe(parts, turn_of(_RECEIVED), _FULL)
        assert parts.model.requests == []


async def test_an_answer_without_usage_prepares_nothing() -> None:
    async with compaction_parts() as parts:
        await observe(parts, turn_of(_RECEIVED), None)
        assert parts.model.requests == []


async def test_an_answer_calibrates_while_little_is_known() -> None:
    async with compaction_parts() as parts:
        turn = turn_of(_SHORT)
        await observe(parts, turn, Usage(3_000, 10))
        assert parts.state.calibrations.find("t", turn.meter).samples == 1


async def test_an_answer_teaches_nothing_while_there_is_no_memory_for_its_request() -> None:
    async with compaction_parts() as parts:
        turn, others = turn_of(_SHORT), parts.memory.open()
        others.take(parts.memory.max_bytes)
        with parts.memory.open() as waiting:
            waiting.take(1 << 20)
            await observe(parts, turn, Usage(3_000, 10))
        assert parts.state.calibrations.find("t", turn.meter).samples == 0
        others.shrink(others.size_bytes)
        await observe(parts, turn, Usage(3_000, 10))
        assert parts.state.calibrations.find("t", turn.meter).samples == 1
        assert parts.memory.used_bytes == 0


async def test_a_compaction_is_counted_as_memory_until_it_is_done() -> None:
    async with compaction_parts() as parts:
        turn = turn_of(_RECEIVED)
        parts.compactor.record_response(turn, make_plan(), _FULL)
        assert parts.memory.used_bytes > turn.weight_bytes
        await settle(parts)
        assert parts.memory.used_bytes == 0


async def test_after_a_truncated_prompt_the_head_has_no_usage() -> None:
    """Upstream counts as many tokens as before, although 1,000 were added."""
    longer = receive(3)
    async with compaction_parts() as parts:
        turn = turn_of(longer, limits=Limits(), head=head_of(_SHORT, prompt_tokens=4_000))
        await observe(parts, turn, Usage(4_000, 10))
        head = parts.state.heads.find(longer.conversation, "scope")
    assert head is not None and head.prompt_tokens == 0


async def test_nothing_is_prepared_for_a_client_that_continues_nothing() -> None:
    async with compaction_parts() as parts:
        for at in range(3):
            turn = turn_of(receive(14, 4_001 + at), is_unrecognized=True)
            await observe(parts, turn, _FULL)
        assert len(parts.model.calls) == 2
        await observe(parts, turn_of(_RECEIVED), _FULL)
        assert len(parts.model.calls) == 3


# Compactions because old messages have cost enough


def due_turn(**fields: Any) -> Turn:
    """Below the soft threshold, after responses that have paid for a compaction."""
    ledger = BranchLedger(rent_tokens=1e6, base_tokens=2_000.0, reply_tokens=100.0)
    head = head_of(receive(13), prompt_tokens=8_000, ledger=ledger)
    defaults: JSON = {"policy": _THRIFTY, "head": head}
    return turn_of(_RECEIVED, **(defaults | fields))


async def test_old_messages_that_have_cost_enough_are_compacted_in_the_background() -> None:
    async with compaction_parts() as parts:
        await observe(parts, due_turn(policy=replace(SUMMARIZING, economy=0.0)), _BELOW)
        assert parts.model.requests == []
        await observe(parts, due_turn(), _BELOW)
        (covers,) = pivots_of(parts, _RECEIVED)
        pivot = parts.state.pivots.find(_RECEIVED.conversation.chain[covers].hex())
        assert pivot is not None and pivot.is_early
        head = parts.state.heads.find(_RECEIVED.conversation, "scope")
        assert head is not None and head.ledger is not None and head.ledger.rent_tokens == 0.0
        # The same response again, without the pivot in use yet: the rent is paid.
        await observe(parts, turn_of(receive(15), _THRIFTY, head=head), Usage(10_000, 100))
        assert len(parts.model.requests) == 1


async def test_a_summary_that_is_ready_is_used_early_instead_of_another_one() -> None:
    """It waits for its threshold, and old messages have cost enough before that."""
    ready = make_pivot(_RECEIVED.conversation, 9)
    async with compaction_parts() as parts:
        await parts.state.pivots.save(ready)
        await observe(parts, due_turn(), _BELOW)
        assert parts.model.requests == [] and pivots_of(parts, _RECEIVED) == [9]
        assert parts.state.pivots.find(ready.key) == replace(ready, is_early=True)
        head = parts.state.heads.find(_RECEIVED.conversation, "scope")
        plan = decide(await parts.gather(turn_of(receive(15), _THRIFTY, head=head)))
    assert isinstance(plan, Plan) and plan.pivot is not None and plan.pivot.key == ready.key


async def test_the_rent_is_not_paid_where_there_is_no_memory_for_a_compaction() -> None:
    async with compaction_parts() as parts:
        with parts.memory.open("other") as share:
            share.take(1 << 30)
            await observe(parts, due_turn(), _BELOW)
        head = parts.state.heads.find(_RECEIVED.conversation, "scope")
        assert parts.model.requests == [] and head is not None and head.ledger is not None
        assert head.ledger.rent_tokens >= 1e6


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


async def test_nothing_is_paid_while_nothing_can_be_made() -> None:
    async with compaction_parts() as parts:
        running = parts.compactor.start(due_turn(), make_situation(_RECEIVED), make_cut(9), _REQUEST)
        head = parts.compactor.record_response(due_turn(), make_plan(), _BELOW)
        assert head.ledger is not None and head.ledger.rent_tokens > 1e6
        await running
        await settle(parts)


async def test_what_was_due_is_made_after_a_stop() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        parts.compactor.record_response(due_turn(), make_plan(), _BELOW)
        while parts.compactor.find_running(due_turn()) is None:
            await asyncio.sleep(0)
        await parts.compactor.close()
        parts.state.heads.flush()
    async with compaction_parts(store=store) as parts:
        head = await parts.state.heads.load("t", _RECEIVED.conversation, "scope")
        assert head is not None and head.ledger is not None and head.ledger.rent_tokens == 0.0
        await look_for_marker(parts.state, _RECEIVED.conversation)
        parts.manual.resume(due_turn(head=head))
        await settle(parts)
        assert len(pivots_of(parts, _RECEIVED)) == 1


# Tasks


async def test_one_chain_has_one_compaction_at_a_time() -> None:
    async with compaction_parts() as parts:
        turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
        first = parts.compactor.start(turn, situation, make_cut(9), _REQUEST)
        second = parts.compactor.start(turn, situation, make_cut(15), _REQUEST)
        assert first is second is parts.compactor.find_running(turn)
        await settle(parts)
        assert pivots_of(parts, _RECEIVED) == [9]
        assert parts.compactor.find_running(turn) is None


async def test_another_tenant_has_its_own() -> None:
    other = turn_of(_RECEIVED)
    other = structs.replace(other, tenant=replace(other.tenant, id="other"))
    async with compaction_parts() as parts:
        parts.compactor.start(turn_of(_RECEIVED), make_situation(_RECEIVED), make_cut(9), _REQUEST)
        assert parts.compactor.find_running(other) is None


async def test_a_request_waits_only_for_a_pivot_that_it_could_use() -> None:
    """The last group of a request is open: no pivot may cover it."""
    async with compaction_parts() as parts:
        situation, short = make_situation(_RECEIVED), turn_of(_SHORT)
        parts.compactor.start(turn_of(_RECEIVED), situation, make_cut(3), _REQUEST)
        assert parts.compactor.is_preparing(short)
        await settle(parts)
        parts.compactor.start(turn_of(_RECEIVED), situation, make_cut(5), _REQUEST)
        assert not parts.compactor.is_preparing(short)


async def test_the_same_digest_is_made_once() -> None:
    async with compaction_parts() as parts:
        turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
        first = parts.compactor.start_digest(turn, situation, make_cut(9), CompactionReason.HARD_THRESHOLD)
        assert (
            parts.compactor.start_digest(turn, situation, make_cut(9), CompactionReason.HARD_THRESHOLD)
            is first
        )
        assert await first


async def test_the_error_of_a_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async with compaction_parts() as parts:
        with caplog.at_level(logging.ERROR, "gateway.compactor"):
            parts.compactor.spawn(fail())
            await settle(parts)
    assert [record.getMessage() for record in caplog.records] == ["background task failed: ValueError"]


# Markers


async def test_a_stop_leaves_a_marker_and_the_next_process_compacts_again() -> None:
    store = await make_store()
    turn = turn_of(_RECEIVED)
    async with compaction_parts(store=store) as parts:
        parts.compactor.record_response(turn, make_plan(), _FULL)
        while parts.compactor.find_running(turn) is None:
            await asyncio.sleep(0)
        await parts.compactor.close()
        parts.state.heads.flush()
        assert pivots_of(parts, _RECEIVED) == []
    async with compaction_parts(store=store) as parts:
        head = await parts.state.heads.load("t", _RECEIVED.conversation, "scope")
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
