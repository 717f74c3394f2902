"""What the kinds of tokens cost, relative to a token of fresh input."""

from dataclasses import dataclass
from typing import Final

from gateway.core.money import Price

# Where no price is known: what most providers ask (docs/economics.md).
_USUAL_READ: Final = 0.1
_USUAL_OUTPUT: Final = 8.0


@dataclass(frozen=True, slots=True)
class Rates:
    """write, read: a token of the prompt that the provider writes to its cache, or reads from it."""

    write: float = 1.0
    read: float = 1.0
    output: float = _USUAL_OUTPUT

    @property
    def caches(self) -> bool:
        """Whether a token that was sent before is cheaper than a new one."""
        return self.read < 1.0


def choose_rates(price: Price | None, *, has_cached: bool) -> Rates:
    """has_cached: whether the upstream has reported cached tokens. It counts where no price is known."""
    if price is None or not price.input:
        return Rates(read=_USUAL_READ if has_cached else 1.0)
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    return Rates(written / price.input, min(1.0, cached / price.input), price.output / price.input)
