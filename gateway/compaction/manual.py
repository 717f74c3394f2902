"""Compactions that a person asks for, by a command in the conversation or at the admin port.

They ignore the thresholds and apply from the conversation's next request on. Of several processes that share
the store, one carries out what was asked for: a lease says that it is being done.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from gateway.compaction.flow import Compactions, Job, RunningTask
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import (
    Compacted,
    Failed,
    InProgress,
    ManualOutcome,
    NothingToCompact,
    choose_manual_cut,
    choose_remaining_cut,
    measure_compaction,
)
from gateway.core.compaction.request import CompactionReason, CompactionRequest
from gateway.core.compaction.situation import Situation
from gateway.core.economy import pass_on_ledger
from gateway.core.history.head import Head
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.state.kinds import Marker
from gateway.state.pivots import with_pivot
from gateway.state.single import Work, WorkFailed
from gateway.store.interface import StoreError

_LEASE_PREFIX: Final = "manual-"


class ManualCompaction:
    def __init__(self, state: State, planner: Planner, compactions: Compactions, reporter: Reporter) -> None:
        self._state = state
        self._planner = planner
        self._compactions = compactions
        self._reporter = reporter
        self._running = compactions.running

    def compact(self, turn: Turn, instructions: str) -> "asyncio.Task[ManualOutcome] | None":
        """None if another manual compaction of this conversation is in progress.

        A command that is sent again gets the task of the first one.
        """
        running = self._running.find_manual(turn.conversation_id)
        if running is not None:
            return running.task if turn.command is not None and running.key == _name(turn) else None
        work = self._compact_conversation if turn.command is None else self._run_command
        return self._start(turn, work(turn, instructions))

    def schedule(self, head: Head, instructions: str) -> None:
        """Has the conversation's next request start the compaction; for a body that is not in memory."""
        marker = Marker(
            owner=head.owner,
            key=head.key,
            length=head.length,
            auto=False,
            reason=CompactionReason.MANUAL,
            created_seconds=time.time(),
            instructions=instructions,
            conversation=head.conversation,
        )
        # Another process finds the marker by its head.
        self._state.heads.save_held(head.key)
        self._state.tasks.leave_marker(marker)

    def resume(self, turn: Turn) -> None:
        """Starts what a marker asks for: a scheduled compaction, or one that a stop interrupted.

        The process that gets the marker out of the store carries it out.
        """
        if turn.head is None:
            return
        marker = self._state.tasks.pop_waiting(turn.owner, turn.received.conversation)
        if marker is None:
            return
        if marker.auto:
            self._running.spawn(self._resume_automatic(turn, marker), self._running.hold(turn))
        elif self._running.find_manual(turn.conversation_id) is None:
            self._start(turn, self._run_marker(turn, marker))

    def _start(self, turn: Turn, work: Coroutine[Any, Any, ManualOutcome]) -> "asyncio.Task[ManualOutcome]":
        task = self._running.spawn(work, self._running.hold(turn))
        self._running.add(RunningTask("manual", turn.owner, turn.conversation_id, _name(turn), task))
        return task

    async def _resume_automatic(self, turn: Turn, marker: Marker) -> None:
        if await self._take(marker) is not None:
            self._compactions.resume(turn, marker.reason)

    async def _take(self, marker: Marker) -> Marker | None:
        """None if another process has it, or if the store does not say: then the next request tries again."""
        try:
            return await self._state.tasks.take(marker.owner, marker.key)
        except StoreError:
            self._state.tasks.wait(marker)
            return None

    async def _run_marker(self, turn: Turn, marker: Marker) -> ManualOutcome:
        """A process that is at it holds the lease, and deletes the marker when it is done."""
        name = _LEASE_PREFIX + marker.key
        taken = await self._state.single.run(
            turn.owner, name, lambda _: self._take(marker), also=None, waits=lambda: True
        )
        if taken is None:
            return NothingToCompact()
        # Its lease, of the same name for the same chain, may not be released yet.
        return await self._compact_conversation(turn, taken.instructions, waits=True)

    async def _compact_conversation(
        self, turn: Turn, instructions: str, *, waits: bool = False
    ) -> ManualOutcome:
        """If the gateway stops meanwhile, the marker restarts this at the conversation's next request.

        waits: for a process that is at it; otherwise it is left to that one.
        """

        async def make(_: Work) -> ManualOutcome:
            head = self._state.heads.find(turn.received.conversation, turn.scope)
            marker = self._compactions.save_marker(turn, CompactionReason.MANUAL, instructions)
            outcome = await self._compact_in_steps(
                msgspec.structs.replace(turn, head=head), instructions, head
            )
            try:
                await self._state.tasks.take(marker.owner, marker.key)
            except StoreError:
                # Not only late: what was taken too late would be put back.
                self._state.tasks.drop_marker(marker.owner, marker.key)
            return outcome

        name = _LEASE_PREFIX + _name(turn)
        outcome = await self._state.single.run(turn.owner, name, make, also=None, waits=lambda: waits)
        return outcome if outcome is not None else InProgress()

    async def _run_command(self, turn: Turn, instructions: str) -> ManualOutcome:
        """Runs a command once: if it is sent again with nothing new before it, its outcome is loaded.

        It needs no marker, because a client that still wants the response sends the command again.
        """
        tasks, key = self._state.tasks, _name(turn)

        async def find_done() -> ManualOutcome | None:
            # While the store is away a person need not wait for it.
            with suppress(StoreError):
                return await tasks.load_command(turn.owner, key)
            return None

        async def make(work: Work) -> ManualOutcome:
            outcome = await self._compact_in_steps(turn, instructions, _make_place(turn))
            if isinstance(outcome, Failed):
                await work.note_failure(outcome.reason)
            elif isinstance(outcome, Compacted):
                # The head was queued before, so an outcome in the store always has its pivot active. Both are
                # durable before the person is told.
                with suppress(StoreError):
                    await tasks.save_command(turn.owner, key, outcome, turn.conversation_id)
            return outcome

        try:
            outcome = await self._state.single.run(
                turn.owner, _LEASE_PREFIX + key, make, also=find_done, waits=lambda: True
            )
        except WorkFailed as failed:
            return Failed(failed.reason)
        return outcome if outcome is not None else InProgress()

    async def _compact_in_steps(self, turn: Turn, instructions: str, place: Head | None) -> ManualOutcome:
        """One compaction, and more for what is left if one call cannot hold it, as many as the policy allows.

        place: the head that gets the new pivot.
        """
        request = CompactionRequest(
            reason=CompactionReason.MANUAL,
            is_awaited=True,
            calls=turn.policy.summary.max_calls,
            instructions=instructions,
        )
        situation = first = await self._gather_when_free(turn)
        whole = await self._planner.choose(choose_manual_cut, situation)
        if whole is None:
            self._reporter.note_nothing_to_compact(turn, request)
            return NothingToCompact()
        result = await self._compactions.start(Job(turn, situation, whole, request))
        newest = result.pivot
        while result.pivot is not None:
            newest, request = result.pivot, replace(request, calls=request.calls - result.calls)
            situation = await self._gather_when_free(turn)
            cut = choose_remaining_cut(situation, newest, whole.covers)
            if cut is None or request.calls <= 0:
                break
            result = await self._compactions.start(Job(turn, situation, cut, request))
        if newest is None:
            return Failed(result.failure)
        self._state.pivots.activate(newest)
        if place is not None:
            # For other processes, and for after a restart.
            self._state.heads.save(with_pivot(place, newest))
        return measure_compaction(first, whole, newest)

    async def _gather_when_free(self, turn: Turn) -> Situation:
        """The situation once no other compaction of this chain is in progress.

        Otherwise `start` would return that one, which does not know the person's instructions.
        """
        while True:
            situation = await self._planner.gather(turn, may_compact=True)
            running = self._compactions.find_running(turn)
            if running is None:
                return situation
            await asyncio.wait((running,))


def _name(turn: Turn) -> str:
    """The chain of the request. The lease of its branch has another name."""
    return turn.received.conversation.key.hex()


def _make_place(turn: Turn) -> Head:
    """A head at the message before the command.

    The client may send the command and its response back or leave them out; this head is on the chain of
    both.
    """
    conversation = turn.received.conversation
    return Head(
        owner=turn.owner,
        key=conversation.chain[-2].hex(),
        length=len(conversation.messages) - 1,
        scope=turn.scope,
        tools=turn.received.body.envelope.tools.hex(),
        prompt_tokens=0,
        output_tokens=0,
        growth_tokens=turn.growth,
        pivot=None,
        batches=turn.head.batches if turn.head is not None else (),
        conversation=turn.conversation_id,
        parent=turn.parent_id,
        ledger=pass_on_ledger(turn.head, turn.scope),
        session=turn.session,
    )
