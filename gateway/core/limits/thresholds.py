"""Where the lines lie: the window of one request, and how full is too full.

Knows limits, policy and what one request demands. DESIGN §4 has every formula; DECISIONS says where we
differ (between 78K and 100K the hard line grows slowly, so that it never falls as the window grows).
"""

from dataclasses import dataclass
from math import ceil

from gateway.core.history.purpose import Purpose
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Keep, Policy, Trigger

# Below this a summary says nothing, whatever the window.
_SMALLEST_SUMMARY_TOKENS = 64
# The source formula can leave nothing of a small window (4K of context, 32K of output cap).
_SMALLEST_USABLE_SHARE = 0.25
# Agents ask for 32,000 tokens of thinking whatever the window. Who serves a small one does not count them.
_LARGEST_LEAST_SHARE = 1 / 3
_ROUNDING = 1e-6
# As long as the summaries that clients ask for.
_SUMMARY_REPLY_TOKENS = 4_096
# Up to client_margin_from the hard line rises at this slope, which keeps the soft line from falling too.
_SLOPE_BELOW_CLIENT_MARGIN = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSize:
    """What one request brings, in tokens: the reply it asks for, its recent growth per turn, its floor; and
    what it is for.

    least_reply: what its reply may not be clamped below.
    """

    requested: int | None = None
    growth: float = 0.0
    floor: int = 0
    purpose: Purpose = "main"
    minimum_reply: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Tokens, all positive. soft <= hard < window; a prompt above `hard` is compacted before it is sent.

    context: what prompt and requested reply must fit together, where it is known.
    target: what an array may hold right after a compaction. tail: verbatim groups behind a pivot.
    opening: share of the opening that is never cut. summary: cap on the summary's length.
    """

    window: int
    context: int | None
    hard: int
    soft: int
    target: int
    tail: int
    opening: int
    summary: int


def choose_thresholds(policy: Policy, limits: Limits, demand: RequestSize) -> Thresholds | None:
    """The lines of one request, or None where nothing limits it."""
    base = limits.context or limits.input
    if not base:
        return None
    trigger = policy.trigger
    reserve = _choose_reserve(trigger, demand.requested or limits.output or 0, base)
    window = min(limits.context or limits.input + reserve, limits.input + reserve) if limits.input else base
    hard, soft = _hard_and_soft(trigger, limits, (window, reserve), demand.growth)
    if demand.purpose == "summary":
        # The client compacts by itself: it may, as long as what it sends fits at all.
        soft = hard = max(hard, window - min(reserve, _SUMMARY_REPLY_TOKENS))
    excess = max(0, hard - (window - cap_minimum_reply(demand.minimum_reply, window)))
    hard, soft = max(1, hard - excess), max(1, soft - excess)
    return Thresholds(
        window=window,
        context=limits.context or None,
        hard=hard,
        soft=soft,
        target=_target_line(trigger, hard, demand.floor),
        tail=_tail(policy.keep, window, hard),
        opening=max(1, int(policy.keep.opening_ratio * window)),
        summary=max(
            _SMALLEST_SUMMARY_TOKENS, int(min(policy.summary.max_tokens, policy.summary.max_ratio * window))
        ),
    )


def cap_minimum_reply(minimum_reply: int, window: int) -> int:
    """How much of the window a reply keeps that may not be shorter; 0 where it asks for too much of it."""
    return minimum_reply if minimum_reply <= _LARGEST_LEAST_SHARE * window else 0


def _hard_and_soft(trigger: Trigger, limits: Limits, room: tuple[int, int], growth: float) -> tuple[int, int]:
    """`room`: window and reserve."""
    window, reserve = room
    match trigger.formula:
        case "source":
            hard = _below(trigger, _source_line(limits, trigger, window))
            return hard, hard
        case "ratio":
            hard = _below(trigger, _ratio_line(trigger.hard_ratio, window, reserve))
            return hard, min(hard, _below(trigger, _ratio_line(trigger.soft_ratio, window, reserve)))
        case "adaptive":
            hard = _hard_line(trigger, window, reserve)
            return hard, _soft_line(trigger, window, hard, growth)


def _below(trigger: Trigger, line: int) -> int:
    """The most that is not full yet."""
    return max(1, line - 1) if trigger.at_line else line


def _tail(keep: Keep, window: int, hard: int) -> int:
    if keep.tail_window:
        return int(keep.tail_window * window + _ROUNDING)
    return int(min(keep.tail_tokens, keep.tail_ratio * hard))


def _choose_reserve(trigger: Trigger, output: int, window: int) -> int:
    wanted = min(max(output, trigger.reserve_minimum), trigger.reserve_maximum)
    return int(min(wanted, trigger.reserve_ratio * window))


def _source_line(limits: Limits, trigger: Trigger, window: int) -> int:
    usable = usable_tokens(limits, trigger) or limits.input or window
    # An input limit as large as the window leaves no room for a reply; the line stays below all the same.
    return max(1, min(max(usable, int(_SMALLEST_USABLE_SHARE * window)), window - 1))


def _ratio_line(ratio: float, window: int, reserve: int) -> int:
    # What binary fractions lose is no token: 0.9 x 70,000 is 63,000.
    return max(1, min(int(ratio * window - reserve + _ROUNDING), window - 1))


def _hard_line(trigger: Trigger, window: int, reserve: int) -> int:
    start = trigger.client_margin_from
    at_start = start - trigger.client_margin
    if window >= start:
        clients = window - trigger.client_margin
    else:
        # Rounded down like the rest, or a soft line could fall by a token.
        clients = at_start - ceil(_SLOPE_BELOW_CLIENT_MARGIN * (start - window))
    clients = clients if clients > 0 else window
    return max(1, int(min(trigger.hard_ratio * window, window - reserve, clients)))


def _soft_line(trigger: Trigger, window: int, hard: int, growth: float) -> int:
    lead = max(trigger.growth_turns * growth, trigger.soft_minimum * window)
    return max(1, hard - int(min(lead, trigger.soft_maximum * window)))


def _target_line(trigger: Trigger, hard: int, floor: int) -> int:
    """A floor at or above the hard line leaves nothing to aim for: the hard line itself."""
    return max(1, min(hard, floor + int(trigger.target_ratio * max(0, hard - floor))))


# JOINED: Is the context window full? The formula of the source documents (000 §3.1, 001 phase 1).


def usable_tokens(limits: Limits, trigger: Trigger) -> int | None:
    """`input - input_reserve ?? context - min(output ?? cap, cap)`; None without a context limit: unlimited.

    May be negative: a cap on the output can be larger than a window.
    """
    if not limits.context:
        return None
    reply = min(limits.output or trigger.output_cap, trigger.output_cap)
    if not limits.input:
        return limits.context - reply
    reserve = trigger.input_reserve
    return limits.input - (min(trigger.reserve_maximum, reply) if reserve is None else reserve)
