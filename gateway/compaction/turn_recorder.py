"""What is recorded of a response: its head, the ledger of its branch, and whether a compaction is due.

This package writes the heads, pivots, mark batches and markers that follow from a response or a compaction.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gateway.compaction.flow import Compactions, count_held
from gateway.conversations import trimmed_histories
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.summary import wants_riding
from gateway.core.economy import (
    AnsweredTurn,
    find_ledger,
    is_due,
    note_response,
    pay_rent,
    shows_cache,
    size_up,
    with_cache,
)
from gateway.core.history.head import BranchLedger, Head, count_dropped, smooth_growth
from gateway.core.sizing.usage import Usage
from gateway.planning.learning import Learner
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag

log = logging.getLogger("gateway.compactor")

# A durable write takes some milliseconds. A client must not wait for a store that another process locks.
_SECURE_SECONDS: Final = 1.0
_GOING_ON: Final = ("main", "agent")


class TurnRecorder:
    def __init__(
        self, state: State, planner: Planner, learner: Learner, compactions: Compactions, reporter: Reporter
    ) -> None:
        self._state = state
        self._planner = planner
        self._learner = learner
        self._compactions = compactions
        self._running = compactions.running
        self._reporter = reporter

    async def secure(self, turn: Turn, plan: Plan) -> None:
        """Before a request is sent: what is new in its prefix is in the store when this returns.

        If the process is killed right after the response, the next request goes on with the same prefix. A
        store that is stuck does not hold the request back for long.
        """
        if self._is_deleted(turn, plan):
            return
        if plan.new_recall is not None:
            self._state.pivots.hold(plan.new_recall)
        if not plan.changes_prefix or self._running.limiter.is_limited(turn):
            return
        head = _make_head(turn, plan, None)
        if not self._state.heads.is_durable(head):
            saving = self._save_prefix(turn, plan, head)
            await asyncio.wait((self._running.spawn(saving),), timeout=_SECURE_SECONDS)

    async def _save_prefix(self, turn: Turn, plan: Plan, head: Head | None) -> None:
        """head: None to save again only what a shared store may have lost since."""
        # The store has logged what went wrong. All is saved again with the response, as soon as that is
        # possible.
        with suppress(StoreError):
            if head is not None and plan.new_batch is not None:
                batch = replace(plan.new_batch, conversation=head.conversation)
                await self._state.pivots.save_batch_durably(batch)
            await self._state.pivots.secure(plan.parts)
            if head is not None and not self._is_deleted(turn, plan):
                await self._state.heads.save_durably(head)

    def record_response(self, turn: Turn, plan: Plan, usage: Usage | None) -> Head:
        """Records a complete response; prepares a compaction in the background if the window is filling.

        Nothing is recorded of a conversation that was deleted meanwhile.
        """
        is_deleted, pivots = self._is_deleted(turn, plan), self._state.pivots
        if plan.new_recall is not None and not is_deleted:
            pivots.hold(plan.new_recall)
        head = _make_head(turn, plan, usage)
        head.ledger = ledger = update_ledger(turn, plan, usage, self._planner.clock())
        if is_deleted:
            return head
        is_due = usage is not None and self._take_due(turn, head)
        total_tokens = head.total_tokens
        needs_compaction = turn.is_unrecognized and self._planner.is_past_soft(
            turn, max(plan.received, total_tokens)
        )
        self._running.limiter.note_response(turn, needs_compaction=needs_compaction)
        is_worth_saving = self._save_head(turn, head)
        if plan.new_batch is not None:
            batch = replace(plan.new_batch, conversation=turn.conversation_id)
            pivots.save_batch(batch)
            self._reporter.note_pruning(turn, plan.new_batch, plan.sent)
        if is_worth_saving:
            pivots.refresh(plan.parts)
            if self._state.store.is_shared and not pivots.is_secure(plan.parts):
                self._running.spawn(self._save_prefix(turn, plan, None))
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
        parts = (plan.pivot, *plan.batches, *plan.recalls)
        names = {turn.conversation_id, *(part.conversation for part in parts if part is not None)}
        return any(memory.was_purged(turn.purges, tag, name) for name in names)

    def _take_due(self, turn: Turn, head: Head) -> bool:
        """Whether old messages have cost enough for a compaction. Then the head begins to count anew: a
        compaction that fails, or is not made after all, has to become due again.
        """
        compactions = self._compactions
        if head.ledger is None or not is_compaction_due(turn, head) or not compactions.may_prepare(turn):
            return False
        if not compactions.may_start(turn) or compactions.find_running(turn) is not None:
            return False
        head.ledger = pay_rent(head.ledger)
        return True

    def _save_head(self, turn: Turn, head: Head) -> bool:
        """True if it is written to the store, too. Without it a conversation far below its thresholds, with
        no pivot and no batch, loses nothing. One that the limiter expects to end here is not written, either.
        """
        is_changed = head.pivot is not None or bool(head.batches) or bool(head.recalls)
        matters = is_changed or turn.is_near(head.total_tokens)
        matters = matters and not self._running.limiter.is_limited(turn)
        soft_tokens = turn.thresholds.soft if turn.thresholds is not None else 0
        is_worth_saving = matters and self._state.heads.is_worth_saving(head, soft_tokens)
        if turn.is_unsure:
            # The store may have a summary that this head does not name.
            is_worth_saving = False
            self._state.heads.hold(head, is_unsure=True)
        elif is_worth_saving:
            self._state.heads.save(head)
        elif matters:
            self._state.heads.hold_step(head)
        else:
            self._state.heads.hold(head)
        ended = trimmed_histories.record(self._state, turn, head)
        histories = self._state.histories
        is_kept = is_worth_saving or (matters and histories.is_behind(head))
        if ended is not None and is_kept and is_changed:
            self._running.spawn(histories.save(ended, head))
        return is_worth_saving

    def _start_learning(self, turn: Turn, plan: Plan, usage: Usage, *, is_due: bool) -> bool:
        """In the background. False while there is no memory for it: a later response teaches the same."""
        share = self._running.memory.open(turn.owner)
        has_room = share.try_grow(count_held(turn))
        if has_room:
            self._running.spawn(self._learn(turn, plan, usage, is_due=is_due), share)
        else:
            log.debug("nothing is learned from a response: no memory left for its request")
        return has_room

    async def _learn(self, turn: Turn, plan: Plan, usage: Usage, *, is_due: bool) -> None:
        """Calibrates by a response, then decides whether to compact."""
        truncated = await self._learner.learn_from_response(turn, plan, usage)
        if self._is_deleted(turn, plan):
            return
        if truncated is not None:
            # The usage counts only a part of the prompt, so the head is saved without it.
            untold = _make_head(turn, plan, None)
            recorded = self._state.heads.find(turn.received.conversation, turn.scope)
            untold.ledger = recorded.ledger if recorded is not None else untold.ledger
            self._state.heads.save(untold)
            turn = truncated
        if is_due or self._planner.is_past_soft(turn, usage.total):
            await self._compactions.prepare(turn, plan, usage.total, is_due=is_due)


# Heads


def _make_head(turn: Turn, plan: Plan, usage: Usage | None) -> Head:
    """Of an answered request: what is known at its end, and what it was sent with.

    usage: None if it is not known, or not yet.
    """
    conversation, pivot = turn.received.conversation, plan.pivot
    total = usage.total if usage is not None else 0
    covers = pivot.covers if pivot is not None else 0
    return Head(
        owner=turn.owner,
        key=conversation.key.hex(),
        length=len(conversation.messages),
        scope=turn.scope,
        tools=turn.received.body.envelope.tools.hex(),
        prompt_tokens=usage.prompt_tokens if usage is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        growth_tokens=smooth_growth(turn.own_head, total) if usage is not None else turn.growth,
        pivot=pivot.key if pivot is not None else None,
        batches=tuple([batch.key for batch in plan.batches]),
        conversation=turn.conversation_id,
        parent=turn.parent_id,
        covers=covers,
        dropped=count_dropped(conversation, covers),
        pivot_version=pivot.version if pivot is not None else 1,
        recalls=tuple([recall.key for recall in plan.recalls]),
        ledger=turn.head.ledger if turn.head is not None else None,
        session=turn.session,
    )


# What old messages cost


def update_ledger(turn: Turn, plan: Plan, usage: Usage | None, now_seconds: float) -> BranchLedger:
    """The ledger after a response."""
    before = find_ledger(turn.head, turn.scope)
    if usage is None:
        return replace(before or BranchLedger(), answered_seconds=now_seconds)
    pivot = plan.pivot.key if plan.pivot is not None else None
    needs_base = before is None or not before.base_tokens or before.pivot != pivot
    # The cache of another model is empty at its first request, whose usage tells nothing. Until the next one,
    # that of the model before is the best guess.
    known = turn.head.ledger if turn.head is not None else None
    is_cached = shows_cache(usage) or (known is not None and known.has_cached)
    rates = with_cache(turn.rates) if is_cached else turn.rates
    answered = AnsweredTurn(
        usage=usage,
        pivot=pivot,
        pivot_tokens=plan.pivot.tokens if plan.pivot is not None else 0,
        fixed_tokens=_estimate_fixed(turn, plan, usage.prompt_tokens) if needs_base else 0.0,
        tail_tokens=turn.thresholds.tail if turn.thresholds is not None else 0,
    )
    return note_response(before, answered, rates, now_seconds)


def is_compaction_due(turn: Turn, head: Head) -> bool:
    """Whether old messages have cost as much as folding them. head: of the answered request.

    Never after a title or the client's own summary: such a history is not continued.
    """
    policy, ledger, thresholds = turn.policy, head.ledger, turn.thresholds
    if not (policy.economy and policy.compaction.auto) or turn.purpose not in _GOING_ON:
        return False
    if ledger is None or thresholds is None:
        return False
    sizes = size_up(ledger, head.total_tokens, thresholds.tail, head.growth_tokens)
    rates = with_cache(turn.rates) if ledger.has_cached else turn.rates
    if not is_due(policy.economy, ledger, rates, sizes):
        return False
    # Looked at last, because it reads the prompts, and quoting is never cheaper.
    quoted = replace(sizes, may_ride=wants_riding(policy, turn.model, turn.upstream.name))
    return is_due(policy.economy, ledger, rates, quoted)


def _estimate_fixed(turn: Turn, plan: Plan, prompt_tokens: int) -> float:
    """The tokens of everything up to the end of the opening, by its share of what came in. Needed once."""
    conversation = turn.received.conversation
    behind = sum(message.size_bytes for message in conversation.messages[conversation.opening_end :])
    received_tokens = prompt_tokens + plan.received - plan.sent
    return received_tokens * max(0.0, 1.0 - behind / max(1, len(turn.received.body.data)))
