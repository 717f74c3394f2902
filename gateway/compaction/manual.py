"""Compactions that a person asks for, by a command in the conversation or at the admin port.

They ignore the thresholds and apply from the conversation's next request on.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from gateway.compaction.compactor import Compactor, make_marker, save_marker
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import (
    Compacted,
    Failed,
    ManualOutcome,
    NothingToCompact,
    choose_manual_cut,
    choose_remaining_cut,
    measure_compaction,
)
from gateway.core.compaction.request import CompactionRequest
from gateway.core.compaction.situation import Situation
from gateway.core.history.head import Head
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.store import StoreError


@dataclass(frozen=True, slots=True)
class _ManualRun:
    """A manual compaction in progress. key: the chain of the request that it was asked for at."""

    key: str
    task: "asyncio.Task[ManualOutcome]"


class ManualCompaction:
    def __init__(self, state: State, planner: Planner, compactor: Compactor, reporter: Reporter) -> None:
        self._state = state
        self._planner = planner
        self._compactor = compactor
        self._reporter = reporter
        # Each conversation has at most one.
        self._running: dict[str, _ManualRun] = {}

    def compact(self, turn: Turn, instructions: str) -> "asyncio.Task[ManualOutcome] | None":
        """None if another manual compaction of this conversation is in progress.

        A command that is sent again gets the task of the first one.
        """
        key = turn.received.conversation.key.hex()
        running = self._running.get(turn.conversation_id)
        if running is not None:
            return running.task if turn.command is not None and running.key == key else None
        work = self._compact_conversation if turn.command is None else self._run_command
        task = self._compactor.spawn(work(turn, instructions), self._compactor.hold(turn))
        self._running[turn.conversation_id] = _ManualRun(key, task)
        task.add_done_callback(lambda _: self._running.pop(turn.conversation_id, None))
        return task

    def schedule(self, head: Head, instructions: str) -> None:
        """Has the conversation's next request start the compaction; for a body that is not in memory."""
        self._state.tasks.leave_marker(make_marker(head.owner, head.key, head.length, instructions))

    def resume(self, turn: Turn) -> None:
        """Starts what a marker asks for: a scheduled compaction, or one that a stop interrupted."""
        marker = self._state.tasks.take_marker(turn.head.key) if turn.head is not None else None
        if marker is None:
            return
        if marker.auto:
            self._compactor.resume(turn)
        else:
            self.compact(turn, marker.instructions)

    async def _compact_conversation(self, turn: Turn, instructions: str) -> ManualOutcome:
        """If the gateway stops meanwhile, the marker restarts this at the conversation's next request."""
        head = self._state.heads.find(turn.received.conversation, turn.scope)
        marker = save_marker(self._state, turn, instructions)
        outcome = await self._compact_in_steps(msgspec.structs.replace(turn, head=head), instructions, head)
        self._state.tasks.drop_marker(marker.key)
        return outcome

    async def _run_command(self, turn: Turn, instructions: str) -> ManualOutcome:
        """Runs a command once: if it is sent again with nothing new before it, its outcome is loaded.

        It needs no marker, because a client that still wants the response sends the command again.
        """
        key = turn.received.conversation.key.hex()
        done = await self._state.tasks.load_command(turn.owner, key)
        if done is not None:
            return done
        outcome = await self._compact_in_steps(turn, instructions, _make_place(turn))
        if isinstance(outcome, Compacted):
            # The head is written first, so that an outcome in the store always has its pivot active. Both are
            # durable before the person is told.
            self._state.heads.flush()
            with suppress(StoreError):
                await self._state.tasks.save_command(turn.owner, key, outcome)
        return outcome

    async def _compact_in_steps(self, turn: Turn, instructions: str, place: Head | None) -> ManualOutcome:
        """One compaction, and more for what is left if one call cannot hold it, as many as the policy allows.

        place: the head that gets the new pivot.
        """
        request = CompactionRequest(
            reason="manual",
            calls=turn.policy.summary.max_calls,
            trigger="manual",
            instructions=instructions,
        )
        situation = await self._gather_when_free(turn)
        whole = await self._planner.choose(choose_manual_cut, situation)
        if whole is None:
            self._reporter.note_nothing_to_compact(turn, request)
            return NothingToCompact()
        result = first = await self._compactor.start(turn, situation, whole, request)
        newest = result.pivot
        while result.pivot is not None:
            newest, request = result.pivot, replace(request, calls=request.calls - result.calls)
            situation = await self._gather_when_free(turn)
            cut = choose_remaining_cut(situation, newest, whole.covers)
            if cut is None or request.calls <= 0:
                break
            result = await self._compactor.start(turn, situation, cut, request)
        if newest is None:
            return Failed(result.failure)
        self._state.pivots.activate_manual(turn.conversation_id, newest, place)
        return measure_compaction(whole, newest, first.pre_tokens)

    async def _gather_when_free(self, turn: Turn) -> Situation:
        """The situation once no other compaction of this chain is in progress.

        Otherwise `start` would return that one, which does not know the person's instructions.
        """
        while True:
            situation = await self._planner.gather(turn, may_compact=True)
            running = self._compactor.find_running(turn)
            if running is None:
                return situation
            await asyncio.wait((running,))


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
    )
