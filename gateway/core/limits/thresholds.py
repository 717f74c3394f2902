"""When a window counts as full, and when it is too small: the thresholds of one request.

Knows limits, the policy and the size of one request, but no messages. docs/design.md (When it is full) has
the formulas; DECISIONS.md says where they differ from the source documents (between 78K and 100K the hard
threshold grows slowly, so that it never falls as the window grows).
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from gateway.core.history.purpose import Purpose
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Trigger

# A shorter summary says nothing, whatever the window.
_SMALLEST_SUMMARY_TOKENS: Final = 64
# A summary gives way to turns down to some 600 words, or half a turn: a shorter one would win less than that.
_USEFUL_SUMMARY_TOKENS: Final = 1_024
_USEFUL_SUMMARY_TURNS: Final = 0.5
# The source formula can leave nothing of a small window (4K of context, 32K of output cap).
_SMALLEST_USABLE_SHARE: Final = 0.25
# Agents ask for 32,000 tokens of thinking whatever the window; servers with a small window do not count them.
_LARGEST_MINIMUM_REPLY_SHARE: Final = 1 / 3
# Binary fractions lose less than this: 0.9 x 70,000 is meant to be 63,000.
_ROUNDING_TOKENS: Final = 1e-6
# The summaries that clients ask for are about as long.
_CLIENT_SUMMARY_TOKENS: Final = 4_096
# The smallest window to which client_margin fully applies.
_CLIENT_MARGIN_FROM_TOKENS: Final = 100_000
# Below it, the hard threshold rises at this slope, so that the soft one does not fall either.
_SLOPE_BELOW_CLIENT_MARGIN: Final = 0.25
# A window that would suffice is looked for among the multiples of this. No model has a larger one.
_STEP_TOKENS: Final = 1_000
_LARGEST_WINDOW_TOKENS: Final = 100_000_000
# Room for an opening that the upstream has refused whole, as a part of the window.
_OPENING_SHARE: Final = 0.15
# The longest summary that is useful, as a part of the window.
_SUMMARY_SHARE: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSize:
    """What one request needs, in tokens, and what it is for."""

    # The reply that it asks for.
    requested: int | None = None
    # Recent growth per turn.
    growth: float = 0.0
    # Average tokens that a turn adds; 0 if too little is known.
    turn: float = 0.0
    # Parts that a compaction cannot replace.
    floor: int = 0
    purpose: Purpose = "main"
    # Its reply may not be clamped below this.
    minimum_reply: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Tokens, all positive; soft <= hard < window. A prompt above `hard` is compacted before it is sent."""

    window: int
    # Prompt and requested reply must fit this together; None if it is unknown.
    context: int | None
    hard: int
    soft: int
    # The size to aim for right after a compaction.
    target: int
    # Verbatim groups after a pivot.
    tail: int
    # What is counted on for the opening.
    opening: int
    # The summary's cap.
    summary: int
    # The cap without regard to turns. A summary that exceeds the smaller one is still accepted.
    longest_summary: int


def choose_thresholds(policy: Policy, limits: Limits, size: RequestSize) -> Thresholds | None:
    """The thresholds of one request, or None if nothing limits it."""
    base = limits.context or limits.input
    if not base:
        return None
    trigger, keep = policy.trigger, policy.keep
    wanted = max(size.requested or limits.output or 0, trigger.reserve_minimum)
    reserve = int(min(wanted, trigger.reserve_maximum, trigger.reserve_ratio * base))
    window = min(limits.context or limits.input + reserve, limits.input + reserve) if limits.input else base
    hard, soft = _choose_hard_and_soft(trigger, limits, window, reserve, size.growth)
    if size.purpose == "summary":
        # The client compacts its history itself, which is fine as long as its request fits at all.
        soft = hard = max(hard, window - min(reserve, _CLIENT_SUMMARY_TOKENS))
    excess = max(0, hard - (window - cap_minimum_reply(size.minimum_reply, window)))
    hard, soft = max(1, hard - excess), max(1, soft - excess)
    cap = int(min(policy.summary.max_tokens, _SUMMARY_SHARE * window))
    longest_summary = max(_SMALLEST_SUMMARY_TOKENS, cap)
    tail = min(keep.tail_tokens, keep.tail_ratio * hard)
    if keep.tail_window:
        tail = keep.tail_window * window + _ROUNDING_TOKENS
    usual = Thresholds(
        window=window,
        context=limits.context or None,
        hard=hard,
        soft=soft,
        # The hard threshold itself if the floor reaches it.
        target=max(1, min(hard, size.floor + int(trigger.target_ratio * max(0, hard - size.floor)))),
        tail=int(tail),
        opening=max(1, int(_OPENING_SHARE * window)),
        summary=longest_summary,
        longest_summary=longest_summary,
    )
    return _leave_room_for_turns(usual, trigger, size) if wants_turns(trigger, size) else usual


def wants_turns(trigger: Trigger, size: RequestSize) -> bool:
    """Whether a number of turns has to fit between two compactions, and it is known how large they are."""
    return trigger.formula == "adaptive" and trigger.fewest_turns > 0 and size.turn > 0


def count_turns_that_fit(thresholds: Thresholds, size: RequestSize) -> float:
    """Average turns between two compactions if the summary and the tail are as small as is useful.

    The tail then is the open group, which is one turn. The number may be negative.
    """
    room = thresholds.hard - size.floor - _choose_least_summary(thresholds.summary, size.turn)
    return room / size.turn - 1


def cap_minimum_reply(minimum_reply: int, window: int) -> int:
    """The minimum reply that is respected: 0 if it would take too much of the window."""
    return minimum_reply if minimum_reply <= _LARGEST_MINIMUM_REPLY_SHARE * window else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallWindow:
    """A window in which too few turns fit between two compactions. Tokens, and numbers of turns."""

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

    A limit on the prompt grows with the window.
    """
    known = limits.context or limits.input or 0

    def grow(window: int) -> Thresholds | None:
        context, most = limits.context, limits.input
        larger = replace(
            limits,
            context=context + window - known if context else None,
            input=most + window - known if most else None,
        )
        return choose_thresholds(policy, larger, size)

    def holds_turns(window: int) -> bool:
        found = grow(window)
        return found is not None and count_turns_that_fit(found, size) >= policy.trigger.fewest_turns

    windows = range(known - known % _STEP_TOKENS + _STEP_TOKENS, _LARGEST_WINDOW_TOKENS, _STEP_TOKENS)
    at = bisect_left(windows, True, key=holds_turns)
    found = grow(windows[at]) if at < len(windows) else None
    return _STEP_TOKENS * ceil(found.window / _STEP_TOKENS) if found is not None else None


def _choose_hard_and_soft(
    trigger: Trigger, limits: Limits, window: int, reserve: int, growth: float
) -> tuple[int, int]:
    if trigger.formula == "adaptive":
        hard = _choose_adaptive_hard(trigger, window, reserve)
        lead = max(trigger.growth_turns * growth, trigger.soft_minimum * window)
        return hard, max(1, hard - int(min(lead, trigger.soft_maximum * window)))
    if trigger.formula == "source":
        hard = soft = _choose_source_hard(limits, trigger, window)
    else:
        hard, soft = (
            max(1, min(int(ratio * window - reserve + _ROUNDING_TOKENS), window - 1))
            for ratio in (trigger.hard_ratio, trigger.soft_ratio)
        )
    # The largest that is not full.
    below = 1 if trigger.at_line else 0
    return max(1, hard - below), max(1, min(hard, soft) - below)


def _choose_source_hard(limits: Limits, trigger: Trigger, window: int) -> int:
    """The source formula (000 and 001 in docs/sources.md), where a context limit is known:
    `input - input_reserve ?? context - min(output ?? cap, cap)`.

    A cap on the output can be larger than a window, so that nothing is left of it. An input limit as large as
    the window leaves no room for a reply, so the threshold stays below it.
    """
    reply = min(limits.output or trigger.output_cap, trigger.output_cap)
    usable = limits.input or window
    if limits.context and limits.input:
        reserve = trigger.input_reserve
        usable = limits.input - (min(trigger.reserve_maximum, reply) if reserve is None else reserve)
    elif limits.context:
        usable = limits.context - reply
    return max(
        1, min(max(usable or limits.input or window, int(_SMALLEST_USABLE_SHARE * window)), window - 1)
    )


def _choose_adaptive_hard(trigger: Trigger, window: int, reserve: int) -> int:
    start = _CLIENT_MARGIN_FROM_TOKENS
    # Rounded down like the other terms; otherwise a soft threshold could fall by a token.
    missing = ceil(_SLOPE_BELOW_CLIENT_MARGIN * (start - window)) if window < start else 0
    below_clients = max(window, start) - trigger.client_margin - missing
    below_clients = below_clients if below_clients > 0 else window
    return max(1, int(min(trigger.hard_ratio * window, window - reserve, below_clients)))


def _leave_room_for_turns(usual: Thresholds, trigger: Trigger, size: RequestSize) -> Thresholds:
    """Shares what the turns leave between floor and hard threshold: up to half is for the summary, the rest
    for the tail.

    The tail gets one turn at least, because the open group always stays, and the summary what makes it
    useful. What is added while a summary is prepared becomes tail, so that the soft threshold lies no further
    below the hard one than the tail may be long.
    """
    turns = trigger.fewest_turns * size.turn
    room = usual.hard - size.floor - turns
    least = _choose_least_summary(usual.summary, size.turn)
    summary = max(least, min(usual.summary, room / 2, room - size.turn))
    tail = int(max(size.turn, room - summary))
    target = max(usual.hard - turns, size.floor + summary + size.turn)
    return replace(
        usual,
        soft=max(usual.soft, usual.hard - tail),
        target=min(usual.target, int(target)),
        tail=min(usual.tail, max(1, tail)),
        summary=int(summary),
    )


def _choose_least_summary(longest: int, turn: float) -> int:
    return min(longest, max(_USEFUL_SUMMARY_TOKENS, int(_USEFUL_SUMMARY_TURNS * turn)))
