"""What the kinds of tokens cost, relative to a token of fresh input."""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage

# Where no price is known: what most providers ask (docs/economics.md).
_USUAL_READ: Final = 0.1
_USUAL_OUTPUT: Final = 8.0


@dataclass(frozen=True, slots=True)
class Rates:
    """write, read: a token of the prompt that the provider writes to its cache, or reads from it."""

    write: float = 1.0
    read: float = 1.0
    output: float = _USUAL_OUTPUT
    # The model costs nothing: then these are only guesses, and nothing is saved.
    is_free: bool = False
    # No price is known.
    is_guessed: bool = False

    @property
    def caches(self) -> bool:
        """Whether a token that was sent before is cheaper than a new one."""
        return self.read < 1.0

    def weigh(self, usage: Usage) -> float:
        """What a call cost, in tokens of fresh input. What usage does not report as cached was not."""
        read, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        fresh = max(0, usage.prompt_tokens - read - written)
        return fresh + self.read * read + self.write * written + self.output * usage.output_tokens


UNCACHED: Final = Rates()


def choose_rates(price: Price | None, ledger: BranchLedger | None = None) -> Rates:
    """ledger: what the branch knows of its upstream's cache.

    Where no price is known, reported cached tokens tell that there is a cache. Where writing to the cache has
    a price of its own (Anthropic), the client asks for it with marks: a long prompt that was neither read
    from it nor written to it had none.
    """
    if price is None or not price.input:
        has_cached = ledger is not None and ledger.has_cached
        read = _USUAL_READ if has_cached else 1.0
        return Rates(read=read, is_free=price is not None, is_guessed=True)
    output = price.output / price.input
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    if written > price.input and ledger is not None and ledger.is_uncached:
        return Rates(output=output)
    return Rates(written / price.input, min(1.0, cached / price.input), output)


def with_cache(rates: Rates) -> Rates:
    """Once a cache has shown. A known price does not change by that."""
    return replace(rates, read=_USUAL_READ) if rates.is_guessed else rates
