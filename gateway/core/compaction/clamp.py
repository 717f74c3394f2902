"""How long may the reply be? Upstreams refuse `prompt + requested output > window`.

Clamping beats compacting at half a window because a client asked for 32,000 tokens (DESIGN §4).
"""

from gateway.core.limits.thresholds import cap_minimum_reply
from gateway.core.sizing.estimate import Estimate

# Never clamp below this: a shorter reply is no use to an agent.
SMALLEST_REPLY_TOKENS = 1_024
# Chat templates and hidden turns that no estimate sees.
_SLACK_TOKENS = 64


def choose_output(
    requested: int | None, context: int | None, estimate: Estimate, least: int = 0
) -> int | None:
    """The number to put in the request instead, or None where the one that stands there fits.

    Never raised, never below SMALLEST_REPLY_TOKENS or `least` (see `honour_least`); nothing where no number
    was sent.
    """
    if requested is None or context is None:
        return None
    left = context - estimate.tokens - estimate.unsure - _SLACK_TOKENS
    if requested <= left:
        return None
    clamped = min(requested, max(left, SMALLEST_REPLY_TOKENS, cap_minimum_reply(least, context)))
    return clamped if clamped < requested else None
