"""What a provider's cache has of a prompt: simulated by the rules that providers publish.

An automatic cache reuses what a prompt begins with in common with the one before it, in steps of 128 tokens,
from 1,024 tokens on. A marked cache keeps prompts up to the places where the client put a `cache_control`,
and asks extra for writing them. Nothing is ever forgotten: a recording has no pauses.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from gateway.core.money import Price
from gateway.core.sizing.usage import Usage

CacheKind = Literal["none", "automatic", "marked"]

LEAST_TOKENS: Final = 1_024
STEP_TOKENS: Final = 128


class CacheUse(NamedTuple):
    """Tokens of a prompt that were read from the cache, and written to it. None: the provider has none.

    ends: of the prefixes that a marked cache keeps.
    """

    read: int | None = None
    written: int | None = None
    ends: tuple[int, ...] = ()

    def make_usage(self, prompt: int, output: int) -> Usage:
        return Usage(prompt, output, self.read, self.written)


NOT_CACHED: Final = CacheUse()


def choose_cache(price: Price | None) -> CacheKind:
    """By what a provider asks for. Without a known price: automatic, as most are."""
    if price is None:
        return "automatic"
    if price.cache_write is not None:
        return "marked"
    has_cache = price.cached_input is not None and price.cached_input < price.input
    return "automatic" if has_cache else "none"


def use_cache(
    kind: CacheKind, prompt: int, shared: int, kept: Sequence[int], marked: Sequence[int]
) -> CacheUse:
    """shared: what it begins with in common with the prompt before, which left the prefixes `kept`.

    marked: the ends of its own prefixes with a mark.
    """
    if kind == "none":
        return NOT_CACHED
    if kind == "automatic":
        read = min(shared, prompt) // STEP_TOKENS * STEP_TOKENS
        return CacheUse(read if read >= LEAST_TOKENS else 0)
    valid = [end for end in kept if end <= min(shared, prompt)]
    read = max((end for end in valid if marked and end <= max(marked)), default=0)
    ends = sorted({*valid, *(end for end in marked if end >= LEAST_TOKENS)})
    return CacheUse(read, max(0, max(ends, default=0) - read) if marked else 0, tuple(ends))
