"""Retries a turn that upstream refused as too large, at most twice, each time smaller.

Learns from the refusal, compacts and tries once more; then once with a digest; then the client gets the
upstream's own error, unchanged (docs/design.md, Overflow errors).
"""

from typing import Final

from msgspec import structs

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionReason
from gateway.core.compaction.situation import RefusedRequest
from gateway.http.reply import Reply
from gateway.pipeline.planning_step import PlanningStep, WaitBudget
from gateway.pipeline.refusal_probe import HeldResponse
from gateway.pipeline.sender import Sender
from gateway.planning.learning import Learner
from gateway.reporting.reporter import Reporter

# Once with a summary, once with a digest.
_MAX_RETRIES: Final = 2


class OverflowRetry:
    def __init__(self, planning: PlanningStep, sender: Sender, learner: Learner, reporter: Reporter) -> None:
        self._planning = planning
        self._sender = sender
        self._learner = learner
        self._reporter = reporter

    async def run(
        self, turn: Turn, plan: Plan, refusal: HeldResponse, budget: WaitBudget, client: Reply
    ) -> None:
        """plan: what was refused. budget: of the request, what its first plan has left of it."""
        if not await self._retry(turn, plan, refusal, budget, client):
            await self._sender.give_back(turn, plan, refusal, client)

    async def _retry(
        self, turn: Turn, plan: Plan, refusal: HeldResponse, budget: WaitBudget, client: Reply
    ) -> bool:
        """Whether the client got a response."""
        plan = await self._planning.with_counted_size(turn, plan, client)
        overflow = refusal.overflow
        for attempt in range(_MAX_RETRIES):
            sent_bytes = await self._sender.count_bytes(turn, plan)
            is_first = attempt == 0
            learned = await self._learner.learn_from_refusal(
                turn, plan, overflow, sent_bytes, is_first=is_first
            )
            refused = structs.replace(learned, refused=RefusedRequest(view=plan.view, overflow=overflow))
            smaller = await self._planning.plan_measured(refused, budget, client, CompactionReason.REFUSED)
            budget.end()
            is_smaller = await self._is_smaller(turn, plan, smaller)
            self._reporter.note_refusal(turn, plan, overflow, is_retried=is_smaller)
            if not is_smaller:
                return False
            turn, plan = learned, smaller
            held = await self._sender.send(turn, plan, client, probe="start")
            if held is None:
                self._reporter.note_recovered()
                return True
            overflow = held.overflow
        return False

    async def _is_smaller(self, turn: Turn, refused: Plan, plan: Plan) -> bool:
        """Strictly, in bytes, for estimates may have changed; or equal with a shorter reply asked for."""
        return await self._measure(turn, plan) < await self._measure(turn, refused)

    async def _measure(self, turn: Turn, plan: Plan) -> tuple[int, int]:
        return await self._sender.count_bytes(turn, plan), plan.output or turn.requested_tokens or 0
