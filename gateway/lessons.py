"""What a refusal teaches: the limits that it names, and how far our own count was off.

The limits are kept for the requests to come; the turn at hand goes on with limits under which what was
refused certainly does not fit.
"""

import math
from dataclasses import replace
from typing import Final

from gateway.calibrator import Calibrator
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.limits.model_limits import Limits
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.usage import Usage
from gateway.limits.book import LimitsBook

# Of what was refused: certainly smaller, and far enough below that an estimate a little off still fits.
_SMALLER: Final = 0.9
# No server takes less. One that refuses everything for a while must not teach a limit that ruins a week.
_SMALLEST_REFUSED_BYTES: Final = 1 << 16


class Lessons:
    def __init__(self, book: LimitsBook, calibrator: Calibrator) -> None:
        self._book = book
        self._calibrator = calibrator

    async def learn(
        self, turn: Turn, plan: Plan, overflow: Overflow, sent_bytes: int, *, is_first: bool
    ) -> Turn:
        """The same turn, as it is to be sent smaller. sent_bytes: of the body that was refused.

        is_first: of this turn's refusals. Where a retry is refused, too, and no number given, it may never
        have been about the window.
        """
        limits = await self._learn_limits(turn, plan, overflow, sent_bytes, may_guess=is_first)
        if overflow.prompt_tokens is not None:
            await self._calibrator.calibrate(turn, plan, overflow.prompt_tokens)
        sent = min(plan.sent, overflow.prompt_tokens or plan.sent)
        if overflow.kind == "tokens" and _may_fit(limits, sent, plan.output or turn.requested or 0):
            # By our count it fits: then so much of our count is what upstream counts as its window.
            window = min(filter(None, (limits.context, limits.input)), default=0)
            share = window / overflow.prompt_tokens if window and overflow.prompt_tokens else _SMALLER
            limits = replace(limits, context=int(min(share, _SMALLER) * sent), input=None)
        return turn.under(limits)

    def learn_full(self, turn: Turn, usage: Usage) -> None:
        """By a reply that ended because the window was full: prompt and reply together are the window."""
        place = (turn.owner, turn.upstream.name, turn.model)
        proof = Limits(context=usage.total)
        self._book.learn(*place, proof, has_long_window=turn.has_long_window)

    async def _learn_limits(
        self, turn: Turn, plan: Plan, overflow: Overflow, sent_bytes: int, *, may_guess: bool
    ) -> Limits:
        place = (turn.owner, turn.upstream.name, turn.model)
        is_long = turn.has_long_window
        told = _read_proof(overflow, sent_bytes)
        if told != Limits():
            self._book.learn(*place, told, has_long_window=is_long)
        elif overflow.kind == "tokens" and may_guess:
            self._book.learn_unknown(*place, plan.sent, has_long_window=is_long)
        return await self._book.load(*place, has_long_window=is_long)


def _may_fit(limits: Limits, sent: int, reply: int) -> bool:
    """Would it, counted anew? What was refused has moved our count, too."""
    least = _SMALLER * sent
    return least + reply <= (limits.context or math.inf) and least <= (limits.input or math.inf)


def _read_proof(overflow: Overflow, sent_bytes: int) -> Limits:
    """What the refusal proves. Too many bytes without a number: fewer than were sent, if those were many."""
    most_bytes = overflow.bytes
    if overflow.kind == "bytes" and most_bytes is None and sent_bytes >= _SMALLEST_REFUSED_BYTES:
        most_bytes = int(_SMALLER * sent_bytes)
    return Limits(
        context=overflow.context, input=overflow.input, body_bytes=most_bytes, images=overflow.images
    )
