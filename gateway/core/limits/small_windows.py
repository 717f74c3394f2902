"""Whether a window is too small for a client: too few of its turns fit between two compactions."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import (
    RequestSize,
    choose_thresholds,
    count_turns_that_fit,
    wants_turns,
)
from gateway.core.policy import Policy

# The window that would suffice is a multiple of this.
_STEP_TOKENS: Final = 1_000
# No model has a larger window.
_LARGEST_STEPS: Final = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallWindow:
    """Tokens, and numbers of turns."""

    window: int
    # What no compaction can replace.
    floor: int
    # The average of a turn.
    turn: int
    # The turns that fit between two compactions, and those that the policy wants there.
    turns: int
    wanted_turns: int
    # A window in which they fit; None if none is large enough.
    sufficient: int | None

    def __str__(self) -> str:
        """In plain words, for a log line and a header."""
        enough = f"; {self.sufficient} tokens would hold {self.wanted_turns}" if self.sufficient else ""
        return (
            f"the window of {self.window} tokens is small for this client: system prompt, tools and task take"
            f" {self.floor}, a turn adds {self.turn} on average, and fewer than"
            f" {self.wanted_turns} turns fit between two compactions{enough}"
        )


def find_small_window(
    policy: Policy, limits: Limits, size: RequestSize, whole_floor: int
) -> SmallWindow | None:
    """None if the window holds as many average turns as the policy wants, or if that is unknown.

    whole_floor: with the whole opening; a larger window keeps more of it.
    """
    thresholds = choose_thresholds(policy, limits, size)
    if thresholds is None or not wants_turns(policy.trigger, size):
        return None
    turns, wanted = count_turns_that_fit(thresholds, size), policy.trigger.fewest_turns
    if turns >= wanted:
        return None
    return SmallWindow(
        window=thresholds.window,
        floor=size.floor,
        turn=int(size.turn),
        turns=max(0, int(turns)),
        wanted_turns=wanted,
        sufficient=_find_sufficient(policy, limits, replace(size, floor=whole_floor)),
    )


def _find_sufficient(policy: Policy, limits: Limits, size: RequestSize) -> int | None:
    """The smallest window that is large enough, in whole steps; None if none is.

    How much larger it must be is found by halving. A limit on the prompt grows with the window. The windows
    that are tried are whole steps themselves, because a minimum reply counts from some window on.
    """
    beyond = (limits.context or limits.input or 0) % _STEP_TOKENS

    def find_window(steps: int) -> int | None:
        """The window with so many steps more; None if it is still too small."""
        more = steps * _STEP_TOKENS - beyond
        larger = Limits(
            context=limits.context + more if limits.context else None,
            input=limits.input + more if limits.input else None,
            output=limits.output,
        )
        thresholds = choose_thresholds(policy, larger, size)
        if thresholds is None or count_turns_that_fit(thresholds, size) < policy.trigger.fewest_turns:
            return None
        return thresholds.window

    low, high = 0, 1
    while (found := find_window(high)) is None:
        low, high = high, 2 * high
        if high > _LARGEST_STEPS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        window = find_window(middle)
        if window is None:
            low = middle
        else:
            high, found = middle, window
    return _STEP_TOKENS * ceil(found / _STEP_TOKENS)
