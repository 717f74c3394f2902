"""A compaction that a person asks for: what it folds, and what may become of it.

The lines do not say when, only how much stays.
"""

from dataclasses import dataclass, replace

from gateway.core.compaction.cut import WORTHWHILE_SHARE, Cut, CutConstraints, choose_cut, is_worthwhile
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import find_open_group
from gateway.core.history.pivot import Pivot
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.sizing.calibrated_sizes import CalibratedSizes, calibrate_sizes

# Stands for a window that nobody told us, where the conversation is not larger itself.
_STAND_IN_TOKENS = 128_000
# A summary that is to be smaller than what it replaces must be told so; below this it says nothing.
_CAP_SHARE = 0.5
_SMALLEST_CAP_TOKENS = 256
# For less than that no summary is written, and none that there is written anew: it would only lose.
_LEAST_FOLDED_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Folded:
    """messages: how many the summary replaces now. Tokens: estimates of what upstream is shown."""

    messages: int
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True, slots=True)
class NothingToFold: ...


@dataclass(frozen=True, slots=True)
class UnderWay:
    """This one or another one; it is not known yet what it comes to."""


@dataclass(frozen=True, slots=True)
class Failed:
    """reason: one of a few short ones, never anybody's words."""

    reason: str


ManualOutcome = Folded | NothingToFold | UnderWay | Failed


def choose_manual_cut(situation: Situation) -> Cut | None:
    """All but the policy's tail; where that is not worth a call, all but the open group; None where there is
    nothing to fold. Builds on what is in force.
    """
    weights, lines = _weigh(situation)
    open_group = find_open_group(situation.conversation)
    cut = _choose(situation, weights, lines, CutConstraints(base=situation.sticky, must_keep=open_group))
    if cut is not None and is_worthwhile(cut, WORTHWHILE_SHARE * lines.hard):
        return cut
    return choose_remaining_cut(situation, situation.sticky, open_group)


def choose_remaining_cut(situation: Situation, base: Pivot | None, covers: int) -> Cut | None:
    """What is left to fold up to `covers`, once `base` is made."""
    weights, lines = _weigh(situation)
    return _choose(situation, weights, replace(lines, tail=0), CutConstraints(base=base, must_keep=covers))


def measure_fold(whole: Cut, pivot: Pivot, before_tokens: int) -> Folded:
    """What the pivot did that was made for this cut, in one call or several. before_tokens: what upstream
    was shown until then.
    """
    saved = pivot.saved_tokens - (whole.base.saved_tokens if whole.base else 0)
    return Folded(pivot.covers - whole.start, before_tokens, max(0, before_tokens - saved))


def _choose(
    situation: Situation, weights: CalibratedSizes, lines: Thresholds, parts: CutConstraints
) -> Cut | None:
    cut = choose_cut(situation.conversation, weights, lines, situation.policy.keep, parts)
    if cut is None or sum(weights.messages[cut.start : cut.covers]) < _LEAST_FOLDED_TOKENS:
        return None
    return replace(
        cut, cap_tokens=min(cut.cap_tokens, max(_SMALLEST_CAP_TOKENS, int(_CAP_SHARE * cut.replaced_tokens)))
    )


def _weigh(situation: Situation) -> tuple[CalibratedSizes, Thresholds]:
    weights = calibrate_sizes(situation.conversation, situation.sizes, situation.known)
    demand = RequestSize(growth=situation.growth, floor=int(weights.environment))
    lines = choose_thresholds(situation.policy, situation.limits, demand)
    if lines is None:
        whole = int(2 * (weights.environment + sum(weights.messages)))
        stand_in = Limits(context=max(_STAND_IN_TOKENS, whole))
        lines = choose_thresholds(situation.policy, stand_in, demand)
    assert lines is not None  # the stand-in has a window
    return weights, lines
