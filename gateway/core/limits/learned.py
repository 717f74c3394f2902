"""What overflow errors have shown about one model at one upstream for one tenant, and how long it is valid.

Knows no clock and no error texts: the caller passes times and numbers. An upstream's error may quote the
caller, so the errors of one tenant are not used for another.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.limits.model_limits import Limits, is_plausible

# After a week, as long as state is kept by default, an upstream may serve the model with a larger window.
_PROOF_SECONDS: Final = 7 * 86_400.0
# A guess lasts one day only: our estimate may be wrong, or the error may have meant something else.
_GUESS_SECONDS: Final = 86_400.0
# A repeated proof is renewed once a day, not with each of several errors in a row.
_RENEW_SECONDS: Final = 86_400.0
# The refused size did not fit; a tenth less may. If the estimate is further off, each error takes another
# tenth.
_SHARE_OF_REFUSED: Final = 0.9
# An error without a number, for a request smaller than this, was not about the window.
_SMALLEST_GUESS_TOKENS: Final = 4_096
# Routers and the models behind them count tokens differently; a prompt this far above a window disproves it.
_DISPROVED: Final = 1.5
_LARGEST_COUNT: Final = 1 << 40
_NOTHING: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """A record; times are those of the wall clock."""

    owner: str
    # The smallest numbers that errors gave.
    proven: Limits = _NOTHING
    created_seconds: float = 0.0
    # Tokens of a window that a request did not fit, by our own estimate; None if a number is known.
    suspected: int | None = None
    suspected_seconds: float = 0.0

    def proven_at(self, now_seconds: float) -> Limits:
        return self.proven if _is_young(self.created_seconds, now_seconds, _PROOF_SECONDS) else _NOTHING

    def suspected_at(self, now_seconds: float) -> Limits:
        is_young = _is_young(self.suspected_seconds, now_seconds, _GUESS_SECONDS)
        return Limits(context=self.suspected) if is_young else _NOTHING

    def with_proof(self, limits: Limits, now_seconds: float) -> "Learned":
        """The smaller of the known limits and those of an error; `self` if nothing changes."""
        stated = _plausible(limits)
        kept = self.proven_at(now_seconds)
        smallest = kept.with_caps(stated)
        is_repeated = stated == kept and now_seconds - self.created_seconds >= _RENEW_SECONDS
        if stated == _NOTHING or (smallest == kept and not is_repeated):
            return self
        after = replace(self, proven=smallest, created_seconds=now_seconds)
        return replace(after, suspected=None) if _has_window(stated) else after

    def with_success(self, prompt_tokens: int) -> "Learned":
        """After a successful request with a prompt of this size; a window far below it is forgotten."""
        window = min(filter(None, (self.proven.context, self.proven.input)), default=prompt_tokens)
        if prompt_tokens <= _DISPROVED * window:
            return self
        return replace(self, proven=replace(self.proven, context=None, input=None))

    def with_refusal(self, refused_tokens: int, now_seconds: float) -> "Learned":
        """After an error without numbers for a prompt and reply of `refused_tokens` by our estimate."""
        tokens = int(refused_tokens * _SHARE_OF_REFUSED)
        before = self.suspected_at(now_seconds).context
        is_lower = _SMALLEST_GUESS_TOKENS <= tokens < (before or tokens + 1)
        if not is_lower or not is_plausible(tokens) or _has_window(self.proven_at(now_seconds)):
            return self
        return replace(self, suspected=tokens, suspected_seconds=now_seconds)


def _is_young(then_seconds: float, now_seconds: float, keep_seconds: float) -> bool:
    """Compares the distance in both directions, so that setting back the clock keeps nothing for ever."""
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
