"""Is the context window full? The formula of the source documents (000 §3.1, 001 phase 1).

Knows nothing of messages: upstream counts better than we could guess.
"""

from gateway.core.limits import Limits
from gateway.core.usage import Usage


def usable_tokens(limits: Limits, output_cap: int) -> int | None:
    """`input ?? context - min(output ?? cap, cap)`; None without a context limit: unlimited."""
    if not limits.context:
        return None
    return limits.input or limits.context - min(limits.output or output_cap, output_cap)


def is_overflow(usage: Usage, limits: Limits, output_cap: int) -> bool:
    """Would the next call exceed the usable input? Cached tokens are in `usage` once."""
    usable = usable_tokens(limits, output_cap)
    return usable is not None and usage.total > usable
