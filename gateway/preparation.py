"""What comes before and after the exchange: a plan, and what is learned from the answer."""

import asyncio
import time
from dataclasses import replace
from typing import Final

from gateway.compactor import Compactor
from gateway.core.plan import CompactFirst, DigestFirst, Plan, decide
from gateway.downstream import Downstream
from gateway.folding import Folding
from gateway.planner import Planner
from gateway.relay import Outcome
from gateway.settings import Settings
from gateway.turn import Turn

# One digest does what can be done; a second one would only quote less of the same.
_MOST_DIGESTS: Final = 1


class Preparation:
    def __init__(self, settings: Settings, planner: Planner, compactor: Compactor, folding: Folding) -> None:
        self._shows_headers = settings.response_headers
        self._planner = planner
        self._compactor = compactor
        self._folding = folding

    async def plan(self, turn: Turn, downstream: Downstream) -> Plan:
        """At once below the lines; measured near them, after the compactions that it cannot do without."""
        self._compactor.resume(turn)
        return self._planner.read_plan(turn) or await self.plan_measured(turn, downstream)

    async def plan_measured(self, turn: Turn, downstream: Downstream, *, may_ask: bool = True) -> Plan:
        """`may_ask`: may a model be asked for a summary?

        Waits for at most `max_calls` summaries and `deadline_seconds`, then for a digest. What was not
        waited for goes on, and is there for the next request.
        """
        summary = turn.policy.summary
        ends = time.monotonic() + summary.deadline_seconds
        calls_left = summary.max_calls if may_ask and self._folding.may_ask(turn) else 0
        digests_left = _MOST_DIGESTS
        headers = {"x-gateway-conversation": turn.conversation} if self._shows_headers else {}
        while True:
            deciding = asyncio.ensure_future(self._decide(turn, calls_left > 0, digests_left > 0))
            await downstream.wait_for(deciding, headers)
            match deciding.result():
                case Plan() as plan:
                    return plan
                case CompactFirst(cut=cut):
                    task = self._compactor.start(turn, cut, "hard line")
                    await downstream.wait_for(task, headers, ends - time.monotonic())
                    calls_left = calls_left - 1 if _has_made_one(task) and time.monotonic() < ends else 0
                case DigestFirst(cut=cut):
                    await downstream.wait_for(self._compactor.start_digest(turn, cut), headers)
                    digests_left -= 1

    async def _decide(
        self, turn: Turn, may_compact: bool, may_digest: bool
    ) -> Plan | CompactFirst | DigestFirst:
        situation = await self._planner.gather(turn, may_compact=may_compact, may_digest=may_digest)
        running = self._compactor.find_running(turn.owner, turn.received.conversation)
        return decide(replace(situation, is_preparing=running is not None))

    def observe(self, turn: Turn, plan: Plan, outcome: Outcome) -> None:
        """One plain call; nothing is awaited any more."""
        reading = outcome.reading
        is_told = reading.usage is not None or reading.is_complete
        if 200 <= outcome.status < 300 and is_told and not reading.has_error:
            self._compactor.observe(turn, plan, reading.usage)


def _has_made_one(task: "asyncio.Task[bool]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result()
