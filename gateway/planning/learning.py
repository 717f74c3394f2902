"""Learns from upstream's token counts: how they compare with ours, and where the limits are."""

import math
from dataclasses import replace
from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.view import measure
from gateway.core.limits.model_limits import Limits
from gateway.core.refusal import Overflow
from gateway.core.sizing.estimate import Expected, expect_usage, had_active, is_suspicious, is_truncated
from gateway.core.sizing.usage import Usage
from gateway.limits.book import LimitsBook, ServedModel
from gateway.planning.message_sizes import Sizer
from gateway.reporting.reporter import Reporter
from gateway.state.calibrations import Calibrations

# Counting a larger body takes longer than a hundred requests.
_SMALL_BYTES: Final = 32 * 1024
# A retry is made certainly smaller than what was refused, and so much smaller that an estimate that is a
# little off still fits.
_SMALLER: Final = 0.9
# No server accepts less. Without this floor, an upstream that refuses everything for a while would teach a
# limit that is kept for a week.
_SMALLEST_REFUSED_BYTES: Final = 1 << 16


class Learner:
    def __init__(
        self, calibrations: Calibrations, sizer: Sizer, limits: LimitsBook, reporter: Reporter
    ) -> None:
        self._calibrations = calibrations
        self._sizer = sizer
        self._limits = limits
        self._reporter = reporter

    def is_worth_counting(self, turn: Turn, plan: Plan, usage: Usage) -> bool:
        """Whether to count a request because of its usage, although no decision needs the count.

        Far below the thresholds only small requests are counted; they teach as much as large ones. The
        tokenizer is loaded for that once a conversation has a second response, because from then on usage can
        show that a part of the prompt was left out. Requests that stand alone do not need it.
        """
        if _is_suspicious(turn, plan, usage.prompt_tokens):
            return True
        is_too_much = len(turn.received.body.data) > _SMALL_BYTES or (
            not self._sizer.is_ready(turn.policy.estimator) and turn.own_head is None
        )
        if is_too_much and not turn.is_near(usage.total):
            return False
        calibration = self._calibrations.find(turn.owner, turn.meter)
        return calibration.wants_sample(usage.prompt_tokens)

    async def learn_from_response(self, turn: Turn, plan: Plan, usage: Usage) -> Turn | None:
        """Calibrates. If upstream silently left out a part of the prompt, returns the turn with the limits
        that this shows.

        Such a response is an overflow, and its usage says nothing about what was sent. Ollama truncates like
        this.
        """
        served = name_served(turn)
        self._limits.unlearn(served, usage.prompt_tokens)
        expected = await self._calibrate(turn, plan, usage.prompt_tokens)
        if expected is None:
            return None
        self._reporter.note_truncation(turn, usage.prompt_tokens, expected.before, expected.added)
        self._limits.learn_unknown(served, usage.total)
        return turn.with_limits(await self._limits.load(served))

    async def learn_from_refusal(
        self, turn: Turn, plan: Plan, overflow: Overflow, sent_bytes: int, *, is_first: bool
    ) -> Turn:
        """The same turn with limits under which it is sent smaller.

        sent_bytes: of the body that was refused. is_first: false for the refusal of a retry. A retry that is
        refused without a number teaches no window, because the error may have another cause.
        """
        served, proven = name_served(turn), _find_proof(overflow, sent_bytes)
        if proven != Limits():
            self._limits.learn(served, proven)
        elif overflow.kind == "tokens" and is_first:
            self._limits.learn_unknown(served, plan.sent)
        limits = await self._limits.load(served)
        if overflow.prompt_tokens is not None:
            await self._calibrate(turn, plan, overflow.prompt_tokens)
        sent = min(plan.sent, overflow.prompt_tokens or plan.sent)
        if overflow.kind == "tokens" and _may_fit(limits, sent, plan.output or turn.requested_tokens or 0):
            # We thought it fit, so our count is too low: scale the window to our units.
            window = min(filter(None, (limits.context, limits.input)), default=0)
            share = window / overflow.prompt_tokens if window and overflow.prompt_tokens else _SMALLER
            limits = replace(limits, context=int(min(share, _SMALLER) * sent), input=None)
        return turn.with_limits(limits)

    def learn_from_full_window(self, turn: Turn, usage: Usage) -> None:
        """Learns from a reply that ended because the window was full: the window is prompt and reply."""
        self._limits.learn(name_served(turn), Limits(context=usage.total))

    async def _calibrate(self, turn: Turn, plan: Plan, prompt_tokens: int) -> Expected | None:
        """Takes upstream's count of a prompt as a sample. If a part was left out: what was expected instead.

        Ignores requests that ask upstream to leave something out, or that upstream has compacted itself:
        their count does not say how large the rest is.
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
            # Too uncertain to act on, and too unusual to learn from.
            return None
        end = len(conversation.messages)
        raw = measure(plan.view, sizes.messages, sizes.environment, end)
        self._calibrations.save(turn.owner, turn.meter, calibration.with_sample(prompt_tokens, raw))
        return None


def name_served(turn: Turn) -> ServedModel:
    """The model that answers its requests."""
    return ServedModel(turn.owner, turn.upstream.name, turn.model, turn.has_long_window)


def _is_suspicious(turn: Turn, plan: Plan, prompt_tokens: int) -> bool:
    head = turn.own_head
    if head is None or not had_active(head, plan.pivot, plan.batches):
        return False
    added_bytes = 0
    for message in turn.received.conversation.messages[head.length :]:
        added_bytes += message.size_bytes
    return is_suspicious(prompt_tokens, head.prompt_tokens, added_bytes)


def _may_fit(limits: Limits, sent: int, reply: int) -> bool:
    """Whether a recount might fit these limits. The refused prompt may have changed our count, too."""
    least = _SMALLER * sent
    return least + reply <= (limits.context or math.inf) and least <= (limits.input or math.inf)


def _find_proof(overflow: Overflow, sent_bytes: int) -> Limits:
    """The limits that a refusal proves.

    Too many bytes without a number proves that fewer than the sent bytes are allowed, if those were many.
    """
    max_bytes = overflow.bytes
    if overflow.kind == "bytes" and max_bytes is None and sent_bytes >= _SMALLEST_REFUSED_BYTES:
        max_bytes = int(_SMALLER * sent_bytes)
    return Limits(
        context=overflow.context, input=overflow.input, body_bytes=max_bytes, images=overflow.images
    )
