"""Is the context window full? The formula of the source documents (000 §3.1, 001 phase 1).

Knows nothing of messages: upstream counts better than we could guess.
"""

from gateway.core.limits import Limits
from gateway.core.policy import Trigger
from gateway.core.usage import Usage


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


def is_overflow(usage: Usage, limits: Limits, trigger: Trigger) -> bool:
    """Would the next call exceed the usable input? Cached tokens are in `usage` once."""
    usable = usable_tokens(limits, trigger)
    if usable is None:
        return False
    return usage.total >= usable if trigger.at_line else usage.total > usable
