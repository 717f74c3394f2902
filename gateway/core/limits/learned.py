"""What refusals have taught about one model at one upstream, for one tenant, and how long it holds.

Knows no clock and no error text: times and numbers come in. An upstream's error may quote a caller's words,
so what one tenant's errors teach is never believed for another.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.limits.model_limits import Limits, is_plausible

# An upstream that serves a model with more room than last week is believed then; as long as state is kept.
_PROOF_SECONDS: Final = 7 * 86_400.0
# A guess from our own estimate may be wrong, or its error may have meant something else: one day.
_GUESS_SECONDS: Final = 86_400.0
# The same proof is written down anew once a day, not with each of a row of refusals.
_RENEW_SECONDS: Final = 86_400.0
# What was refused did not fit; a tenth below it may. Estimates are wrong by more: each refusal takes another.
_SHARE_OF_REFUSED: Final = 0.9
# A refusal of so little, without a number in it, was not about the window.
_SMALLEST_GUESS_TOKENS: Final = 4_096
# Routers count in other tokens than the model behind them; an answer this far beyond a window is proof.
_DISPROVED: Final = 1.5
_LARGEST_COUNT: Final = 1 << 40
_NOTHING: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """proven: the smallest numbers that errors gave. suspected: tokens of a window that something did not
    fit, by our own estimate; None where a number is known.

    created_seconds, suspected_seconds: when (wall clock).
    """

    owner: str
    proven: Limits = _NOTHING
    created_seconds: float = 0.0
    suspected: int | None = None
    suspected_seconds: float = 0.0

    def proven_at(self, now_seconds: float) -> Limits:
        return self.proven if _is_young(self.created_seconds, now_seconds, _PROOF_SECONDS) else _NOTHING

    def suspected_at(self, now_seconds: float) -> Limits:
        is_young = _is_young(self.suspected_seconds, now_seconds, _GUESS_SECONDS)
        return Limits(context=self.suspected) if is_young else _NOTHING

    def with_proof(self, limits: Limits, now_seconds: float) -> "Learned":
        """The smaller of what is known and what an error says; itself where that is nothing new."""
        told = _plausible(limits)
        kept = self.proven_at(now_seconds)
        smallest = kept.with_caps(told)
        is_told_again = told == kept and now_seconds - self.created_seconds >= _RENEW_SECONDS
        if told == _NOTHING or (smallest == kept and not is_told_again):
            return self
        after = replace(self, proven=smallest, created_seconds=now_seconds)
        return replace(after, suspected=None) if _has_window(told) else after

    def with_answer(self, prompt_tokens: int) -> "Learned":
        """After an answer to a prompt of this size: a window that cannot have held it was none."""
        window = min(filter(None, (self.proven.context, self.proven.input)), default=prompt_tokens)
        if prompt_tokens <= _DISPROVED * window:
            return self
        return replace(self, proven=replace(self.proven, context=None, input=None))

    def with_refusal(self, refused_tokens: int, now_seconds: float) -> "Learned":
        """After an error without numbers, for a prompt and reply that we held for `refused_tokens`."""
        tokens = int(refused_tokens * _SHARE_OF_REFUSED)
        before = self.suspected_at(now_seconds).context
        is_news = _SMALLEST_GUESS_TOKENS <= tokens < (before or tokens + 1)
        if not is_news or not is_plausible(tokens) or _has_window(self.proven_at(now_seconds)):
            return self
        return replace(self, suspected=tokens, suspected_seconds=now_seconds)


def _is_young(then_seconds: float, now_seconds: float, keep_seconds: float) -> bool:
    """Either way: a clock that was set back must not keep something for ever."""
    return abs(now_seconds - then_seconds) < keep_seconds


def _has_window(limits: Limits) -> bool:
    return bool(limits.context or limits.input)


def _plausible(limits: Limits) -> Limits:
    return Limits(
        context=_plausible_tokens(limits.context),
        input=_plausible_tokens(limits.input),
        output=_plausible_tokens(limits.output),
        body_bytes=_plausible_count(limits.body_bytes),
        images=_plausible_count(limits.images),
    )


def _plausible_tokens(tokens: int | None) -> int | None:
    return tokens if tokens is not None and is_plausible(tokens) else None


def _plausible_count(count: int | None) -> int | None:
    return count if count is not None and 0 < count <= _LARGEST_COUNT else None
