"""Carries out one compaction: a summary, its checks, a stored pivot; or a digest instead of the summary.

A text that fails its checks is never stored, and a pivot is durable before it is used. After three failures
in a row a tenant's summarizer is not asked for a minute (`core.compaction.breaker`). Each process counts the
failures of its own calls: a summarizer that does not respond is tried by each of them.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gateway.compaction.pivots import PivotMaker
from gateway.compaction.running import RunningCompactions
from gateway.compaction.summarizer import Summarizer
from gateway.conversations.turn import Turn
from gateway.core.compaction.breaker import Breaker
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    make_digest_request,
)
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import OVER_BUDGET, Rejected
from gateway.core.history.pivot import Pivot
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.state.single import LeaseLost, Work
from gateway.store.interface import Lease, StoreError, Unusable

_BREAKERS_BYTES: Final = 1 << 18
_BREAKER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300
PAUSED: Final = Rejected("paused", is_summarizer_fault=False)
NOT_STORED: Final = Rejected("store", is_summarizer_fault=False)
# Another process has taken over: its pivot is used.
LOST: Final = Rejected("lease lost", is_summarizer_fault=False)
# A person has edited what the summary was made from: what that text says must not be lost.
EDITED: Final = Rejected("edited meanwhile", is_summarizer_fault=False)


class CompactionJob:
    """clock: seconds that never go back."""

    def __init__(
        self,
        state: State,
        summarizer: Summarizer,
        pivots: PivotMaker,
        reporter: Reporter,
        running: RunningCompactions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = running
        self.slots = running.slots
        self.limiter = running.limiter
        self._state = state
        self._summarizer = summarizer
        self._pivots = pivots
        self._reporter = reporter
        self._clock = clock
        # Each tenant has one for each upstream.
        self._breakers: Lru[tuple[str, str], Breaker] = Lru(_BREAKERS_BYTES)

    def may_start(self, turn: Turn) -> bool:
        """False while this tenant's summarizer is paused, or its budget of summaries is used up."""
        return self._find_pause(turn) is None

    def count_open_breakers(self) -> int:
        """Pairs of a tenant and an upstream whose summarizer is paused now."""
        now = self._clock()
        return sum(not breaker.allows(now) for breaker in self._breakers.values())

    def _find_pause(self, turn: Turn) -> Rejected | None:
        """Always None for methods that make no call."""
        if turn.policy.summary.method != "model":
            return None
        if not self._breaker(turn).allows(self._clock()):
            return PAUSED
        return OVER_BUDGET if self._summarizer.is_over_budget(turn) else None

    def count_calls(self, turn: Turn) -> int:
        """The most summary calls that may be made while this request waits."""
        return self.limiter.count_calls(turn) if self.may_start(turn) else 0

    async def compact(
        self,
        turn: Turn,
        situation: Situation,
        cut: Cut,
        request: CompactionRequest,
        work: Work | None = None,
    ) -> CompactionResult:
        """Makes, checks and stores a pivot by the policy's method, and reports what came of it.

        work: holds the lease under which it is stored. None: where there is a pivot for the same messages
        already, that one is the result.
        """
        started = self._clock()
        pause = self._find_pause(turn)
        if pause is not None:
            result = CompactionResult(pause, 0)
            if request.trigger == "manual":
                self._reporter.note_compaction(turn, cut, result, request, 0)
            return result
        self._set_breaker(turn, self._breaker(turn).with_attempt(started))
        pre_tokens = situation.count_with(cut.base)
        result = replace(await self._make(turn, situation, cut, request, pre_tokens), pre_tokens=pre_tokens)
        if result.pivot is not None:
            # A person who compacts has not been interrupted, so the model is not told to resume.
            pivot = result.pivot
            if request.trigger == "manual":
                pivot = replace(pivot, resume="", is_manual=True)
            pivot = replace(pivot, is_early=request.is_early)
            pivot = self._count_version(pivot)
            result = replace(
                result,
                outcome=await self._save(turn, pivot, cut.base, work),
                post_tokens=situation.count_after(cut.base, pivot),
            )
            if result.outcome is LOST:
                return result
            if result.pivot is not None and result.pivot is not pivot:
                # The process that stored its own reports it.
                self._reporter.note_unused_summary(turn, result)
                return result
        self._update_breaker(turn, result.outcome)
        self._reporter.note_compaction(turn, cut, result, request, self._clock() - started)
        return result

    def note_lost(self, turn: Turn, cut: Cut, request: CompactionRequest, made: CompactionResult) -> None:
        """Reports a summary that is thrown away because another process has taken over.

        made: what came of it, with the outcome LOST.
        """
        self._reporter.note_compaction(turn, cut, made, request, 0)

    async def digest(self, turn: Turn, situation: Situation, cut: Cut, reason: CompactionReason) -> bool:
        """Makes a digest for the cut. True if a pivot is ready, which may be a summary that came first.

        A digest never replaces a summary of the same messages. Of several processes that digest them, all
        use the one that was stored first. reason: why a summary was wanted.
        """
        started = self._clock()
        if self._has_summary(turn, cut):
            return True
        if self._find_pause(turn) is OVER_BUDGET:
            self._summarizer.note_missing(turn)
        digest = await self._pivots.make_digest(turn, situation, cut)
        # Look again: a summary may have arrived meanwhile. From here to the write nothing is awaited.
        if self._has_summary(turn, cut):
            return True
        if self.limiter.is_limited(turn):
            # The next request will hardly continue this one. If it does, the digest is written then.
            self._state.pivots.hold(digest)
            request = make_digest_request(CompactionReason.CLIENT_TRIMS)
            self._reporter.note_held_digest(turn, digest, request)
            return True
        pre_tokens = situation.count_with(cut.base)
        post_tokens = situation.count_after(cut.base, digest)
        saved = await self._save(turn, digest, cut.base)
        result = CompactionResult(saved, 0, pre_tokens=pre_tokens, post_tokens=post_tokens)
        if result.pivot is not None and result.pivot is not digest:
            return True
        request = make_digest_request(reason)
        self._reporter.note_compaction(turn, cut, result, request, self._clock() - started)
        return result.pivot is not None

    async def _make(
        self, turn: Turn, situation: Situation, cut: Cut, request: CompactionRequest, pre_tokens: int
    ) -> CompactionResult:
        match turn.policy.summary.method:
            case "model":
                return await self._summarizer.summarize(turn, situation, cut, request, pre_tokens)
            case "digest":
                return CompactionResult(await self._pivots.make_digest(turn, situation, cut), 0)
            case "drop":
                return CompactionResult(await self._pivots.make_note(turn, situation, cut), 0)

    def _has_summary(self, turn: Turn, cut: Cut) -> bool:
        known = self._state.pivots.find(turn.received.conversation.chain[cut.covers].hex())
        return known is not None and not known.is_digest

    def _count_version(self, pivot: Pivot) -> Pivot:
        """A summary in the place of a digest is its next version, which no edit of the digest may change."""
        known = self._state.pivots.find(pivot.key)
        return replace(pivot, version=known.version + 1) if known is not None and known.is_digest else pivot

    async def _save(
        self, turn: Turn, pivot: Pivot, base: Pivot | None, work: Work | None = None
    ) -> Pivot | Rejected:
        try:
            saved = await self._save_unless_edited(pivot, base, work)
        except LeaseLost:
            return LOST
        except Unusable:
            # It is paid for, and traffic goes on. A restart forgets it.
            self._state.pivots.hold(pivot)
            return pivot
        except StoreError:
            return NOT_STORED
        return saved

    async def _save_unless_edited(
        self, pivot: Pivot, base: Pivot | None, work: Work | None
    ) -> Pivot | Rejected:
        """Raises LeaseLost, StoreError."""
        edits, pivots = self._state.edits, self._state.pivots
        if work is None:
            # Nothing is overwritten, so only what it was made from can be lost.
            if base is not None and await edits.has_changed(base):
                return EDITED
            return await pivots.save_new(pivot)

        # Nobody edits the base while its lease is held, and a digest has another lease than its summary.
        held, known = work.lease, pivots.find(pivot.key)
        digest = known if known is not None and known.is_digest else None

        async def put(lease: Lease) -> Pivot | Rejected | None:
            for each in (base if lease is not held else None, digest):
                if each is not None and await edits.has_changed(each):
                    return EDITED
            return await pivots.save_leased(lease, pivot)

        return await work.store(put)

    def _update_breaker(self, turn: Turn, outcome: Pivot | Rejected) -> None:
        if isinstance(outcome, Pivot):
            self._set_breaker(turn, Breaker())
        elif outcome.is_summarizer_fault or outcome is NOT_STORED:
            # A summary that cannot be stored is thrown away, though it was paid for.
            self._set_breaker(turn, self._breaker(turn).with_failure(self._clock()))

    def _breaker(self, turn: Turn) -> Breaker:
        return self._breakers.get((turn.owner, turn.upstream.name)) or Breaker()

    def _set_breaker(self, turn: Turn, breaker: Breaker) -> None:
        self._breakers.put((turn.owner, turn.upstream.name), breaker, _BREAKER_WEIGHT_BYTES)
