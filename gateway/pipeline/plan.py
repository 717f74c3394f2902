"""Plans one request, and first makes the compactions that it needs while the client waits."""

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

from gateway.compaction.flow import Compactions, Job
from gateway.compaction.manual import ManualCompaction
from gateway.conversations.turn import Turn, name_ids
from gateway.core.compaction.decision import CompactFirst, Decision, DigestFirst, decide
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    make_digest_request,
)
from gateway.core.compaction.situation import Situation
from gateway.core.policy import Summary
from gateway.http.reply import Reply
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.pipeline.question import QuestionRecall
from gateway.planning.planner import Planner

log = logging.getLogger("gateway.limits")

# Some two thousand conversations.
_WARNINGS_BYTES: Final = 1 << 20
# A client that is forgotten is logged again.
_LOGGED_BYTES: Final = 1 << 18
# Side calls over the history of a conversation that is warned of itself.
_SIDE_CALLS: Final = ("summary", "title")


class WindowWarnings:
    """Says that a window is too small for a client, or that a request does not fit it: a header, and one log
    line for each client or conversation.
    """

    def __init__(self) -> None:
        # The text by conversation; empty after a plan that found the window large enough.
        self._texts: Lru[str, str] = Lru(_WARNINGS_BYTES)
        # Tenant and scope: a client's model, system prompt and tools. It may open many conversations. Also
        # tenant and conversation, of those with a request that does not fit.
        self._logged: Lru[tuple[str, str], bool] = Lru(_LOGGED_BYTES)

    def note(self, turn: Turn, plan: Plan) -> Plan:
        """A measured plan, with the warning that it calls for. The first one of a client is logged."""
        if turn.purpose in _SIDE_CALLS:
            return plan
        text = str(plan.small_window) if plan.small_window is not None else ""
        if text or turn.conversation_id in self._texts:
            weight_bytes = ENTRY_WEIGHT_BYTES + weigh_texts(turn.conversation_id, text)
            self._texts.put(turn.conversation_id, text, weight_bytes)
        if text:
            self._log_once(turn, turn.scope, text)
        if plan.warning is not None:
            self._log_once(turn, turn.conversation_id, f"a request does not fit the window: {plan.warning}")
        return _with_warning(plan, text)

    def recall(self, turn: Turn, plan: Plan) -> Plan:
        """A plan that was made without measuring, with the warning of the last measured one."""
        return _with_warning(plan, self._texts.get(turn.conversation_id) or "")

    def _log_once(self, turn: Turn, name: str, text: str) -> None:
        """name: of what gets one line: a client, or a conversation."""
        client = turn.owner, name
        if self._logged.get(client) is None:
            log.warning("conversation=%s: %s", turn.conversation_id, text, extra=name_ids(turn))
            self._logged.put(client, True, ENTRY_WEIGHT_BYTES + weigh_texts(*client))


def _with_warning(plan: Plan, text: str) -> Plan:
    """What does not fit at all is more urgent."""
    return replace(plan, warning=text) if text and plan.warning is None else plan


T = TypeVar("T")

# A second digest would only quote less of the same messages.
_MAX_DIGESTS: Final = 1


class WaitBudget:
    """How many calls and seconds one request may spend on summaries, over all its plans."""

    def __init__(self, summary: Summary) -> None:
        self.calls_left = summary.max_calls
        # Whether a part of the history was compacted for this request.
        self.has_compacted = False
        self._seconds = summary.deadline_seconds
        self._ends_seconds: float | None = None

    def start(self) -> None:
        """The time runs from the first call on."""
        if self._ends_seconds is None:
            self._ends_seconds = time.monotonic() + self._seconds

    @property
    def seconds_left(self) -> float:
        return self._seconds if self._ends_seconds is None else self._ends_seconds - time.monotonic()

    def spend(self, task: "asyncio.Task[CompactionResult]") -> None:
        """After a wait. A compaction that failed, or took longer than the time left, ends the budget."""
        is_over = not task.done() or task.cancelled() or task.exception() is not None
        if is_over or self.seconds_left <= 0 or task.result().pivot is None:
            self.end()
        else:
            self.has_compacted = True
            self.calls_left = max(0, self.calls_left - task.result().calls)

    def end(self) -> None:
        """No more summaries for this request."""
        self.calls_left = 0


class PlanningStep:
    def __init__(
        self,
        planner: Planner,
        compactions: Compactions,
        manual: ManualCompaction,
        recall: QuestionRecall,
    ) -> None:
        self._planner = planner
        self._compactions = compactions
        self._manual = manual
        self._recall = recall
        self._warnings = WindowWarnings()

    async def plan(self, turn: Turn, budget: WaitBudget, client: Reply) -> Plan:
        """Plans at once if the request is far below its thresholds, otherwise by measured sizes."""
        self._manual.resume(turn)
        plan = await self._planner.plan_unmeasured(turn)
        if plan is None:
            plan = await self.plan_measured(turn, budget, client)
        else:
            plan = self._warnings.recall(turn, plan)
        # Not where a request is planned again because it was refused as too long.
        return await self._recall.add(turn, plan) if turn.policy.recall == "auto" else plan

    async def plan_measured(
        self,
        turn: Turn,
        budget: WaitBudget,
        client: Reply,
        reason: CompactionReason = CompactionReason.HARD_THRESHOLD,
    ) -> Plan:
        """Plans after the compactions that the request needs.

        Waits for summaries as long as the budget lasts, then for a digest. A compaction that takes longer
        continues, and is ready for the next request. reason: of the compactions.
        """
        digests_left = _MAX_DIGESTS
        budget.start()
        budget.calls_left = min(budget.calls_left, self._compactions.count_calls(turn))
        while True:
            deciding = self._decide(turn, budget, may_digest=digests_left > 0)
            situation, decision = await _wait_for(deciding, client)
            match decision:
                case Plan() as plan:
                    return self._warnings.note(turn, plan)
                case CompactFirst(cut=cut):
                    request = CompactionRequest(reason=reason, calls=budget.calls_left, is_awaited=True)
                    task = self._compactions.start(Job(turn, situation, cut, request))
                    await _wait_for_compaction(task, client, budget.seconds_left)
                    budget.spend(task)
                case DigestFirst(cut=cut):
                    request = make_digest_request(reason)
                    digest = self._compactions.start_digest(Job(turn, situation, cut, request))
                    await _wait_for_compaction(digest, client)
                    digests_left -= 1

    async def with_counted_size(self, turn: Turn, plan: Plan, client: Reply) -> Plan:
        """The same plan with its size counted; a plan made at once holds only a rough figure."""
        counting = self._planner.count_sent(turn, plan)
        return replace(plan, sent=await _wait_for(counting, client))

    async def _decide(
        self, turn: Turn, budget: WaitBudget, *, may_digest: bool
    ) -> tuple[Situation, Decision]:
        may_compact = budget.calls_left > 0
        situation = await self._planner.gather(turn, may_compact=may_compact, may_digest=may_digest)
        is_preparing = self._compactions.is_preparing(turn)
        situation = replace(situation, is_preparing=is_preparing, has_compacted=budget.has_compacted)
        return situation, await self._planner.choose(decide, situation)


async def _wait_for_compaction(
    task: "asyncio.Task[Any]", client: Reply, max_seconds: float = math.inf
) -> None:
    begun_seconds = time.monotonic()
    try:
        await client.wait_for(task, max_seconds)
    finally:
        client.answered.waited_seconds += time.monotonic() - begun_seconds


async def _wait_for(work: Coroutine[Any, Any, T], client: Reply) -> T:
    """The result of work for this request alone: if the client hangs up, its body must not stay in memory."""
    task = asyncio.ensure_future(work)
    try:
        await client.wait_for(task)
        return task.result()
    finally:
        task.cancel()
