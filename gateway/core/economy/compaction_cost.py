"""What a compaction costs, and when old messages have cost as much.

It is the ski rental problem: sending old messages again is the rent, a compaction buys them off. Who compacts
once the rent has reached the price never pays more than twice what would have been best, without knowing how
the conversation goes on; and if it grows evenly, this is the best. All in tokens of fresh input.
"""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

from gateway.core.economy.ledger import USUAL_SUMMARY_TOKENS
from gateway.core.economy.rates import Rates
from gateway.core.history.branch_ledger import BranchLedger

# The instruction at the end of a summary that rides (docs/economics.md).
_INSTRUCTION_TOKENS: Final = 250
# How many steps a model takes to find its way again after a compaction.
_LOST_STEPS: Final = 1.0
# A provider's cache counts as gone after so long. Most keep a prompt for 5 minutes to an hour; OpenAI's
# extended retention is longer (docs/economics.md).
COLD_SECONDS: Final = 3_600.0


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


def choose_smallest_batch(rates: Rates, prompt_tokens: float, growth_tokens: float) -> float:
    """M* = √(2·(w − r)·P·g / r): a smaller batch of pruned results breaks the cached prefix too often.

    Nothing is broken where nothing is cached. Where cached tokens cost nothing, no batch is large enough.
    """
    if rates.write <= rates.read:
        return 0.0
    if rates.read <= 0:
        return inf
    return sqrt(2 * (rates.write - rates.read) * prompt_tokens * growth_tokens / rates.read)


def is_pruning_cheaper(
    rates: Rates, sizes: CompactionSizes, saved_tokens: float, behind_tokens: float
) -> bool:
    """Whether pruning frees a token for less than a summary does.

    behind_tokens: A, everything from the first pruned result on. It is sent again.
    """
    if not sizes.folded:
        return True
    breaking = max(0.0, rates.write - rates.read) * behind_tokens
    return breaking * sizes.folded < count_compaction_cost(rates, sizes) * saved_tokens
