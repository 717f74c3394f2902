"""Sends a turn, and again where upstream calls it too large: smaller, then smallest, then no more.

DESIGN §4: learn, compact, retry once; then once with the digest; then the upstream's own error, unchanged.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Final, NamedTuple

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.refusal.overflow import Overflow, is_window_exceeded
from gateway.downstream.responder import Responder
from gateway.pipeline.exchange import Outcome
from gateway.pipeline.planning_step import PlanningStep, WaitBudget
from gateway.pipeline.sender import Sender, Watching
from gateway.planning.learning import LimitLearner
from gateway.reporting.reporter import Reporter
from gateway.upstream.client import UpstreamCall
from gateway.upstream.refusal_probe import HeldResponse, ProbeMode

# Once with a summary, once with a digest.
_MOST_RETRIES: Final = 2
# Of the soft line: what is nearer may be refused although we think that it fits. Tokenizers differ by 1.7.
_NEAR: Final = 0.5


class _Attempt(NamedTuple):
    """What was sent, and what its refusal says."""

    turn: Turn
    plan: Plan
    call: UpstreamCall
    overflow: Overflow


class OverflowRetry:
    def __init__(
        self, preparation: PlanningStep, sender: Sender, lessons: LimitLearner, reporter: Reporter
    ) -> None:
        self._preparation = preparation
        self._sender = sender
        self._lessons = lessons
        self._reporter = reporter

    async def carry(self, turn: Turn, call: UpstreamCall, downstream: Responder) -> None:
        """Plan, exchange, and what a refusal makes necessary."""
        patience = None
        plan = self._preparation.plan_at_once(turn)
        if plan is None:
            patience = self._preparation.begin(turn)
            plan = await self._preparation.plan_measured(turn, downstream, patience)
        refused = await self._send(turn, plan, call, downstream, _choose_care(turn, plan))
        if refused is None:
            return
        attempt = _Attempt(turn, plan, call, refused.overflow)
        patience = patience or self._preparation.begin(turn)
        if not await self._retry(attempt, downstream, patience):
            await self._sender.give_back(turn, plan, refused, downstream)

    async def _retry(self, failed: _Attempt, downstream: Responder, patience: WaitBudget) -> bool:
        """Has an answer gone downstream?"""
        turn, overflow = failed.turn, failed.overflow
        plan = await self._preparation.measure(turn, failed.plan, downstream)
        for attempt in range(_MOST_RETRIES):
            sent_bytes = self._sender.measure(turn, plan)
            taught = await self._lessons.learn(turn, plan, overflow, sent_bytes, is_first=attempt == 0)
            smaller = await self._preparation.plan_measured(taught, downstream, patience)
            patience.calls = 0
            is_smaller = self._is_smaller(turn, (plan, sent_bytes), smaller)
            self._reporter.note_refusal(turn, plan, overflow, is_retried=is_smaller)
            if not is_smaller:
                return False
            turn, plan = taught, smaller
            held = await self._send(turn, plan, failed.call, downstream, "start")
            if held is None:
                return True
            overflow = held.overflow
        return False

    def _send(
        self, turn: Turn, plan: Plan, call: UpstreamCall, downstream: Responder, care: ProbeMode
    ) -> Awaitable[HeldResponse | None]:
        observe = partial(self._observe, turn, plan)
        return self._sender.send(turn, plan, call, downstream, Watching(observe, care))

    def _observe(self, turn: Turn, plan: Plan, outcome: Outcome) -> None:
        """One plain call; nothing is awaited any more."""
        self._preparation.observe(turn, plan, outcome)
        if is_window_exceeded(outcome.reading.finish_reason) and outcome.reading.usage is not None:
            self._lessons.learn_full(turn, outcome.reading.usage)

    def _is_smaller(self, turn: Turn, before: tuple[Plan, int], after: Plan) -> bool:
        """Strictly, in bytes: estimates may have moved. Or the same with a shorter reply asked for.

        before: what was refused, with the bytes of its body.
        """
        refused, refused_bytes = before
        outputs = [plan.output or turn.requested or 0 for plan in (after, refused)]
        return (self._sender.measure(turn, after), outputs[0]) < (refused_bytes, outputs[1])


def _choose_care(turn: Turn, plan: Plan) -> ProbeMode:
    """A good answer is held back to its first content only where it may be none."""
    if not turn.policy.auto:
        return "none"
    if turn.thresholds is None or plan.sent >= _NEAR * turn.thresholds.soft:
        return "start"
    return "errors"
