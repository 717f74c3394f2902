"""Folds a part of a history: summary -> checks -> pivot, or a digest where no summary is to be had.

Nothing that failed its checks is stored; a pivot is durable before anybody may use it. Who fails three times
in a row is left alone for a while.
"""

import time
from dataclasses import replace

from gateway.compaction.pivots import Digester
from gateway.compaction.summarizer import HookedSummarizer
from gateway.conversations import cleared_results
from gateway.conversations.turn import Turn
from gateway.core.compaction.breaker import Breaker
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import Situation
from gateway.core.compaction.request import DIGEST, Compaction, CompactionRequest, CompactionResult
from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Pivot
from gateway.core.history.view import make_view
from gateway.core.sizing.calibrated_sizes import calibrate_sizes, estimate_view
from gateway.lru import Lru
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state.state import State
from gateway.store import StoreError

_BREAKERS_BYTES = 1 << 18
_BREAKER_WEIGHT_BYTES = 256
PAUSED = Rejected("paused", is_summarizer_fault=False)


class CompactionJob:
    def __init__(
        self,
        state: State,
        planner: Planner,
        summarizer: HookedSummarizer,
        digester: Digester,
        reporter: Reporter,
    ) -> None:
        self._state = state
        self._planner = planner
        self._summarizer = summarizer
        self._digester = digester
        self._reporter = reporter
        self._breakers: Lru[tuple[str, str], Breaker] = Lru(_BREAKERS_BYTES)

    async def summarize(self, turn: Turn, cut: Cut, order: CompactionRequest) -> Compaction:
        """Summary -> checks -> pivot. No pivot, and one note, where any of it fails."""
        started = time.monotonic()
        if not self.may_ask(turn):
            if order.trigger == "manual":
                self._reporter.note_compaction(turn, cut, CompactionResult(PAUSED, 0), order, 0)
            return Compaction(None, calls=0, failure=PAUSED.reason)
        self._set_breaker(turn, self._breaker(turn).with_attempt(started))
        situation = await self._planner.gather(turn, may_compact=True)
        order = replace(order, pre_tokens=_count_before(situation, cut))
        made = await self._make(turn, cut, situation, order)
        outcome = made.outcome
        if isinstance(outcome, Pivot):
            # Who compacts by hand has not been interrupted: nothing has to be resumed.
            outcome = await self._save(
                turn, replace(outcome, resume="") if order.trigger == "manual" else outcome
            )
        self._note(turn, outcome)
        made = replace(made, outcome=outcome)
        self._reporter.note_compaction(turn, cut, made, order, time.monotonic() - started)
        if isinstance(outcome, Pivot):
            return Compaction(outcome, made.calls, order.pre_tokens)
        return Compaction(None, made.calls, order.pre_tokens, outcome.reason)

    async def _make(
        self, turn: Turn, cut: Cut, situation: Situation, order: CompactionRequest
    ) -> CompactionResult:
        match turn.policy.summary.method:
            case "model":
                return await self._summarizer.summarize(turn, cut, situation, order)
            case "digest":
                return CompactionResult(await self._digester.digest(turn, cut, situation), 0)
            case "drop":
                return CompactionResult(await self._digester.drop(turn, cut, situation), 0)

    async def digest(self, turn: Turn, cut: Cut) -> bool:
        """Never over a summary of the same messages that came in meanwhile."""
        started = time.monotonic()
        if self._has_summary(turn, cut):
            return True
        situation = await self._planner.gather(turn, may_compact=False)
        digest = await self._digester.digest(turn, cut, situation)
        # That took a while. Nothing is awaited from here on before the digest is on its way to the store.
        if self._has_summary(turn, cut):
            return True
        made = await self._save(turn, digest)
        order = replace(DIGEST, pre_tokens=_count_before(situation, cut))
        self._reporter.note_compaction(
            turn, cut, CompactionResult(made, 0), order, time.monotonic() - started
        )
        return isinstance(made, Pivot)

    def _has_summary(self, turn: Turn, cut: Cut) -> bool:
        known = self._state.pivots.find(turn.received.conversation.chain[cut.covers].hex())
        return known is not None and not known.is_digest

    async def _save(self, turn: Turn, pivot: Pivot) -> Pivot | Rejected:
        try:
            await self._state.pivots.save(pivot)
        except StoreError:
            return Rejected("store", is_summarizer_fault=False)
        await cleared_results.record(self._state, turn, pivot)
        return pivot

    def may_ask(self, turn: Turn) -> bool:
        """Not while this tenant's summariser has failed too often in a row. Where none is asked: always."""
        return turn.policy.summary.method != "model" or self._breaker(turn).allows(time.monotonic())

    def _note(self, turn: Turn, made: Pivot | Rejected) -> None:
        if isinstance(made, Pivot):
            self._set_breaker(turn, Breaker())
        elif made.is_summarizer_fault:
            self._set_breaker(turn, self._breaker(turn).with_failure(time.monotonic()))

    def _breaker(self, turn: Turn) -> Breaker:
        return self._breakers.get((turn.owner, turn.upstream.name)) or Breaker()

    def _set_breaker(self, turn: Turn, breaker: Breaker) -> None:
        self._breakers.put((turn.owner, turn.upstream.name), breaker, _BREAKER_WEIGHT_BYTES)


def _count_before(situation: Situation, cut: Cut) -> int:
    """True tokens of what the cut is made in: everything received, seen through what is in force there."""
    weights = calibrate_sizes(situation.conversation, situation.sizes, situation.known)
    view = make_view(cut.base, situation.batches)
    return estimate_view(situation.conversation, weights, situation.known, view).tokens
