"""Retries a turn that upstream refused as too large, at most twice, each time smaller.

Learns from the refusal, compacts and tries once more; then once with a digest; then the client gets the
upstream's own error, unchanged (docs/design.md, Overflow errors).
"""

from typing import Final

from msgspec import structs

from gateway.bounds.memory import Share
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionReason
from gateway.core.compaction.situation import RefusedRequest
from gateway.http.reply import Reply
from gateway.pipeline.plan import PlanningStep, WaitBudget
from gateway.pipeline.relay import HeldResponse
from gateway.pipeline.sender import Sender
from gateway.planning.learning import Learner
from gateway.planning.rewrite import CallMaker
from gateway.reporting.reporter import Reporter

# Once with a summary, once with a digest.
_MAX_RETRIES: Final = 2


class OverflowRetry:
    def __init__(
        self, planning: PlanningStep, sender: Sender, calls: CallMaker, learner: Learner, reporter: Reporter
    ) -> None:
        self._planning = planning
        self._sender = sender
        self._calls = calls
        self._learner = learner
        self._reporter = reporter

    async def run(
        self,
        turn: Turn,
        plan: Plan,
        refusal: HeldResponse,
        budget: WaitBudget,
        client: Reply,
        share: Share,
    ) -> None:
        """plan: what was refused. budget: of the request, what its first plan has left of it. share: of the
        memory; what planning needs is taken again for each retry. Raises RequestRefused if there is none.
        """
        given_back, refused = refusal, plan
        body_bytes = len(turn.received.body.data)
        await share.begin_work(body_bytes)
        plan = await self._planning.with_counted_size(turn, plan, client)
        for attempt in range(_MAX_RETRIES):
            if attempt:
                await share.begin_work(body_bytes)
            overflow = refusal.overflow
            size = await self._measure(turn, plan)
            turn = await self._learner.learn_from_refusal(
                turn, plan, overflow, size[0], is_first=attempt == 0
            )
            again = structs.replace(turn, refused=RefusedRequest(view=plan.view, overflow=overflow))
            smaller = await self._planning.plan_measured(again, budget, client, CompactionReason.REFUSED)
            budget.end()
            # Strictly, in bytes, for estimates may have changed; or equal with a shorter reply asked for.
            is_smaller = await self._measure(turn, smaller) < size
            self._reporter.note_refusal(turn, plan, overflow, is_retried=is_smaller)
            if not is_smaller:
                break
            plan = smaller
            held = await self._sender.send(turn, plan, client, share, probe="start")
            if held is None:
                self._reporter.note_recovered()
                return
            refusal = held
        await self._sender.give_back(turn, refused, given_back, client)

    async def _measure(self, turn: Turn, plan: Plan) -> tuple[int, int]:
        return await self._calls.count_bytes(turn, plan), plan.output or turn.requested_tokens or 0
