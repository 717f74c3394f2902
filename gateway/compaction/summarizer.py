"""Makes one pivot: gives the history to a model, judges what comes back, and puts it into its place.

Stores nothing.
"""

import asyncio
from typing import Final

from gateway.compaction.pivots import PivotMaker
from gateway.compaction.summary_client import PromptRefused, SummaryClient, SummaryModels
from gateway.compaction.summary_prompt import NO_LIMIT, CallBudget, FittedCall, SummaryCallBuilder
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import SMALLER_SHARE, Cut
from gateway.core.compaction.plan import Situation
from gateway.core.compaction.request import CompactionRequest, CompactionResult
from gateway.core.compaction.summary import (
    Accepted,
    Candidate,
    Rejected,
    SummaryBounds,
    judge_summary,
    strip_thinking,
)
from gateway.core.digest.fact_list import find_missing_facts, with_fact_list
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.refusal.overflow import Overflow
from gateway.hooks import Hooks, PreCompact
from gateway.planning.message_sizes import Sizer

# One retry (DESIGN §6); where the first may not have fitted after all, with at most this share of its prompt.
_TRIES: Final = 2
_SMALLER_TRY: Final = 0.6
# To ask again at once is no use.
_NOT_AGAIN: Final = ("status 401", "status 403", "status 429")
_TOO_BIG: Final = "history too big for the summariser"
# Of the summary's cap, for the list of facts that it left out; and characters to a token of such a list.
_LIST_SHARE: Final = 0.2
_LIST_CHARS_PER_TOKEN: Final = 2.5


class Summarizer:
    def __init__(
        self,
        client: SummaryClient,
        fitter: SummaryCallBuilder,
        models: SummaryModels,
        sizer: Sizer,
        pivots: PivotMaker,
    ) -> None:
        self._client = client
        self._fitter = fitter
        self._models = models
        self._sizer = sizer
        self._pivots = pivots

    async def summarize(self, turn: Turn, cut: Cut, situation: Situation, calls: int) -> CompactionResult:
        """At most two calls, a third where upstream does not know the cheaper model; `calls`: how many may be
        made for the whole cut. Never raises for what an
        upstream does.

        The pivot covers less than the cut where one call cannot hold all of it.
        """
        rejected, most_tokens = Rejected(_TOO_BIG, is_summarizer_fault=False), NO_LIMIT
        tries, tried = _TRIES, 0
        model: str | None = None
        while tried < tries:
            wish = CallBudget(calls=max(1, calls - tried), most_tokens=most_tokens)
            fitted = await self._fitter.fit(turn, cut, situation, wish)
            if fitted is None:
                return CompactionResult(rejected, tried, model)
            tried += 1
            model = fitted.assignment.request.model
            try:
                told = await self._client.ask(fitted.assignment)
            except ModelUnknown as error:
                rejected = Rejected(str(error))
                tries += self._models.note_unknown(turn, fitted.meter[1], fitted.assignment.request.model)
                continue
            except UpstreamFailed as error:
                rejected = Rejected(str(error))
                if str(error) in _NOT_AGAIN:
                    return CompactionResult(rejected, tried, model)
                if isinstance(error, PromptRefused):
                    most_tokens = self._learn_refusal(fitted, error.overflow)
                continue
            self._fitter.learn(fitted, told.prompt_tokens)
            verdict = await self._judge(turn, told.answer, fitted, situation)
            if isinstance(verdict, Accepted):
                whole = await self._with_facts(turn, verdict, fitted)
                pivot = await self._pivots.make(turn, fitted.cut, situation, whole, is_digest=False)
                return CompactionResult(pivot, tried, model)
            rejected = verdict
        return CompactionResult(rejected, tried, model)

    def _learn_refusal(self, fitted: FittedCall, overflow: Overflow | None) -> int:
        """The most that the next prompt may hold."""
        if overflow is not None:
            self._fitter.learn_limits(fitted, overflow)
        smaller = int(fitted.prompt_tokens * _SMALLER_TRY)
        window = (overflow.context or overflow.input) if overflow is not None else None
        return min(smaller, window - fitted.cut.cap_tokens) if window is not None else smaller

    async def _judge(
        self, turn: Turn, answer: Candidate, fitted: FittedCall, situation: Situation
    ) -> Accepted | Rejected:
        raw = await self._sizer.count(strip_thinking(answer.text), turn.policy.estimator)
        bounds = SummaryBounds(
            replaced_tokens=fitted.cut.replaced_tokens,
            cap_tokens=fitted.cut.cap_tokens,
            is_calibrated=situation.known.is_calibrated,
        )
        return judge_summary(answer, int(raw * fitted.ratio), bounds)

    async def _with_facts(self, turn: Turn, accepted: Accepted, fitted: FittedCall) -> Accepted:
        """With the names and numbers that it should have mentioned, listed below it."""
        cut = fitted.cut
        earlier = cut.base.summary if cut.base is not None else None
        room = int(_LIST_SHARE * cut.cap_tokens * _LIST_CHARS_PER_TOKEN)
        missing = await asyncio.to_thread(find_missing_facts, fitted.spoken, earlier, accepted.summary, room)
        if not missing:
            return accepted
        listed = with_fact_list(accepted.summary, missing)
        tokens = int(await self._sizer.count(listed, turn.policy.estimator) * fitted.ratio)
        return Accepted(listed, tokens) if tokens <= cut.replaced_tokens * SMALLER_SHARE else accepted


# JOINED: Asks the hooks, then the summariser.

VETOED = Rejected("vetoed", is_summarizer_fault=False)


class HookedSummarizer:
    def __init__(self, summarizer: Summarizer, hooks: Hooks) -> None:
        self._summarizer = summarizer
        self._hooks = hooks

    async def summarize(
        self, turn: Turn, cut: Cut, situation: Situation, order: CompactionRequest
    ) -> CompactionResult:
        """A veto is a compaction that failed, at no call."""
        before = PreCompact(
            trigger=order.trigger,
            custom_instructions=order.instructions or None,
            conversation=turn.conversation_id,
            tenant=turn.tenant.display_name,
            pre_tokens=order.pre_tokens,
        )
        said = await self._hooks.ask(before)
        if said.veto:
            return CompactionResult(VETOED, 0)
        added = "\n\n".join(filter(None, (said.instructions, "\n".join(said.context))))
        told = turn.with_instructions(added, said.prompt) if added or said.prompt else turn
        return await self._summarizer.summarize(told, cut, situation, order.calls)
