"""Carries out what plans decide, and is the only writer of state.

Its tasks belong to the app: a client that hangs up neither stops nor loses a summary. One summary per chain
at a time.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gateway.compaction.job import CompactionJob
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.manual import (
    Failed,
    Folded,
    ManualOutcome,
    NothingToFold,
    choose_manual_cut,
    choose_remaining_cut,
    measure_fold,
)
from gateway.core.compaction.plan import Plan, Situation, decide_after
from gateway.core.compaction.request import Compaction, CompactionRequest
from gateway.core.history.conversation import Conversation, find_open_group
from gateway.core.history.head import Head, smooth_growth
from gateway.core.history.pivot import is_on_chain
from gateway.core.sizing.usage import Usage
from gateway.planning.learning import Calibrator
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state.records import Marker
from gateway.state.state import State

log = logging.getLogger("gateway.compactor")


@dataclass(frozen=True, slots=True)
class _Running:
    tenant: str
    key: str
    covers: int
    task: "asyncio.Task[Compaction]"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a person asked for. key: the chain of the request that it was asked at."""

    key: str
    task: "asyncio.Task[ManualOutcome]"


class Compactor:
    def __init__(
        self,
        state: State,
        planner: Planner,
        calibrator: Calibrator,
        folding: CompactionJob,
        reporter: Reporter,
    ) -> None:
        self._state = state
        self._planner = planner
        self._calibrator = calibrator
        self._folding = folding
        self._reporter = reporter
        self._digesting: dict[str, asyncio.Task[bool]] = {}
        self._running: dict[str, _Running] = {}
        # Conversations whose compaction a person asked for.
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Unfinished work is dropped; its markers stay and bring it back at the chain's next request."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the proxy hands over, in plain calls.

    def observe(self, turn: Turn, plan: Plan, usage: Usage | None) -> Head:
        """After an answer that upstream gave: records the head, and looks whether the window is filling."""
        head, lines = _make_head(turn, plan, usage), turn.thresholds
        in_sight = turn.is_near(head.total_tokens)
        # With nothing in force and the lines out of sight, nothing would be lost with it.
        matters = in_sight or head.pivot is not None or bool(head.batches)
        is_worth_saving = matters and self._state.heads.is_worth_saving(
            head, lines.soft if lines is not None else 0
        )
        if is_worth_saving:
            self._state.heads.save(head)
        else:
            self._state.heads.hold(head)
        if plan.new_batch is not None:
            self._state.pivots.save_batch(plan.new_batch)
            self._reporter.note_pruning(turn, plan.new_batch, plan.sent)
        if is_worth_saving:
            self._state.pivots.refresh(plan.pivot, plan.batches)
        if usage is not None and (
            self._calibrator.wants_look(turn, plan, usage, in_sight=in_sight)
            or self._planner.is_near(turn, head.total_tokens)
        ):
            self._spawn(self._learn(turn, plan, usage))
        return head

    def start(self, turn: Turn, cut: Cut, order: CompactionRequest) -> "asyncio.Task[Compaction]":
        """The compaction of this cut, or the one that runs on the chain already."""
        conversation = turn.received.conversation
        running = self._find_on_chain(turn.owner, conversation)
        if running is not None:
            return running.task
        key = conversation.chain[cut.covers].hex()
        task = self._spawn(self._folding.summarize(turn, cut, order))
        self._running[key] = _Running(turn.owner, key, cut.covers, task)
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return task

    def start_digest(self, turn: Turn, cut: Cut) -> "asyncio.Task[bool]":
        """A digest in place of the summary that is not to be had. True: a pivot is ready."""
        key = turn.received.conversation.chain[cut.covers].hex()
        task = self._digesting.get(key)
        if task is None:
            task = self._digesting[key] = self._spawn(self._folding.digest(turn, cut))
            task.add_done_callback(lambda _: self._digesting.pop(key, None))
        return task

    def find_running(self, owner: str, conversation: Conversation) -> "asyncio.Task[Compaction] | None":
        """A compaction under way whose pivot this conversation could use."""
        running = self._find_on_chain(owner, conversation)
        if running is None or running.covers > find_open_group(conversation):
            return None
        return running.task

    def _find_on_chain(self, owner: str, conversation: Conversation) -> _Running | None:
        """One summary per chain at a time: whatever it will cover."""
        for running in self._running.values():
            if running.tenant == owner and is_on_chain(conversation, running.key, running.covers):
                return running
        return None

    def resume(self, turn: Turn) -> None:
        """A marker that a crash left behind, or that a person left, runs at its chain's next request."""
        head = turn.head
        marker = self._state.tasks.take_marker(head.key) if head is not None else None
        if head is None or marker is None:
            return
        if not marker.auto:
            self.compact(turn, marker.instructions)
        elif head.prompt_tokens:
            self._spawn(self._consider(turn, None, head.total_tokens))

    # What a person asks for.

    def compact(self, turn: Turn, instructions: str) -> "asyncio.Task[ManualOutcome] | None":
        """Whatever the lines say; applies from the next request on. None: another one is under way already.

        The same command once more is the one that is under way.
        """
        key = turn.received.conversation.key.hex()
        asked = self._asked.get(turn.conversation_id)
        if asked is not None:
            return asked.task if turn.command is not None and asked.key == key else None
        work = self._compact if turn.command is None else self._obey
        task = self._spawn(work(turn, instructions))
        self._asked[turn.conversation_id] = _Asked(key, task)
        task.add_done_callback(lambda _: self._asked.pop(turn.conversation_id, None))
        return task

    def postpone(self, head: Head, instructions: str) -> None:
        """The same, begun at the conversation's next request."""
        self._state.tasks.leave_marker(_make_marker(head.owner, head.key, head.length, instructions))

    async def _compact(self, turn: Turn, instructions: str) -> ManualOutcome:
        """Should we be stopped, the marker brings the work back at the conversation's next request."""
        head = self._state.heads.find(turn.received.conversation, turn.scope)
        marker = self._queue(turn, instructions)
        outcome = await self._fold_by_hand(msgspec.structs.replace(turn, head=head), instructions, head)
        self._state.tasks.drop_marker(marker.key)
        return outcome

    async def _obey(self, turn: Turn, instructions: str) -> ManualOutcome:
        """A command of the conversation itself, once: the same one again with nothing new before it is done
        already. It leaves no marker: who waits for the answer asks again.
        """
        key = turn.received.conversation.key.hex()
        done = await self._state.tasks.load_command(turn.owner, key)
        if done is not None:
            return done
        outcome = await self._fold_by_hand(turn, instructions, _make_place(turn))
        if isinstance(outcome, Folded):
            # In this order: who finds that it is done must find it in force, too.
            self._state.heads.flush()
            self._state.tasks.save_command(turn.owner, key, outcome)
        return outcome

    async def _fold_by_hand(self, turn: Turn, instructions: str, place: Head | None) -> ManualOutcome:
        """In as many calls as the policy allows. place: where what was made is put in force."""
        calls = turn.policy.summary.max_calls
        order = CompactionRequest(reason="manual", calls=calls, trigger="manual", instructions=instructions)
        whole = choose_manual_cut(await self._gather_alone(turn))
        if whole is None:
            self._reporter.note_nothing_to_fold(turn, order)
            return NothingToFold()
        made = first = await self.start(turn, whole, order)
        pivot = made.pivot
        while made.pivot is not None:
            pivot, order = made.pivot, replace(order, calls=order.calls - made.calls)
            cut = choose_remaining_cut(await self._gather_alone(turn), pivot, whole.covers)
            if cut is None or order.calls <= 0:
                break
            made = await self.start(turn, cut, order)
        if pivot is None:
            return Failed(made.failure)
        self._state.pivots.put_in_force(turn.conversation_id, pivot, place)
        return measure_fold(whole, pivot, first.pre_tokens)

    async def _gather_alone(self, turn: Turn) -> Situation:
        """Once no compaction of this chain runs any more: whose summary it is decides what stands in it."""
        while True:
            situation = await self._planner.gather(turn, may_compact=True)
            running = self._find_on_chain(turn.owner, turn.received.conversation)
            if running is None:
                return situation
            await asyncio.wait((running.task,))

    # What happens in the background.

    async def _learn(self, turn: Turn, plan: Plan, usage: Usage) -> None:
        """Calibrates by this answer: near the lines, and as long as little is known. Then looks ahead."""
        cut_short = await self._calibrator.learn(turn, plan, usage)
        if cut_short is not None:
            self._state.heads.save(_make_head(turn, plan, None))
            turn = cut_short
        if self._planner.is_near(turn, usage.total):
            await self._consider(turn, plan, usage.total)

    async def _consider(self, turn: Turn, plan: Plan | None, total_tokens: int) -> None:
        """Schedule -> execute: the marker is queued before the work begins (document 000 §4)."""
        situation = await self._planner.gather(turn, may_compact=self._folding.may_ask(turn))
        if plan is None:
            plan = Plan(
                pivot=situation.sticky,
                batches=tuple(situation.batches),
                new_batch=None,
                received=total_tokens,
                sent=total_tokens,
                output=None,
            )
        situation = replace(situation, batches=plan.batches)
        cut = decide_after(situation, plan, total_tokens)
        if cut is None or self._find_on_chain(turn.owner, turn.received.conversation) is not None:
            return
        marker = self._queue(turn, None)
        # A cancelled task (we are shutting down) leaves its marker behind: it brings the work back.
        order = CompactionRequest(reason="overflow", calls=turn.policy.summary.max_calls)
        await asyncio.wait((self.start(turn, cut, order),))
        self._state.tasks.drop_marker(marker.key)

    def _queue(self, turn: Turn, instructions: str | None) -> Marker:
        """With the head that it is found by after a crash: an earlier one would not lead to it."""
        conversation = turn.received.conversation
        head = self._state.heads.find(conversation, turn.scope)
        if head is not None:
            self._state.heads.save(head)
        marker = _make_marker(turn.owner, conversation.key.hex(), len(conversation.messages), instructions)
        self._state.tasks.save_marker(marker)
        return marker

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "background task failed: %s", type(task.exception()).__name__, exc_info=task.exception()
            )


def _make_marker(owner: str, key: str, length: int, instructions: str | None) -> Marker:
    """instructions: of a person; None where nobody asked."""
    return Marker(
        owner=owner,
        key=key,
        length=length,
        auto=instructions is None,
        reason="overflow" if instructions is None else "manual",
        created_seconds=time.time(),
        instructions=instructions or "",
    )


def _make_head(turn: Turn, plan: Plan, usage: Usage | None) -> Head:
    conversation = turn.received.conversation
    total = usage.total if usage is not None else 0
    return Head(
        owner=turn.owner,
        key=conversation.key.hex(),
        length=len(conversation.messages),
        scope=turn.scope,
        tools=turn.received.body.envelope.tools.hex(),
        prompt_tokens=usage.prompt_tokens if usage is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        growth_tokens=smooth_growth(turn.own_head, total) if usage is not None else turn.growth,
        pivot=plan.pivot.key if plan.pivot else None,
        batches=tuple([batch.key for batch in plan.batches]),
        conversation=turn.conversation_id,
        parent=turn.parent_id,
    )


def _make_place(turn: Turn) -> Head:
    """The end of what a command was said about. The client may send the command and its answer back or
    leave them out: this lies on the chain of either.
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
