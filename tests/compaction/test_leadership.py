"""Several processes that share a store: `one` is asked first, and leads."""

import asyncio
from dataclasses import replace

from gateway.compaction.leadership import ELSEWHERE
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.state.compaction_leases import LeaseTimes
from tests.builders.chat import JSON, make_pivot, read, render
from tests.builders.compaction import (
    DIGESTING,
    compaction_parts,
    head_of,
    make_cut,
    make_situation,
    receive,
    refuse,
    talk,
    turn_of,
)
from tests.builders.processes import AWAITED, RECEIVED, processes
from tests.toy.running import wait_until

_LONGER = receive(16)
_BACKGROUND = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8)
_MANUAL = CompactionRequest(
    reason=CompactionReason.MANUAL, is_awaited=True, calls=8, trigger="manual", instructions="Keep names."
)
# A leader looks at its lease all the time.
_EAGER = LeaseTimes(keep_seconds=6.0, renew_seconds=0.0)


async def test_one_of_two_processes_makes_the_summary_and_both_use_it() -> None:
    async with processes() as group:
        first = await group.one.start_calling()
        second = group.other.start()
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        pivot = (await first).pivot
        assert pivot is not None and pivot.summary.startswith("By one.")
        assert (await second).pivot == pivot
        assert (group.one.calls, group.other.calls) == (1, 0)
        assert group.other.find() == pivot
        assert not group.server.holdings


async def test_who_comes_just_after_the_release_makes_no_call() -> None:
    async with processes() as group:
        pivot = (await group.one.start()).pivot
        assert (await group.other.start()).pivot == pivot is not None
        assert group.other.calls == 0


async def test_a_longer_request_of_the_conversation_waits_although_its_cut_is_another() -> None:
    async with processes() as group:
        first = await group.one.start_calling(covers=9)
        second = group.other.start(_LONGER, covers=13)
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await second).pivot == (await first).pivot is not None
        assert group.other.calls == 0


async def test_another_branch_does_not_wait() -> None:
    other: list[JSON] = [talk(1)[0], {"role": "assistant", "content": "Another step."}, *talk(14)[2:]]
    async with processes() as group:
        first = await group.one.start_calling()
        assert (await group.other.start(read(render(other)))).pivot is not None
        assert not first.done() and group.other.calls == 1


async def test_in_the_background_nothing_waits_for_another_process() -> None:
    async with processes() as group:
        await group.one.start_calling()
        result = await group.other.start(request=_BACKGROUND)
        assert result == CompactionResult(ELSEWHERE, 0)
        assert (group.other.calls, group.other.parts.memory.used_bytes) == (0, 0)


async def test_once_a_client_waits_for_it_a_compaction_of_the_background_waits_too() -> None:
    async with processes() as group:
        first = await group.one.start_calling()
        second = group.other.start(request=_BACKGROUND)
        assert group.other.start() is second
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await second).pivot == (await first).pivot is not None


async def test_a_client_that_comes_when_the_background_has_given_up_waits_itself() -> None:
    async with processes() as group:
        first = await group.one.start_calling()
        given_up = group.other.start(request=_BACKGROUND)
        await asyncio.wait((given_up,))
        second = group.other.start()
        assert second is not given_up
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await second).pivot == (await first).pivot is not None


async def test_who_waits_for_another_process_holds_no_place_and_no_copies() -> None:
    turn = turn_of(RECEIVED)
    async with processes() as group:
        await group.one.start_calling()
        group.other.start()
        await group.wait_until_one_waits()
        assert group.other.parts.slots.taken == 0
        assert group.other.parts.memory.used_bytes == turn.weight_bytes
        assert group.one.parts.slots.taken == 1
        assert group.one.parts.memory.used_bytes > turn.weight_bytes


async def test_when_the_leader_stops_another_process_takes_over_at_once() -> None:
    async with processes() as group:
        await group.one.start_calling()
        second = group.other.start()
        await group.wait_until_one_waits()
        await group.one.parts.compactor.close()
        pivot = (await second).pivot
        assert pivot is not None and pivot.summary.startswith("By another.")
        assert group.other.calls == 1


async def test_when_the_leader_dies_one_more_call_is_made() -> None:
    """It has no time to release its lease, which runs out."""
    async with processes() as group:
        await group.one.start_calling()
        second = group.other.start()
        await group.wait_until_one_waits()
        group.one.store.cut()
        group.server.end_leases()
        assert (await second).pivot is not None
        assert group.other.calls == 1


async def test_a_leader_that_was_replaced_uses_the_pivot_of_the_other_one() -> None:
    """It was paused for longer than its lease, and then its summary arrived."""
    async with processes() as group:
        first = await group.one.start_calling()
        group.server.end_leases()
        pivot = (await group.other.start()).pivot
        assert pivot is not None
        group.one.parts.model.gate.set()
        assert (await first).pivot == pivot
        assert group.one.find() == pivot
        assert (group.one.calls, group.other.calls) == (1, 1)


async def test_a_leader_that_learns_of_its_replacement_stops_calling_and_waits() -> None:
    async with processes(times=_EAGER) as group:
        first = await group.one.start_calling()
        group.server.take_over()
        await group.wait_until_one_waits()
        assert group.one.parts.slots.taken == 0
        pivot = make_pivot(RECEIVED.conversation, 9, summary="By the third.")
        await group.other.parts.state.pivots.save(pivot)
        group.server.end_leases()
        assert (await first).pivot == pivot
        assert group.one.calls == 1


async def test_a_process_that_was_replaced_twice_makes_no_more_calls() -> None:
    async with processes(times=_EAGER) as group:
        first = await group.one.start_calling()
        group.server.take_over()
        await group.wait_until_one_waits()
        group.server.end_leases()
        await wait_until(lambda: group.one.calls == 2)
        group.server.take_over()
        assert (await first).failure == "lease lost"
        assert group.one.calls == 2


async def test_a_leader_that_was_paused_and_not_replaced_goes_on() -> None:
    async with processes(times=_EAGER) as group:
        first = await group.one.start_calling()
        before = group.server.claims
        group.server.end_leases()
        await wait_until(lambda: group.server.claims > before)
        group.one.parts.model.gate.set()
        pivot = (await first).pivot
        assert pivot is not None and group.one.calls == 1
        assert (await group.other.start()).pivot == pivot


async def test_a_summary_that_failed_is_not_tried_again_by_those_who_waited() -> None:
    async with processes(refuse(403, "no")) as group:
        first = await group.one.start_calling()
        second = group.other.start()
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await first).failure == (await second).failure == "status 403"
        assert group.other.calls == 0
        # A later request does try.
        assert (await group.other.start()).failure == "status 403"
        assert group.other.calls == 1


async def test_a_pause_of_one_process_does_not_hold_back_another() -> None:
    async with processes(refuse(403, "no")) as group:
        for _ in range(3):
            await group.one.start()
        assert (await group.one.start()).failure == "paused"
        assert (await group.other.start()).failure == "status 403"
        assert (group.one.calls, group.other.calls) == (3, 1)


async def test_what_a_person_asks_for_is_made_after_the_compaction_of_another_process() -> None:
    """That one does not know the instructions."""
    async with processes() as group:
        first = await group.one.start_calling()
        second = group.other.start(request=_MANUAL)
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await first).pivot is not None and (await second).pivot is not None
        (call,) = group.other.parts.model.calls
        assert "Keep names." in call["messages"][-1]["content"]


async def test_a_pivot_that_the_request_cannot_use_does_not_take_the_place_of_its_own() -> None:
    """It covers the open group, which the model has not answered yet."""
    async with processes() as group:
        received = RECEIVED.conversation
        await group.one.parts.state.pivots.save(make_pivot(received, len(received.messages)))
        pivot = (await group.other.start()).pivot
        assert pivot is not None and pivot.covers == 9


async def test_a_digest_that_a_client_got_meanwhile_is_replaced_by_the_summary() -> None:
    digest = make_pivot(RECEIVED.conversation, 9, is_digest=True)
    async with processes() as group:
        await group.one.parts.state.pivots.save_new(digest)
        pivot = (await group.other.start()).pivot
        assert pivot is not None and not pivot.is_digest and pivot.key == digest.key
        assert group.other.calls == 1


async def test_without_the_store_each_process_goes_on_alone_and_keeps_its_pivot() -> None:
    async with processes() as group:
        for process in (group.one, group.other):
            process.store.cut()
        results = [await group.one.start(), await group.other.start()]
        assert [process.calls for process in (group.one, group.other)] == [1, 1]
        assert [result.pivot for result in results] == [group.one.find(), group.other.find()]
        assert None not in results
        await group.one.store.mend()
        await group.other.store.mend()
        third = group.server.connect()
        await third.open()
        async with compaction_parts(store=third) as parts:
            stored = await parts.state.pivots.load("t", RECEIVED.conversation.chain[9].hex())
            assert stored == results[0].pivot


async def test_a_digest_by_policy_needs_no_lease() -> None:
    async with processes() as group:
        turn = turn_of(RECEIVED, DIGESTING)
        results = [
            await process.parts.compactor.start(turn, make_situation(RECEIVED), make_cut(9), AWAITED)
            for process in (group.one, group.other)
        ]
        assert results[0].pivot == results[1].pivot is not None
        assert group.server.claims == 0


async def test_a_request_knows_that_another_process_is_preparing_its_pivot() -> None:
    turn = turn_of(RECEIVED)
    async with processes() as group:
        await group.one.start_calling()
        await wait_until(lambda: group.other.parts.compactor.is_preparing(turn))
        # Not for a request that ends before the cut, nor for one that has a later pivot already.
        assert not group.other.parts.compactor.is_preparing(turn_of(receive(3)))
        later = head_of(RECEIVED, covers=11)
        assert not group.other.parts.compactor.is_preparing(turn_of(RECEIVED, head=later))
        group.one.parts.model.gate.set()
        await wait_until(lambda: not group.other.parts.compactor.is_preparing(turn))


async def test_a_compaction_that_was_interrupted_is_made_although_the_lease_of_the_dead_process_is_held() -> (
    None
):
    async with processes() as group:
        await group.one.start_calling()
        resumed = group.other.start(request=replace(_BACKGROUND, is_resumed=True))
        await group.wait_until_one_waits()
        group.one.store.cut()
        group.server.end_leases()
        assert (await resumed).pivot is not None
        assert group.other.calls == 1
