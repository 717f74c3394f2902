"""Several processes that share a store make one summary, and a leader that is lost costs one more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from msgspec import structs

from gateway.compaction.flow import EDITED, ELSEWHERE, Job
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import Compacted, ManualOutcome
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.history.pivot import Pivot
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.state.single import LeaseTimes
from tests.builders.chat import read
from tests.builders.compaction import (
    SUMMARIZING,
    CompactionParts,
    ModelReply,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    refuse,
    say,
    turn_of,
)
from tests.builders.state import look_for_marker, make_store
from tests.decisions.builders import make_pivot, render, talk
from tests.decisions.parts import head_of
from tests.toy.running import wait_until
from tests.toy.shared_store import SharedStore, ToyServer

RECEIVED = receive(14)
AWAITED = CompactionRequest(reason=CompactionReason.HARD_THRESHOLD, is_awaited=True, calls=8)

Task = asyncio.Task[CompactionResult]


@dataclass
class Process:
    store: SharedStore
    parts: CompactionParts

    def start(
        self, received: Received = RECEIVED, request: CompactionRequest = AWAITED, covers: int = 9
    ) -> Task:
        return self.parts.compactions.start(
            Job(turn_of(received), make_situation(received), make_cut(covers), request)
        )

    async def start_calling(self, *, covers: int = 9, request: CompactionRequest = AWAITED) -> Task:
        """Until the model thinks about the summary."""
        self.parts.model.gate.clear()
        task = self.start(covers=covers, request=request)
        await wait_until(lambda: self.calls > 0)
        return task

    @property
    def calls(self) -> int:
        return len(self.parts.model.requests)

    def find(self, covers: int = 9) -> Pivot | None:
        return self.parts.state.pivots.find(RECEIVED.conversation.chain[covers].hex())


@dataclass
class Group:
    server: ToyServer
    one: Process
    other: Process

    async def wait_until_one_waits(self) -> None:
        await wait_until(lambda: self.server.count_waiting() == 1)


@asynccontextmanager
async def processes(
    *replies: ModelReply | Exception, times: LeaseTimes | None = None
) -> AsyncIterator[Group]:
    server = ToyServer()
    async with AsyncExitStack() as exits:
        opened = []
        for summary in ("By one.", "By another."):
            store = server.connect()
            await store.open()
            parts = compaction_parts(*(replies or (say(summary),)), store=store, lease_times=times)
            opened.append(Process(store, await exits.enter_async_context(parts)))
        yield Group(server, *opened)


_LONGER = receive(16)
_SOFT = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8)


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


async def test_a_longer_request_of_the_conversation_waits_although_its_cut_is_another() -> None:
    async with processes() as group:
        first = await group.one.start_calling(covers=9)
        second = group.other.start(_LONGER, covers=13)
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await second).pivot == (await first).pivot is not None
        assert group.other.calls == 0


async def test_cuts_of_one_branch_that_are_hundreds_of_messages_apart_share_a_summary() -> None:
    """After a cold start one process summarizes the first chunk of what another one knows more of."""
    short, long = receive(8, 400), receive(600, 400)
    async with processes() as group:
        group.one.parts.model.gate.clear()
        first = group.one.start(short)
        await wait_until(lambda: group.one.calls > 0)
        second = group.other.start(long, covers=1_101)
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await second).pivot == (await first).pivot is not None
        assert group.other.calls == 0


async def test_in_the_background_nothing_waits_for_another_process() -> None:
    async with processes() as group:
        first = await group.one.start_calling()
        async with asyncio.timeout(10):
            assert await group.other.start(request=_SOFT) == CompactionResult(ELSEWHERE, 0)
        assert (group.other.calls, group.other.parts.memory.used_bytes) == (0, 0)
        # Once a client waits for it, it waits too.
        second = group.other.start(request=_SOFT)
        assert group.other.start() is second
        await group.wait_until_one_waits()
        group.one.parts.model.gate.set()
        assert (await second).pivot == (await first).pivot is not None
        assert group.other.calls == 0


async def test_when_the_leader_stops_another_process_takes_over_at_once() -> None:
    async with processes() as group:
        await group.one.start_calling()
        second = group.other.start()
        await group.wait_until_one_waits()
        await group.one.parts.compactions.running.tasks.close()
        pivot = (await second).pivot
        assert pivot is not None and pivot.summary.startswith("By another.")
        slots = group.other.parts.compactions.running.slots
        assert (group.other.calls, slots.taken, slots.waiting) == (1, 0, 0)


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


_MANUAL = CompactionRequest(
    reason=CompactionReason.MANUAL, is_awaited=True, calls=8, instructions="Keep names."
)


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


# By hand


_RECEIVED = receive(8)
_ROOMY = Limits(context=200_000)


def asked(policy: Policy = SUMMARIZING) -> Turn:
    """A turn whose request was answered; far below its thresholds."""
    return turn_of(_RECEIVED, policy, _ROOMY)


def command(policy: Policy = SUMMARIZING) -> Turn:
    """A turn whose last message is a command."""
    said = [*talk(8), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "/compact"}]
    return turn_of(read(render(said)), policy, _ROOMY, command="")


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


async def test_a_stop_leaves_a_marker_for_a_conversation_and_none_for_a_command() -> None:
    """A client that still wants the response to its command sends it again."""
    for turn, has_marker in ((asked(), True), (command(), False)):
        store = await make_store()
        async with compaction_parts(store=store) as parts:
            parts.manual.compact(turn, "")
            while parts.compactions.find_running(turn) is None:
                await asyncio.sleep(0)
            await parts.compactions.running.tasks.close()
        async with compaction_parts(store=store) as parts:
            conversation = turn.received.conversation
            await look_for_marker(parts.state, conversation)
            marker = await parts.state.tasks.take("t", conversation.key.hex())
            assert (marker is not None) is has_marker


async def settle(process: Process) -> None:
    await wait_until(lambda: not process.parts.compactions.running.tasks)


async def find_marker(process: Process) -> Turn:
    """A turn at whose head this process finds the marker."""
    await look_for_marker(process.parts.state, _RECEIVED.conversation)
    return structs.replace(turn_of(receive(9), limits=_ROOMY), head=head_of(_RECEIVED))


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


# Edits


_TURN = turn_of(RECEIVED)
_SITUATION = make_situation(RECEIVED)


async def summarize(parts: CompactionParts, covers: int = 5, base: Pivot | None = None) -> Pivot:
    result = await parts.compactions.make(Job(_TURN, _SITUATION, make_cut(covers, base), _SOFT))
    assert result.pivot is not None
    return result.pivot


async def edit(parts: CompactionParts, pivot: Pivot, text: str, based_on: int | None = None) -> Pivot:
    edited = await parts.editor.edit(_TURN, pivot.key, text, based_on)
    assert isinstance(edited, Pivot)
    return edited


async def test_of_two_processes_that_edit_one_version_one_is_refused() -> None:
    async with processes() as group:
        pivot = await summarize(group.one.parts)
        outcomes = await asyncio.gather(
            group.one.parts.editor.edit(_TURN, pivot.key, "By one.", 1),
            group.other.parts.editor.edit(_TURN, pivot.key, "By the other.", 1),
        )
        assert sorted(type(each).__name__ for each in outcomes) == ["EditRefused", "Pivot"]


async def test_a_compaction_that_began_on_the_old_text_is_thrown_away() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        parts.model.gate.clear()
        calls = len(parts.model.requests)
        task = asyncio.create_task(parts.compactions.make(Job(_TURN, _SITUATION, make_cut(9, pivot), _SOFT)))
        await wait_until(lambda: len(parts.model.requests) > calls)
        edited = await edit(parts, pivot, "A person knows better.")
        parts.model.gate.set()
        assert (await task).outcome is EDITED
        assert parts.state.pivots.list_on_chain(RECEIVED.conversation) == [edited]
        newer = await summarize(parts, 9, edited)
        assert parts.state.pivots.list_on_chain(RECEIVED.conversation) == [edited, newer]


async def test_a_summary_does_not_overwrite_a_digest_that_a_person_has_edited() -> None:
    digest = make_pivot(RECEIVED.conversation, 9, is_digest=True)
    async with processes() as group:
        await group.one.parts.state.pivots.save_new(digest)
        first = await group.one.start_calling()
        edited = await edit(group.one.parts, digest, "A person knows better.")
        group.one.parts.model.gate.set()
        assert (await first).outcome is EDITED
        assert group.one.find() == edited
