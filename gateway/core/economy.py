"""What a token costs beside another, and when carrying old messages has cost more than folding them.

A compaction is the ski rental problem: sending old messages again is the rent, a compaction buys them off.
Who compacts once the rent has reached the price never pays more than twice what would have been best, without
knowing how the conversation goes on; and if it grows evenly, this is the best. All in tokens of fresh input.

Knows prices as ratios and sizes in tokens, but no clock, and no provider.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.history.head import BranchLedger, Head
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage

# Where no price is known: what most providers ask (docs/economics.md).
_USUAL_READ: Final = 0.1
_USUAL_OUTPUT: Final = 8.0
# No published minimum of a prompt that is cached is larger (docs/economics.md).
_LONGEST_MINIMUM_TOKENS: Final = 4_096
# What models write if they are not told a length.
USUAL_SUMMARY_TOKENS: Final = 1_500
# The instruction at the end of a summary that rides (docs/economics.md).
_INSTRUCTION_TOKENS: Final = 250
# How many steps a model takes to find its way again after a compaction.
_LOST_STEPS: Final = 1.0
# A provider's cache counts as gone after so long. Most keep a prompt for 5 minutes to an hour; OpenAI's
# extended retention is longer (docs/economics.md).
COLD_SECONDS: Final = 3_600.0


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


# Not frozen: one is made for every response, and a frozen dataclass takes six times as long to construct.
@dataclass(kw_only=True, slots=True)
class AnsweredTurn:
    """A response whose upstream reported its usage. Tokens."""

    usage: Usage
    # Of the active pivot: the key under which it was made, which its copies share, and what stands for the
    # messages that it covers.
    pivot: str | None
    pivot_tokens: int
    # What no compaction replaces: everything up to the end of the opening.
    fixed_tokens: float
    # The usual tail.
    tail_tokens: int


def shows_cache(usage: Usage) -> bool:
    return bool(usage.cached_tokens or usage.cache_write_tokens)


def note_response(
    before: BranchLedger | None, answered: AnsweredTurn, rates: Rates, now_seconds: float
) -> BranchLedger:
    """The ledger after a response.

    Whatever is beyond the prompt of right after the last compaction would not have been sent if there had
    been another one since: it pays the rent of a token that is read again. A pivot that has taken effect
    begins anew, from the prompt that it made.
    """
    before = before or BranchLedger()
    usage, prompt_tokens = answered.usage, answered.usage.prompt_tokens
    is_cached = shows_cache(usage)
    is_long = prompt_tokens >= _LONGEST_MINIMUM_TOKENS
    is_news = answered.pivot != before.pivot
    summary_tokens = before.summary_tokens
    if is_news and answered.pivot is not None:
        summary_tokens = _smooth(summary_tokens, answered.pivot_tokens)
        base_tokens, rent_tokens = float(prompt_tokens), 0.0
    elif is_news or not before.base_tokens:
        usual = summary_tokens or USUAL_SUMMARY_TOKENS
        base_tokens, rent_tokens = answered.fixed_tokens + usual + answered.tail_tokens, 0.0
    else:
        base_tokens = before.base_tokens
        rent_tokens = before.rent_tokens + rates.read * max(0.0, prompt_tokens - base_tokens)
    return BranchLedger(
        answered_seconds=now_seconds,
        has_cached=before.has_cached or is_cached,
        is_uncached=not is_cached if is_cached or is_long else before.is_uncached,
        rent_tokens=rent_tokens,
        is_due=before.is_due and not is_news,
        base_tokens=base_tokens,
        pivot=answered.pivot,
        summary_tokens=summary_tokens,
        reply_tokens=_smooth(before.reply_tokens, usage.output_tokens),
    )


def find_ledger(head: Head | None, scope: str) -> BranchLedger | None:
    """What a head knows that holds for a request of this scope.

    What was seen of a cache is that of one upstream and model.
    """
    ledger = head.ledger if head is not None else None
    if head is None or ledger is None or head.scope == scope:
        return ledger
    return replace(ledger, has_cached=False, is_uncached=False)


def pass_on_ledger(head: Head | None, scope: str) -> BranchLedger | None:
    """The same, for a head that continues this one without a response of its own.

    It has another prefix, of which no cache knows yet.
    """
    ledger = find_ledger(head, scope)
    return replace(ledger, answered_seconds=0.0) if ledger is not None else None


def pay_rent(ledger: BranchLedger) -> BranchLedger:
    """A compaction begins, and is wanted once it is ready. If it fails, as much rent has to come together
    again before the next one.
    """
    return replace(ledger, rent_tokens=0.0, is_due=True)


def _smooth(before: float, now: float) -> float:
    return (before + now) / 2 if before else float(now)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionSizes:
    """Tokens of a conversation, by the letters of the formula."""

    # P: the last prompt.
    prompt: float
    # B: the prompt right after a compaction.
    base: float
    # T: the tail.
    tail: float
    # s: a summary.
    summary: float
    # g and a: growth and reply of a step.
    growth: float
    reply: float
    # Whether a summary may be asked for at the end of the conversation's own request.
    may_ride: bool = True

    @property
    def folded(self) -> float:
        """F: what a compaction replaces."""
        return max(0.0, self.prompt - self.base)


def size_up(
    ledger: BranchLedger, prompt_tokens: float, tail_tokens: float, growth_tokens: float
) -> CompactionSizes:
    """As if summaries ride. ledger: one that knows its base."""
    return CompactionSizes(
        prompt=prompt_tokens,
        base=ledger.base_tokens,
        tail=tail_tokens,
        summary=ledger.summary_tokens or USUAL_SUMMARY_TOKENS,
        growth=growth_tokens,
        reply=ledger.reply_tokens,
    )


def count_compaction_cost(rates: Rates, sizes: CompactionSizes) -> float:
    """C = min(r·P + 250·f + o·s, f·(F + s) + o·s) + (w − r)·(s + T) + λ·(w·g + o·a + r·B), with f = 1.

    r, w, o: a cached token, one that is written to the cache, one of a reply (`Rates`). The cheaper of a
    summary that rides and one that quotes; what is sent again behind it; and λ steps that the model needs to
    find its way again.
    """
    ridden = rates.read * sizes.prompt + _INSTRUCTION_TOKENS
    quoted = sizes.folded + sizes.summary
    call = min(ridden, quoted) if sizes.may_ride and rates.caches else quoted
    written_again = max(0.0, rates.write - rates.read) * (sizes.summary + sizes.tail)
    step = rates.write * sizes.growth + rates.output * sizes.reply + rates.read * sizes.base
    return call + rates.output * sizes.summary + written_again + _LOST_STEPS * step


def is_due(economy: float, ledger: BranchLedger, rates: Rates, sizes: CompactionSizes) -> bool:
    """economy: κ, how many times the price the rent must reach; 0 for never."""
    if not economy or not sizes.folded or rates.is_free:
        return False
    return ledger.rent_tokens >= economy * count_compaction_cost(rates, sizes)
