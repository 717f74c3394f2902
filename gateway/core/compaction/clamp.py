"""How long the reply may be. Upstreams refuse requests with `prompt + requested output > window`.

Clamping the requested output is better than compacting at half a window because a client asked for 32,000
tokens.
"""

from typing import Final

from gateway.core.limits.thresholds import cap_minimum_reply
from gateway.core.sizing.estimate import Estimate

# A shorter reply is of no use to an agent.
SMALLEST_REPLY_TOKENS: Final = 1_024
# Room for chat templates and hidden turns, which no estimate includes.
SLACK_TOKENS: Final = 64


def choose_output(
    requested: int | None, context: int | None, estimate: Estimate, minimum_reply: int = 0
) -> int | None:
    """The number of tokens to request instead; None if the request needs no change or has no number.

    It is never above the requested one, nor below SMALLEST_REPLY_TOKENS or `minimum_reply`
    (`cap_minimum_reply`).
    """
    if requested is None or context is None:
        return None
    left = context - estimate.tokens - estimate.unsure - SLACK_TOKENS
    if requested <= left:
        return None
    clamped = max(left, find_least_output(requested, context, minimum_reply))
    return clamped if clamped < requested else None


def find_least_output(requested: int | None, context: int, minimum_reply: int = 0) -> int:
    """The shortest reply that may be requested instead. What the client asks for is enough."""
    least = max(SMALLEST_REPLY_TOKENS, cap_minimum_reply(minimum_reply, context))
    return min(requested or least, least)
