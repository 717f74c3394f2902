"""Learns from what upstream counted: how its count compares with ours, and whether it left something out."""

import math
from dataclasses import replace
from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.view import measure
from gateway.core.limits.model_limits import Limits
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.truncation import Expected, expect_usage, had_active, is_suspicious, is_truncated
from gateway.core.sizing.usage import Usage
from gateway.limits.book import LimitsBook
from gateway.planning.message_sizes import Sizer
from gateway.reporting.reporter import Reporter
from gateway.state.calibrations import Calibrations

# To count more takes longer than a hundred requests.
_SMALL_BYTES = 32 * 1024


class Calibrator:
    def __init__(
        self, calibrations: Calibrations, sizer: Sizer, book: LimitsBook, reporter: Reporter
    ) -> None:
        self._calibrations = calibrations
        self._sizer = sizer
        self._book = book
        self._reporter = reporter

    def wants_look(self, turn: Turn, plan: Plan, usage: Usage, *, in_sight: bool) -> bool:
        """Is this answer worth being counted, although no decision needs it? Far below the lines a small one
        teaches as much as a large one. in_sight: are the lines near?
        """
        if _is_suspicious(turn, plan, usage.prompt_tokens):
            return True
        if len(turn.received.body.data) > _SMALL_BYTES and not in_sight:
            return False
        calibration = self._calibrations.find(turn.owner, turn.meter)
        return calibration.wants_sample(usage.prompt_tokens)

    async def learn(self, turn: Turn, plan: Plan, usage: Usage) -> Turn | None:
        """By an answer. The turn under the limits that it betrays, where upstream left out a part of the
        prompt without a word (FACTS §4): that is an overflow, and its usage says nothing of what was sent.
        """
        place, is_long = (turn.owner, turn.upstream.name, turn.model), turn.has_long_window
        self._book.unlearn(*place, usage.prompt_tokens, has_long_window=is_long)
        expected = await self.calibrate(turn, plan, usage.prompt_tokens)
        if expected is None:
            return None
        self._reporter.note_truncation(turn, usage.prompt_tokens, expected.before, expected.added)
        self._book.learn_unknown(*place, usage.total, has_long_window=is_long)
        return turn.with_limits(await self._book.load(*place, has_long_window=is_long))

    async def calibrate(self, turn: Turn, plan: Plan, prompt_tokens: int) -> Expected | None:
        """By a count of upstream, in an answer or in a refusal. What was expected, if a part was left out.

        Where upstream was asked to leave something out, or has folded it, a count says nothing of the rest.
        """
        conversation = turn.received.conversation
        if turn.received.body.envelope.is_trimmed or any(each.is_opaque for each in conversation.messages):
            return None
        sizes = await self._sizer.measure(turn.received, turn.policy.estimator)
        calibration = await self._calibrations.load(turn.owner, turn.meter)
        expected = expect_usage(conversation, sizes, plan.pivot, plan.batches, turn.own_head, calibration)
        if expected is not None and is_truncated(prompt_tokens, expected):
            return expected
        if expected is not None and _is_suspicious(turn, plan, prompt_tokens):
            # Not sure enough to act on, too odd to learn from.
            return None
        end = len(conversation.messages)
        raw = measure(plan.view, conversation, sizes.messages, sizes.environment, end)
        self._calibrations.save(turn.owner, turn.meter, calibration.with_sample(prompt_tokens, raw))
        return None


def _is_suspicious(turn: Turn, plan: Plan, prompt_tokens: int) -> bool:
    head = turn.own_head
    if head is None or not had_active(head, plan.pivot, plan.batches):
        return False
    added_bytes = 0
    for message in turn.received.conversation.messages.since(head.length):
        added_bytes += message.size_bytes
    return is_suspicious(prompt_tokens, head.prompt_tokens, added_bytes)


# JOINED: What a refusal teaches: the limits that it names, and how far our own count was off.

# Of what was refused: certainly smaller, and far enough below that an estimate a little off still fits.
_SMALLER: Final = 0.9
# No server takes less. One that refuses everything for a while must not teach a limit that ruins a week.
_SMALLEST_REFUSED_BYTES: Final = 1 << 16


class LimitLearner:
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
        if overflow.kind == "tokens" and _may_fit(limits, sent, plan.output or turn.requested_tokens or 0):
            # By our count it fits: then so much of our count is what upstream counts as its window.
            window = min(filter(None, (limits.context, limits.input)), default=0)
            share = window / overflow.prompt_tokens if window and overflow.prompt_tokens else _SMALLER
            limits = replace(limits, context=int(min(share, _SMALLER) * sent), input=None)
        return turn.with_limits(limits)

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
