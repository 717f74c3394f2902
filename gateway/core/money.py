"""What tokens cost, in US dollars. Knows no model.

Tokens are those that an upstream reported; nothing here guesses them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

from gateway.core.sizing.usage import Usage

_TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars for a million tokens. None: the upstream makes no difference to `input`."""

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    # Under which it was found: a pattern of the settings, or a name of the bundled table.
    name: str = field(default="", compare=False)


def render_price(price: Price) -> dict[str, float | None]:
    """By the names that a rule of the settings gives them."""
    return {
        "input": price.input,
        "cached": price.cached_input,
        "write": price.cache_write,
        "output": price.output,
    }


def count_usd(price: Price, usage: Usage) -> float:
    """What one request cost. Reported cached tokens count as a part of the prompt."""
    cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
    written = min(usage.cache_write_tokens or 0, usage.prompt_tokens - cached)
    cached_input = price.input if price.cached_input is None else price.cached_input
    cache_write = price.input if price.cache_write is None else price.cache_write
    total = (usage.prompt_tokens - cached - written) * price.input
    total += cached * cached_input + written * cache_write + usage.output_tokens * price.output
    return total / _TOKENS_PER_PRICE


def count_saved_usd(price: Price, tokens: int, *, is_cached: bool) -> float:
    """What tokens of a prompt would have cost. is_cached: whether the upstream would have had most of them in
    its cache.
    """
    per_million = price.cached_input if is_cached and price.cached_input is not None else price.input
    return tokens * per_million / _TOKENS_PER_PRICE


def add_usd(left: float | None, right: float | None) -> float | None:
    """None only if neither is known."""
    if left is None or right is None:
        return right if left is None else left
    return left + right


def sum_usd(each: Iterable[float | None]) -> float | None:
    """None only if none is known."""
    return reduce(add_usd, each, None)
