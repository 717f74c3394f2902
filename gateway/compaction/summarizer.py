"""Has a model summarize a part of a history: asks the hooks, calls the model, checks its text, makes a pivot.

A call that rides on the conversation's own request comes first, where that is cheaper. Whatever goes wrong
with it, the history is quoted then as if there had been none. Stores nothing.
"""

from dataclasses import dataclass
from typing import Final

from gateway.compaction.calls import NO_LIMIT, QuotedCalls, RidingCalls
from gateway.compaction.client import CallTimedOut, FittedCall, PromptRefused, SummaryClient, SummaryReply
from gateway.compaction.pivots import Folded, PivotMaker
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.request import CompactionRequest, CompactionResult
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import (
    OVER_BUDGET,
    Accepted,
    Candidate,
    Rejected,
    SummaryBounds,
    find_headings,
    judge_summary,
    strip_thinking,
)
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.history.pivot import Pivot
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.usage import Usage, add_usage
from gateway.hooks import Hooks, PreCompact
from gateway.planning.message_sizes import Sizer

# One retry. If the first prompt may not have fitted, the second has at most this share of it.
_TRIES: Final = 2
_SMALLER_TRY: Final = 0.6
# The same request would get the same response.
_NO_RETRY: Final = ("status 401", "status 403", "status 429")
_TOO_LARGE: Final = Rejected("history too big for the summariser", is_summarizer_fault=False)
_VETOED: Final = Rejected("vetoed", is_summarizer_fault=False)


@dataclass(slots=True)
class _Attempts:
    """What has been tried for one cut."""

    # How many calls may be made for this cut, and for everything that has to be compacted.
    allowed: int
    calls_in_all: int
    made: int = 0
    # How many of them rode.
    ridden: int = 0
    # The next prompt may hold at most this many tokens.
    max_tokens: int = NO_LIMIT
    # The model of the last call, and where it went.
    model: str | None = None
    upstream: str | None = None
    rejected: Rejected = _TOO_LARGE
    # Of all calls so far, as the upstream reported it.
    usage: Usage | None = None
    riding_usage: Usage | None = None

    @property
    def calls_left(self) -> int:
        return max(1, self.calls_in_all - self.made)

    def note(self, fitted: FittedCall, usage: Usage | None) -> None:
        """A call was made, whatever came of it."""
        self.made += 1
        self.model, self.upstream = fitted.model.model, fitted.model.upstream
        self.usage = add_usage(self.usage, usage)
        if fitted.is_riding:
            self.ridden += 1
            self.riding_usage = usage

    def result(self, pivot: Pivot | None = None) -> CompactionResult:
        return CompactionResult(
            pivot or self.rejected,
            self.made,
            self.model,
            usage=self.usage,
            riding_calls=self.ridden,
            riding_usage=self.riding_usage,
            upstream=self.upstream,
        )


class Summarizer:
    def __init__(
        self,
        client: SummaryClient,
        quoted: QuotedCalls,
        riding: RidingCalls,
        sizer: Sizer,
        pivots: PivotMaker,
        hooks: Hooks,
    ) -> None:
        self._client = client
        self._quoted = quoted
        self._rides = riding
        self._sizer = sizer
        self.pivots = pivots
        self._hooks = hooks

    def is_over_budget(self, turn: Turn) -> bool:
        """Whether this tenant may have no summary now, as far as this process knows."""
        return self._client.is_over_budget(turn.tenant)

    async def summarize(
        self, turn: Turn, situation: Situation, cut: Cut, request: CompactionRequest, pre_tokens: int
    ) -> CompactionResult:
        """Makes at most two calls, one more if upstream does not serve the cheaper model, and one more if the
        first one rides.

        Never raises for what an upstream does. A veto of a hook is a failure without a call. The pivot covers
        less than the cut if one call cannot hold all of it.
        """
        before = PreCompact(
            trigger=request.trigger,
            reason=request.reason,
            custom_instructions=request.instructions or None,
            conversation=turn.conversation_id,
            tenant=turn.tenant.display_name,
            pre_tokens=pre_tokens,
        )
        said = await self._hooks.ask(before)
        if said.veto:
            return CompactionResult(_VETOED, 0)
        added = "\n\n".join(filter(None, (said.instructions, "\n".join(said.context))))
        if added or said.prompt:
            turn = turn.with_instructions(added, said.prompt)
        attempts = _Attempts(_TRIES, request.calls)
        pivot = await self._ride(turn, situation, cut, attempts)
        if pivot is not None:
            return attempts.result(pivot)
        return await self._try(turn, situation, cut, attempts)

    async def _ride(self, turn: Turn, situation: Situation, cut: Cut, attempts: _Attempts) -> Pivot | None:
        """One call, beside those that may quote the history. None if none rides, or if it failed."""
        fitted = await self._rides.fit(turn, situation, cut)
        if fitted is None:
            return None
        try:
            reply = await self._call(turn, fitted, attempts)
        except (ModelUnknown, UpstreamFailed) as error:
            # A client that waits has waited for as long as a quoted call may take, so that one is left out.
            attempts.allowed += not isinstance(error, CallTimedOut)
            if isinstance(error, PromptRefused) and error.overflow is not None:
                self._quoted.learn_from_refusal(fitted, error.overflow)
            self._rides.note_failed(turn, error)
            return None
        if reply is None:
            return None
        attempts.allowed += 1
        verdict = await self._judge(turn, situation, reply.candidate, fitted)
        if isinstance(verdict, Rejected):
            self._rides.note_rejected(turn, verdict.reason)
            return None
        self._rides.note_cost(turn, cut, verdict.tokens, reply.usage)
        return await self._make_pivot(turn, situation, verdict, fitted)

    async def _try(self, turn: Turn, situation: Situation, cut: Cut, attempts: _Attempts) -> CompactionResult:
        """Quotes the history."""
        while attempts.made < attempts.allowed:
            fitted = await self._quoted.fit(turn, situation, cut, attempts.calls_left, attempts.max_tokens)
            if fitted is None:
                break
            candidate = await self._ask(turn, fitted, attempts)
            if candidate is None:
                continue
            verdict = await self._judge(turn, situation, candidate, fitted)
            if isinstance(verdict, Accepted):
                return attempts.result(await self._make_pivot(turn, situation, verdict, fitted))
            attempts.rejected = verdict
        return attempts.result()

    async def _ask(self, turn: Turn, fitted: FittedCall, attempts: _Attempts) -> Candidate | None:
        """One call. None if it failed; `attempts` then says why, and what the next one may hold."""
        try:
            reply = await self._call(turn, fitted, attempts)
        except ModelUnknown as error:
            attempts.rejected = Rejected(str(error))
            if self._quoted.note_unknown(turn, fitted.model):
                # The conversation's own model is asked instead.
                attempts.allowed += 1
            return None
        except UpstreamFailed as error:
            attempts.rejected = Rejected(str(error))
            if str(error) in _NO_RETRY:
                attempts.allowed = attempts.made
            elif isinstance(error, PromptRefused):
                attempts.max_tokens = self._learn_from_refusal(fitted, error.overflow)
            return None
        if reply is None:
            # No other call will be made.
            attempts.allowed, attempts.rejected = attempts.made, OVER_BUDGET
            return None
        self._quoted.learn(fitted, reply.usage.prompt_tokens if reply.usage is not None else None)
        return reply.candidate

    async def _call(self, turn: Turn, fitted: FittedCall, attempts: _Attempts) -> SummaryReply | None:
        """None if the tenant's budget has no room for it. Raises what the client raises."""
        try:
            reply = await self._client.ask(turn.tenant, fitted)
        except (ModelUnknown, UpstreamFailed):
            attempts.note(fitted, None)
            raise
        if reply is not None:
            attempts.note(fitted, reply.usage)
        return reply

    def _learn_from_refusal(self, fitted: FittedCall, overflow: Overflow | None) -> int:
        """The most tokens that the next prompt may hold."""
        if overflow is not None:
            self._quoted.learn_from_refusal(fitted, overflow)
        smaller = int(fitted.prompt_tokens * _SMALLER_TRY)
        window = (overflow.context or overflow.input) if overflow is not None else None
        return min(smaller, window - fitted.cut.longest_tokens) if window is not None else smaller

    async def _judge(
        self, turn: Turn, situation: Situation, candidate: Candidate, fitted: FittedCall
    ) -> Accepted | Rejected:
        raw = await self._sizer.count(turn.owner, strip_thinking(candidate.text), turn.policy.estimator)
        bounds = SummaryBounds(
            replaced_tokens=fitted.cut.replaced_tokens,
            # A longer summary costs room for turns; a digest in its place would cost what it says.
            cap_tokens=fitted.cut.longest_tokens,
            is_calibrated=situation.known.is_calibrated,
            headings=find_headings(turn.policy.prompts.instruction) if fitted.is_riding else (),
        )
        return judge_summary(candidate, int(raw * situation.calibrated.ratio), bounds)

    async def _make_pivot(
        self, turn: Turn, situation: Situation, accepted: Accepted, fitted: FittedCall
    ) -> Pivot:
        folded = Folded(fitted.cut, fitted.entries)
        return await self.pivots.make_summary(turn, situation, folded, accepted)
