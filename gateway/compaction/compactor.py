"""Records responses and compacts in the background.

This package writes the heads, pivots, mark batches and markers that follow from a response or a compaction.
Background tasks belong to the process: a client that disconnects neither stops nor loses a summary.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from gateway.bounds.background import Place
from gateway.bounds.memory import MemoryBudget, Share
from gateway.compaction.answered_heads import make_head, name_prefix
from gateway.compaction.job import CompactionJob
from gateway.compaction.leadership import Leadership, Wanted
from gateway.compaction.markers import save_marker
from gateway.compaction.ready_pivots import apply_early
from gateway.compaction.rent import is_compaction_due, update_ledger
from gateway.compaction.running import RunningCompaction, RunningDigest
from gateway.conversations import trimmed_histories
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.decision import decide_after, find_ready_pivot
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    find_reason,
)
from gateway.core.compaction.situation import Situation
from gateway.core.economy import pay_rent
from gateway.core.history.conversation import find_open_group
from gateway.core.history.head import Head
from gateway.core.sizing.usage import Usage
from gateway.planning.learning import Learner
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.state.kinds import Marker
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag

log = logging.getLogger("gateway.compactor")

# The turn, its messages as texts, and what a summarizer is sent.
_HELD_COPIES = 3

# A durable write takes some milliseconds. A client must not wait for a store that another process locks.
_SECURE_SECONDS: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Workplace:
    """A place among the summaries, and memory for the copies that are made of a request."""

    place: Place
    share: Share
    copies_bytes: int

    @property
    def is_awaited(self) -> bool:
        return self.place.is_awaited

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        async with self.place:
            self.share.take(self.copies_bytes)
            try:
                yield
            finally:
                self.share.shrink(self.copies_bytes)


class Compactor:
    def __init__(
        self,
        state: State,
        planner: Planner,
        learner: Learner,
        job: CompactionJob,
        reporter: Reporter,
        memory: MemoryBudget,
    ) -> None:
        """memory: of all bodies under way. Background tasks hold theirs beyond the response."""
        self._state = state
        self._planner = planner
        self._learner = learner
        self._job = job
        self._reporter = reporter
        self._memory = memory
        self._leadership = Leadership(state, job)
        self.running = job.running

    # Responses

    async def secure(self, turn: Turn, plan: Plan) -> None:
        """Before a request is sent: what is new in its prefix is in the store when this returns.

        If the process is killed right after the response, the next request goes on with the same prefix. A
        store that is stuck does not hold the request back for long.
        """
        if self._is_deleted(turn, plan):
            return
        if plan.new_recall is not None:
            self._state.recalls.hold(plan.new_recall)
        if not plan.changes_prefix or self._job.limiter.is_limited(turn):
            return
        prefix = name_prefix(plan)
        if not self._state.heads.is_durable(turn.conversation_id, *prefix):
            head = make_head(turn, prefix, plan, None)
            await asyncio.wait((self.spawn(self._save_prefix(turn, plan, head)),), timeout=_SECURE_SECONDS)

    async def _save_prefix(self, turn: Turn, plan: Plan, head: Head) -> None:
        try:
            if plan.new_batch is not None:
                batch = replace(plan.new_batch, conversation=head.conversation)
                await self._state.pivots.save_batch_durably(batch)
            await self._state.pivots.secure(plan.pivot, plan.batches)
            await self._state.recalls.secure(plan.recalls)
            if not self._is_deleted(turn, plan):
                await self._state.heads.save_durably(head)
        except StoreError:
            # The store has logged it. The head is saved again with the response, as soon as that is possible.
            return

    def record_response(self, turn: Turn, plan: Plan, usage: Usage | None) -> Head:
        """Records a complete response; prepares a compaction in the background if the window is filling.

        Nothing is recorded of a conversation that was deleted meanwhile.
        """
        is_deleted = self._is_deleted(turn, plan)
        if plan.new_recall is not None and not is_deleted:
            self._state.recalls.hold(plan.new_recall)
        head = make_head(turn, name_prefix(plan), plan, usage)
        head.ledger = ledger = update_ledger(turn, plan, usage, self._planner.clock())
        if is_deleted:
            return head
        is_due = usage is not None and self._take_due(turn, head)
        total_tokens = head.total_tokens
        needs_compaction = turn.is_unrecognized and self._planner.is_past_soft(
            turn, max(plan.received, total_tokens)
        )
        self._job.limiter.note_response(turn, needs_compaction=needs_compaction)
        is_worth_saving = self._save_head(turn, head)
        if plan.new_batch is not None:
            batch = replace(plan.new_batch, conversation=turn.conversation_id)
            self._state.pivots.save_batch(batch)
            self._reporter.note_pruning(turn, plan.new_batch, plan.sent)
        if is_worth_saving:
            self._state.pivots.refresh(plan.pivot, plan.batches)
            self._state.recalls.refresh(plan.recalls)
            self._secure_again(plan)
        if usage is not None and (
            is_due
            or self._learner.is_worth_counting(turn, plan, usage)
            or self._planner.is_past_soft(turn, total_tokens)
        ):
            has_started = self._start_learning(turn, plan, usage, is_due=is_due)
            if is_due and not has_started:
                head.ledger = ledger
        return head

    def _is_deleted(self, turn: Turn, plan: Plan) -> bool:
        """Whether its conversation, or one whose summary or marks it is sent with, was deleted since its
        history was looked up. What the request still holds of it must not be written again.
        """
        memory, tag = self._state.memory, make_tag(turn.owner)
        if memory.purges == turn.purges:
            return False
        names = {turn.conversation_id, *(batch.conversation for batch in plan.batches)}
        names.update(recall.conversation for recall in plan.recalls)
        if plan.pivot is not None:
            names.add(plan.pivot.conversation)
        return any(memory.was_purged(turn.purges, tag, name) for name in names)

    def _take_due(self, turn: Turn, head: Head) -> bool:
        """Whether old messages have cost enough for a compaction. Then the head begins to count anew: a
        compaction that fails, or is not made after all, has to become due again.
        """
        if head.ledger is None or not is_compaction_due(turn, head) or not self._may_start(turn):
            return False
        if not self._job.may_start(turn) or self._find_on_chain(turn) is not None:
            return False
        head.ledger = pay_rent(head.ledger)
        return True

    def _may_start(self, turn: Turn) -> bool:
        """Whether a compaction that no client waits for has a place. The next response decides again."""
        is_held_back = self._job.slots.is_crowded(turn.owner) or self._job.limiter.is_limited(turn)
        # A summary may be there already.
        return not (is_held_back or turn.is_unsure)

    def _secure_again(self, plan: Plan) -> None:
        """A shared store may have lost meanwhile what the request was sent with."""
        pivots, recalls = self._state.pivots, self._state.recalls
        is_secure = pivots.is_secure(plan.pivot, plan.batches) and recalls.is_secure(plan.recalls)
        if self._state.store.is_shared and not is_secure:
            self.spawn(self._save_again(plan))

    async def _save_again(self, plan: Plan) -> None:
        # The store has logged what went wrong. The next request tries again.
        with suppress(StoreError):
            await self._state.pivots.secure(plan.pivot, plan.batches)
            await self._state.recalls.secure(plan.recalls)

    def _start_learning(self, turn: Turn, plan: Plan, usage: Usage, *, is_due: bool) -> bool:
        """In the background. False while there is no memory for it: a later response teaches the same."""
        share = self._memory.open(turn.owner)
        has_room = share.try_grow(_count_held(turn))
        if has_room:
            self.spawn(self._learn(turn, plan, usage, is_due=is_due), share)
        else:
            log.debug("nothing is learned from a response: no memory left for its request")
        return has_room

    def _save_head(self, turn: Turn, head: Head) -> bool:
        """True if it is written to the store, too. Without it a conversation far below its thresholds, with
        no pivot and no batch, loses nothing. One that the limiter expects to end here is not written, either.
        """
        is_changed = head.pivot is not None or bool(head.batches) or bool(head.recalls)
        matters = is_changed or turn.is_near(head.total_tokens)
        matters = matters and not self._job.limiter.is_limited(turn)
        soft_tokens = turn.thresholds.soft if turn.thresholds is not None else 0
        is_worth_saving = matters and self._state.heads.is_worth_saving(head, soft_tokens)
        if turn.is_unsure:
            # The store may have a summary that this head does not name.
            is_worth_saving = False
            self._state.heads.hold_unsure(head)
        elif is_worth_saving:
            self._state.heads.save(head)
        elif matters:
            self._state.heads.hold_step(head)
        else:
            self._state.heads.hold(head)
        ended = trimmed_histories.record(self._state, turn)
        histories, branch = self._state.histories, turn.conversation_id
        is_kept = is_worth_saving or (matters and histories.is_behind(branch, head.length))
        if ended is not None and is_kept and is_changed:
            self.spawn(histories.save(ended, head))
        return is_worth_saving

    async def _learn(self, turn: Turn, plan: Plan, usage: Usage, *, is_due: bool) -> None:
        """Calibrates by a response, then decides whether to compact."""
        truncated = await self._learner.learn_from_response(turn, plan, usage)
        if self._is_deleted(turn, plan):
            return
        if truncated is not None:
            # The usage counts only a part of the prompt, so the head is saved without it.
            untold = make_head(turn, name_prefix(plan), plan, None)
            recorded = self._state.heads.find(turn.received.conversation, turn.scope)
            untold.ledger = recorded.ledger if recorded is not None else untold.ledger
            self._state.heads.save(untold)
            turn = truncated
        if is_due or self._planner.is_past_soft(turn, usage.total):
            await self._compact_if_needed(turn, plan, usage.total, is_due=is_due)

    # Compactions

    def start(
        self, turn: Turn, situation: Situation, cut: Cut, request: CompactionRequest
    ) -> "asyncio.Task[CompactionResult]":
        """Starts a compaction, or returns the one in progress: a chain has one at a time.

        If too many summaries are under way, it waits for its turn; one that a client waits for comes first.
        """
        is_awaited = request.is_awaited
        running = self._find_on_chain(turn)
        if running is not None:
            if is_awaited:
                running.place.hurry()
            return running.task
        key = situation.conversation.chain[cut.covers].hex()
        place = self._job.slots.place(turn.owner, is_awaited=is_awaited)
        task = self.spawn(self._compact_in_turn(place, turn, situation, cut, request))
        self.running.add(RunningCompaction(turn.owner, turn.conversation_id, key, cut.covers, place, task))
        return task

    async def _compact_in_turn(
        self, place: Place, turn: Turn, situation: Situation, cut: Cut, request: CompactionRequest
    ) -> CompactionResult:
        """While it waits, for its turn or for another process, it holds its request only."""
        with self._memory.open(turn.owner) as share:
            share.take(turn.weight_bytes)
            copies_bytes = _count_held(turn) - turn.weight_bytes
            if turn.policy.summary.method == "model":
                wanted = Wanted(turn, situation, cut, request)
                return await self._leadership.compact(wanted, _Workplace(place, share, copies_bytes))
            # Without a call there is nothing to pay for twice, and no place to wait for.
            share.take(copies_bytes)
            return await self._job.compact(turn, situation, cut, request)

    def start_digest(
        self, turn: Turn, situation: Situation, cut: Cut, reason: CompactionReason
    ) -> "asyncio.Task[bool]":
        """The task that digests this cut, new or in progress. It returns whether a pivot is ready."""
        key = situation.conversation.chain[cut.covers].hex()
        task = self.running.find_digest(key)
        if task is None:
            task = self.spawn(self._job.digest(turn, situation, cut, reason), self.hold(turn))
            self.running.add_digest(key, RunningDigest(turn.conversation_id, task))
        return task

    def find_running(self, turn: Turn) -> "asyncio.Task[CompactionResult] | None":
        """The compaction in progress on this chain, whatever it will cover."""
        running = self._find_on_chain(turn)
        return running.task if running is not None else None

    def is_preparing(self, turn: Turn) -> bool:
        """True if a compaction is in progress, here or elsewhere, whose pivot this request could use."""
        conversation = turn.received.conversation
        open_group = find_open_group(conversation)
        running = self._find_on_chain(turn)
        if running is not None and running.covers <= open_group:
            return True
        covered = turn.head.covers if turn.head is not None else 0
        elsewhere = self._state.news.find_compacting(turn.owner, conversation)
        return any(covered < place.length <= open_group for place in elsewhere)

    def _find_on_chain(self, turn: Turn) -> RunningCompaction | None:
        return self.running.find_on_chain(turn.owner, turn.received.conversation)

    def resume(self, turn: Turn, reason: str) -> None:
        """Decides again about an automatic compaction that a stop of the gateway interrupted."""
        if turn.head is not None and turn.head.prompt_tokens:
            total_tokens, is_due = turn.head.total_tokens, find_reason(reason) is CompactionReason.COST
            deciding = self._compact_if_needed(turn, None, total_tokens, is_due=is_due)
            self.spawn(deciding, self.hold(turn))

    async def _compact_if_needed(
        self, turn: Turn, plan: Plan | None, total_tokens: int, *, is_due: bool
    ) -> None:
        """plan: what the answered request was sent with; None after a restart.

        The marker is saved before the work begins (docs/sources.md, 000 section 4). If the task is cancelled
        because the gateway stops, the marker stays. The compaction is not waited for: it holds its own
        memory.
        """
        if not self._may_start(turn):
            # A request that cannot do without waits for its summary.
            return
        situation = await self._planner.gather(turn, may_compact=self._job.may_start(turn))
        answered = situation
        if plan is not None:
            answered = replace(situation, sticky=plan.pivot, batches=plan.batches, recalls=plan.recalls)
        ready = find_ready_pivot(answered)
        if is_due and ready is not None:
            # The rent has been paid for a summary that is there already.
            await apply_early(self._state, ready)
            return
        cut = await self._planner.choose(decide_after, answered, total_tokens, is_due=is_due)
        if cut is None or self._find_on_chain(turn) is not None:
            return
        is_for_cost = is_due and not self._planner.is_past_soft(turn, total_tokens)
        reason = CompactionReason.COST if is_for_cost else CompactionReason.SOFT_THRESHOLD
        marker = save_marker(self._state, turn, reason)
        calls = turn.policy.summary.max_calls
        request = CompactionRequest(reason=reason, calls=calls, is_resumed=plan is None, is_early=is_due)
        # As it was sent, so that the summary can ride on it.
        task = self.start(turn, answered, cut, request)
        task.add_done_callback(partial(self._drop_marker, marker))

    def _drop_marker(self, marker: Marker, task: "asyncio.Task[CompactionResult]") -> None:
        if not task.cancelled():
            self._state.tasks.drop_marker(marker.owner, marker.key)

    # Background tasks

    def spawn(self, work: Coroutine[Any, Any, T], share: Share | None = None) -> "asyncio.Task[T]":
        """Runs work in a task that outlives its request. If the gateway stops meanwhile, its marker stays, so
        the next request of the chain starts it again.

        share: of the memory; it is given back when the work is done.
        """
        task = self.running.tasks.spawn(work)
        if share is not None:
            task.add_done_callback(lambda _: share.shrink(share.size_bytes))
        return task

    def hold(self, turn: Turn) -> Share:
        """A share for work that has to be done, whether there is room or not: others wait for longer then."""
        share = self._memory.open(turn.owner)
        share.take(_count_held(turn))
        return share


def _count_held(turn: Turn) -> int:
    return _HELD_COPIES * turn.weight_bytes
