"""Compactions that a person asks for."""

import asyncio
from dataclasses import replace

from msgspec import structs

from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import Compacted, Failed, InProgress, ManualOutcome, NothingToCompact
from gateway.core.compaction.request import CompactionReason, CompactionRequest
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.head import Head
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Summary
from gateway.core.sizing.usage import Usage
from gateway.reporting.events import CompactionFailed
from tests.builders.chat import make_plan, read, render
from tests.builders.compaction import (
    DIGESTING,
    SUMMARIZING,
    CompactionParts,
    compaction_parts,
    head_of,
    make_cut,
    make_situation,
    receive,
    refuse,
    say,
    talk,
    turn_of,
)
from tests.builders.processes import Process, processes
from tests.builders.state import look_for_marker, make_store
from tests.toy.running import wait_until

_RECEIVED = receive(8)
_ROOMY = Limits(context=200_000)


def asked(policy: Policy = SUMMARIZING) -> Turn:
    """A turn whose request was answered; far below its thresholds."""
    return turn_of(_RECEIVED, policy, _ROOMY)


def command(policy: Policy = SUMMARIZING) -> Turn:
    """A turn whose last message is a command."""
    said = [*talk(8), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "/compact"}]
    return turn_of(read(render(said)), policy, _ROOMY, command="")


async def run(parts: CompactionParts, turn: Turn, instructions: str = "") -> ManualOutcome:
    task = parts.manual.compact(turn, instructions)
    assert task is not None
    return await task


async def test_it_compacts_far_below_the_thresholds() -> None:
    async with compaction_parts() as parts:
        outcome = await run(parts, asked())
    assert isinstance(outcome, Compacted)
    assert outcome.messages > 5 and outcome.after_tokens < outcome.before_tokens / 2


async def test_it_needs_no_known_limit() -> None:
    async with compaction_parts() as parts:
        assert isinstance(await run(parts, turn_of(_RECEIVED, limits=Limits())), Compacted)


async def test_the_model_is_told_the_instructions() -> None:
    async with compaction_parts() as parts:
        await run(parts, asked(), "Keep ticket numbers.")
        (call,) = parts.model.calls
    assert "Keep ticket numbers." in call["messages"][-1]["content"]


async def test_it_applies_from_the_next_request_on() -> None:
    async with compaction_parts() as parts:
        head = parts.compactor.record_response(asked(), make_plan(), None)
        await run(parts, asked())
        applied = parts.state.pivots.apply_manual(receive(9).conversation, head)
    assert applied is not None and applied.pivot is not None


async def test_a_short_conversation_has_nothing_to_compact() -> None:
    async with compaction_parts() as parts:
        with parts.bus.subscribe() as heard:
            outcome = await run(parts, turn_of(receive(1, chars=40), limits=_ROOMY))
            failed = await heard.next()
        assert parts.model.requests == []
    assert outcome == NothingToCompact()
    assert isinstance(failed, CompactionFailed) and failed.trigger == "manual"


async def test_a_failure_tells_its_reason() -> None:
    async with compaction_parts(refuse(403, "no")) as parts:
        assert await run(parts, asked()) == Failed("status 403")


async def test_what_one_call_cannot_hold_takes_several() -> None:
    small = turn_of(_RECEIVED, limits=Limits(context=4_000))
    async with compaction_parts() as parts:
        outcome = await run(parts, small)
        calls = len(parts.model.requests)
    assert isinstance(outcome, Compacted) and calls > 1


async def test_the_policy_bounds_the_number_of_calls() -> None:
    policy = replace(SUMMARIZING, summary=Summary(max_calls=1))
    async with compaction_parts() as parts:
        outcome = await run(parts, turn_of(_RECEIVED, policy, Limits(context=4_000)))
        assert len(parts.model.requests) == 1
    assert isinstance(outcome, Compacted)


async def test_a_conversation_has_one_manual_compaction_at_a_time() -> None:
    async with compaction_parts() as parts:
        first = parts.manual.compact(asked(), "")
        assert first is not None
        assert parts.manual.compact(asked(), "") is None
        await first
        await asyncio.sleep(0)
        again = parts.manual.compact(asked(), "")
        assert again is not None and again is not first


async def test_it_waits_for_a_compaction_that_does_not_know_the_instructions() -> None:
    async with compaction_parts() as parts:
        automatic = parts.compactor.start(
            asked(),
            make_situation(_RECEIVED),
            make_cut(5),
            CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8),
        )
        outcome = await run(parts, asked(), "Keep names.")
        assert automatic.done()
        first, second = parts.model.calls
    assert isinstance(outcome, Compacted)
    assert "Keep names." not in first["messages"][-1]["content"]
    assert "Keep names." in second["messages"][-1]["content"]


# Commands


async def test_a_command_that_is_sent_again_meanwhile_gets_the_same_task() -> None:
    async with compaction_parts() as parts:
        first = parts.manual.compact(command(), "")
        assert first is not None
        assert parts.manual.compact(command(), "") is first
        assert parts.manual.compact(asked(), "") is None
        await first


async def test_a_command_runs_once_even_after_a_restart() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        outcome = await run(parts, command())
        assert len(parts.model.requests) == 1
    async with compaction_parts(store=store) as parts:
        assert await run(parts, command()) == outcome
        assert parts.model.requests == []
    assert isinstance(outcome, Compacted)


async def test_a_command_that_failed_runs_again() -> None:
    async with compaction_parts(refuse(403, "no"), say("It works now.")) as parts:
        assert await run(parts, command()) == Failed("status 403")
        await asyncio.sleep(0)
        assert isinstance(await run(parts, command()), Compacted)


async def test_the_pivot_of_a_command_is_in_force_with_and_without_the_command_in_the_history() -> None:
    async with compaction_parts() as parts:
        await run(parts, command())
        head = parts.state.heads.find(command().received.conversation, "scope")
        dropped = read(
            render(
                [*talk(8), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Next."}]
            )
        )
        without = parts.state.heads.find(dropped.conversation, "scope")
    assert head is not None and head.pivot is not None
    assert without == head


async def test_after_a_command_the_rent_begins_anew_from_the_prompt_that_it_made() -> None:
    before = BranchLedger(
        answered_seconds=9.0, has_cached=True, rent_tokens=5e4, base_tokens=9_000.0, summary_tokens=800.0
    )
    said = [*talk(8), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Next."}]
    after = read(render(said))
    async with compaction_parts() as parts:
        answered = head_of(_RECEIVED, ledger=before)
        await run(parts, structs.replace(command(), head=answered))
        head = parts.state.heads.find(after.conversation, "scope")
        assert head is not None and head.ledger == replace(before, answered_seconds=0.0)
        pivot = parts.state.pivots.find(head.pivot)
        turn = turn_of(after, limits=_ROOMY, head=head)
        answer = parts.compactor.record_response(turn, make_plan(pivot), Usage(3_000, 100))
    assert answer.ledger is not None and answer.ledger.has_cached
    assert (answer.ledger.base_tokens, answer.ledger.rent_tokens) == (3_000.0, 0.0)


# Markers


def head_of_answer(parts: CompactionParts) -> Head:
    return parts.compactor.record_response(asked(), make_plan(), None)


async def test_a_scheduled_compaction_starts_at_the_next_request() -> None:
    async with compaction_parts() as parts:
        head = head_of_answer(parts)
        parts.manual.schedule(head, "Keep names.")
        next_turn = structs.replace(turn_of(receive(9), limits=_ROOMY), head=head)
        parts.manual.resume(next_turn)
        running = parts.manual.compact(next_turn, "")
        assert running is None
        while not parts.compactor.is_idle:
            await asyncio.sleep(0)
        (call,) = parts.model.calls
    assert "Keep names." in call["messages"][-1]["content"]


async def test_a_scheduled_compaction_survives_a_restart() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        parts.manual.schedule(head_of_answer(parts), "")
        parts.state.heads.flush()
    async with compaction_parts(store=store) as parts:
        head = await parts.state.heads.load("t", _RECEIVED.conversation, "scope")
        assert head is not None
        await look_for_marker(parts.state, _RECEIVED.conversation)
        parts.manual.resume(structs.replace(asked(), head=head))
        assert not parts.compactor.is_idle


async def test_a_compaction_is_resumed_although_the_client_went_on_before_the_end_of_the_process() -> None:
    store = await make_store()
    later = receive(10)
    async with compaction_parts(store=store) as parts:
        parts.manual.compact(asked(), "Keep names.")
        while parts.compactor.find_running(asked()) is None:
            await asyncio.sleep(0)
        parts.compactor.record_response(turn_of(later, limits=_ROOMY), make_plan(), None)
        await parts.compactor.close()
    async with compaction_parts(store=store) as parts:
        head = parts.compactor.record_response(turn_of(later, limits=_ROOMY), make_plan(), None)
        await look_for_marker(parts.state, later.conversation)
        parts.manual.resume(turn_of(receive(11), limits=_ROOMY, head=head))
        while not parts.compactor.is_idle:
            await asyncio.sleep(0)
        (call,) = parts.model.calls
    assert "Keep names." in call["messages"][-1]["content"]


async def test_a_stop_leaves_a_marker_for_a_conversation_and_none_for_a_command() -> None:
    """A client that still wants the response to its command sends it again."""
    for turn, has_marker in ((asked(), True), (command(), False)):
        store = await make_store()
        async with compaction_parts(store=store) as parts:
            parts.manual.compact(turn, "")
            while parts.compactor.find_running(turn) is None:
                await asyncio.sleep(0)
            await parts.compactor.close()
        async with compaction_parts(store=store) as parts:
            conversation = turn.received.conversation
            await look_for_marker(parts.state, conversation)
            assert (await parts.state.tasks.take("t", conversation.key.hex()) is not None) is has_marker


async def test_without_a_marker_nothing_is_resumed() -> None:
    async with compaction_parts() as parts:
        parts.manual.resume(asked())
        parts.manual.resume(structs.replace(asked(DIGESTING), head=head_of_answer(parts)))
        assert parts.compactor.is_idle


# Several processes


async def begin(process: Process, turn: Turn) -> "asyncio.Task[ManualOutcome]":
    """Until the model of this process thinks about the summary."""
    process.parts.model.gate.clear()
    task = process.parts.manual.compact(turn, "")
    assert task is not None
    await wait_until(lambda: process.calls > 0)
    return task


async def test_a_command_that_is_sent_to_two_processes_runs_once() -> None:
    async with processes() as group:
        first = await begin(group.one, command())
        second = group.other.parts.manual.compact(command(), "")
        assert second is not None
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert await first == await second
        assert isinstance(await first, Compacted)
        assert (group.one.calls, group.other.calls) == (1, 0)


async def test_a_command_whose_process_dies_is_run_by_the_one_that_waited() -> None:
    async with processes() as group:
        await begin(group.one, command())
        second = group.other.parts.manual.compact(command(), "")
        assert second is not None
        await group.wait_until_one_waits()
        group.one.store.cut()
        group.server.end_leases()
        assert isinstance(await second, Compacted)
        assert group.other.calls == 1


async def test_a_command_that_failed_is_not_repeated_by_the_process_that_waited() -> None:
    async with processes(refuse(403, "no")) as group:
        first = await begin(group.one, command())
        second = group.other.parts.manual.compact(command(), "")
        assert second is not None
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert await first == await second == Failed("status 403")
        assert group.other.calls == 0


async def test_a_conversation_is_not_compacted_by_two_processes_at_once() -> None:
    async with processes() as group:
        first = await begin(group.one, asked())
        assert await run(group.other.parts, asked()) == InProgress()
        group.one.parts.model.gate.set()
        assert isinstance(await first, Compacted)
        assert group.other.calls == 0


async def settle(process: Process) -> None:
    await wait_until(lambda: process.parts.compactor.is_idle)


async def find_marker(process: Process) -> Turn:
    """A turn at whose head this process finds the marker."""
    await look_for_marker(process.parts.state, _RECEIVED.conversation)
    return structs.replace(turn_of(receive(9), limits=_ROOMY), head=head_of(_RECEIVED))


async def test_a_scheduled_compaction_is_carried_out_by_one_of_two_processes() -> None:
    async with processes() as group:
        group.one.parts.state.heads.hold(head_of(_RECEIVED))
        group.one.parts.manual.schedule(head_of(_RECEIVED), "Keep names.")
        await wait_until(lambda: len(group.server.records) == 2)
        here, there = await find_marker(group.one), await find_marker(group.other)
        group.other.parts.manual.resume(there)
        group.one.parts.manual.resume(here)
        for process in (group.one, group.other):
            await settle(process)
        assert group.one.calls + group.other.calls == 1


async def test_the_marker_of_a_compaction_in_progress_elsewhere_is_not_carried_out_again() -> None:
    async with processes() as group:
        first = await begin(group.one, asked())
        turn = await find_marker(group.other)
        group.other.parts.manual.resume(turn)
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert isinstance(await first, Compacted)
        await settle(group.other)
        assert (group.one.calls, group.other.calls) == (1, 0)


async def test_the_marker_of_a_process_that_died_is_carried_out_by_another() -> None:
    async with processes() as group:
        await begin(group.one, asked())
        turn = await find_marker(group.other)
        group.other.parts.manual.resume(turn)
        await group.wait_until_one_waits()
        group.one.store.cut()
        group.server.end_leases()
        await settle(group.other)
        assert group.other.calls == 1


async def test_a_marker_does_not_interrupt_a_manual_compaction_of_its_conversation() -> None:
    async with processes() as group:
        first = await begin(group.one, asked())
        turn = await find_marker(group.one)
        group.one.parts.manual.resume(turn)
        group.one.parts.model.gate.set()
        await first
        await settle(group.one)
        assert group.one.calls == 1
