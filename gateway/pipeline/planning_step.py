"""How long one request may wait for summaries, and for how many."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

from gateway.compaction.compactor import Compactor
from gateway.compaction.job import CompactionJob
from gateway.conversations.registry import Registry
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import CompactFirst, DigestFirst, Plan, decide
from gateway.core.compaction.request import Compaction, CompactionRequest
from gateway.downstream.responder import Responder
from gateway.headers import X_GATEWAY_CONVERSATION
from gateway.pipeline.exchange import Outcome
from gateway.planning.planner import Planner
from gateway.settings import Settings


@dataclass(slots=True)
class WaitBudget:
    """calls: how many may still be made for one request. ends: by the monotonic clock. has_folded: some were
    made, and came to something.
    """

    calls: int
    ends: float
    has_folded: bool = False

    def spend(self, task: "asyncio.Task[Compaction]") -> None:
        """None are left after a compaction that failed, or that nobody waits for any longer."""
        is_over = not task.done() or task.cancelled() or task.exception() is not None
        made = None if is_over or time.monotonic() >= self.ends else task.result()
        is_ready = made is not None and made.is_ready
        self.has_folded = self.has_folded or is_ready
        self.calls = max(0, self.calls - made.calls) if made is not None and is_ready else 0


# JOINED: What comes before and after the exchange: a plan, and what is learned from the answer

# One digest does what can be done; a second one would only quote less of the same.
_MOST_DIGESTS: Final = 1


class PlanningStep:
    def __init__(
        self,
        settings: Settings,
        planner: Planner,
        compactor: Compactor,
        folding: CompactionJob,
        registry: Registry,
    ) -> None:
        self._shows_headers = settings.response_headers
        self._planner = planner
        self._compactor = compactor
        self._folding = folding
        self._registry = registry

    def begin(self, turn: Turn) -> WaitBudget:
        """What this request may cost and how long it may wait, however often it is planned."""
        summary = turn.policy.summary
        return WaitBudget(calls=summary.max_calls, ends=time.monotonic() + summary.deadline_seconds)

    def plan_at_once(self, turn: Turn) -> Plan | None:
        """Below the lines; None near them, where it has to be measured."""
        self._compactor.resume(turn)
        return self._planner.read_plan(turn)

    async def plan_measured(self, turn: Turn, downstream: Responder, patience: WaitBudget) -> Plan:
        """After the compactions that it cannot do without. Waits for summaries as long as there is patience,
        then for a digest. What was not waited for goes on, and is there for the next request.
        """
        digests_left = _MOST_DIGESTS
        headers = self._make_headers(turn)
        if not self._folding.may_ask(turn):
            patience.calls = 0
        while True:
            deciding = asyncio.ensure_future(self._decide(turn, patience, digests_left > 0))
            await downstream.wait_for(deciding, headers)
            match deciding.result():
                case Plan() as plan:
                    return plan
                case CompactFirst(cut=cut):
                    task = self._compactor.start(
                        turn, cut, CompactionRequest(reason="hard line", calls=patience.calls)
                    )
                    await downstream.wait_for(task, headers, patience.ends - time.monotonic())
                    patience.spend(task)
                case DigestFirst(cut=cut):
                    await downstream.wait_for(self._compactor.start_digest(turn, cut), headers)
                    digests_left -= 1

    async def measure(self, turn: Turn, plan: Plan, downstream: Responder) -> Plan:
        """The same plan, with what it sends counted: no guess is built on a figure for show."""
        counting = asyncio.ensure_future(self._planner.measure(turn, plan))
        await downstream.wait_for(counting, self._make_headers(turn))
        return replace(plan, sent=counting.result())

    def _make_headers(self, turn: Turn) -> dict[str, str]:
        return {X_GATEWAY_CONVERSATION: turn.conversation} if self._shows_headers else {}

    async def _decide(
        self, turn: Turn, patience: WaitBudget, may_digest: bool
    ) -> Plan | CompactFirst | DigestFirst:
        may_compact = patience.calls > 0
        situation = await self._planner.gather(turn, may_compact=may_compact, may_digest=may_digest)
        running = self._compactor.find_running(turn.owner, turn.received.conversation)
        return decide(replace(situation, is_preparing=running is not None, is_folding=patience.has_folded))

    def observe(self, turn: Turn, plan: Plan, outcome: Outcome) -> None:
        """One plain call; nothing is awaited any more."""
        reading = outcome.reading
        is_told = reading.usage is not None or reading.is_complete
        if 200 <= outcome.status < 300 and is_told and not reading.has_error:
            self._registry.note(turn, self._compactor.observe(turn, plan, reading.usage))
