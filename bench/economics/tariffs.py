"""The price tables that the bench compares by, and what a bill is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from gateway.core.money import Price
from gateway.replay.measuring import CacheKind, choose_cache
from gateway.replay.results import RequestRun

_TOKENS_PER_PRICE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Tariff:
    """A price table: US dollars for a million tokens."""

    name: str
    price: Price

    @property
    def cache(self) -> CacheKind:
        return choose_cache(self.price)

    @property
    def write(self) -> float:
        return self.price.input if self.price.cache_write is None else self.price.cache_write

    @property
    def read(self) -> float:
        return self.price.input if self.price.cached_input is None else self.price.cached_input


# The first two are published ones, of OpenAI and Anthropic.
TARIFFS: Final = (
    Tariff("OpenAI-like", Price(input=1.25, cached_input=0.125, output=10)),
    Tariff("Anthropic-like", Price(input=3, cache_write=3.75, cached_input=0.3, output=15)),
    Tariff("uncached", Price(input=1.25, output=10)),
)


@dataclass(frozen=True, slots=True)
class Bill:
    """US dollars."""

    # Prompts: read from the cache; sent for the first time; sent again, and not found in the cache.
    cached: float = 0.0
    new: float = 0.0
    again: float = 0.0
    replies: float = 0.0
    summary_input: float = 0.0
    summary_output: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.parts)

    @property
    def parts(self) -> tuple[float, ...]:
        return astuple(self)

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(*(left + right for left, right in zip(self.parts, other.parts, strict=True)))


PARTS: Final = (
    "cached reads",
    "new input",
    "sent again",
    "replies",
    "summary input",
    "summary output",
)


def make_bill(tariff: Tariff, runs: Sequence[RequestRun]) -> Bill:
    bill, before = Bill(), 0
    for run in runs:
        bill += _price_prompt(tariff, run, max(0, run.received - before))
        bill += Bill(replies=_usd(run.output, tariff.price.output)) + _price_calls(tariff, run)
        before = run.received
    return bill


def add_bills(bills: Iterable[Bill]) -> Bill:
    return sum(bills, Bill())


def _price_prompt(tariff: Tariff, run: RequestRun, added: int) -> Bill:
    """added: what the client has sent for the first time."""
    if tariff.cache == "none":
        new = min(run.sent, added)
        return Bill(new=_usd(new, tariff.price.input), again=_usd(run.sent - new, tariff.price.input))
    usage = run.usage
    read, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    fresh = run.sent - read - written if tariff.cache == "marked" else run.sent - read
    rest = _usd(fresh, tariff.price.input) + (
        _usd(written, tariff.write) if tariff.cache == "marked" else 0.0
    )
    share = min(1.0, added / max(1, run.sent - read))
    return Bill(cached=_usd(read, tariff.read), new=rest * share, again=rest * (1 - share))


def _price_calls(tariff: Tariff, run: RequestRun) -> Bill:
    given = taken = 0.0
    for call in run.calls:
        fresh = call.prompt_tokens - call.cached_tokens - call.written_tokens
        given += _usd(fresh, tariff.price.input) + _usd(call.cached_tokens, tariff.read)
        given += _usd(call.written_tokens, tariff.write)
        taken += _usd(call.output_tokens, tariff.price.output)
    return Bill(summary_input=given, summary_output=taken)


def _usd(tokens: float, price: float) -> float:
    return tokens * price / _TOKENS_PER_PRICE
