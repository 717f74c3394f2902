"""Policies side by side: the sums of each, and which one did best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.replay.money import Cost, Pricing
from gateway.replay.playing import PlayedSource
from gateway.replay.runs import RequestRun, Sums, add_up

# Without prices: what providers ask for tokens from a cache, and for those of a reply, beside others.
_CACHED_SHARE: Final = 0.1
_OUTPUT_FACTOR: Final = 5


@dataclass(frozen=True, slots=True)
class Result:
    """What came of some requests under one policy."""

    policy: str
    sums: Sums
    cost: Cost

    @property
    def weight(self) -> float:
        """Tokens that have to be paid for, in tokens of a prompt that no cache has."""
        sums = self.sums
        fresh = sums.sent - (1 - _CACHED_SHARE) * sums.sent_cached
        return fresh + sums.call_prompt + _OUTPUT_FACTOR * sums.call_output

    @property
    def rank(self) -> tuple[int, float]:
        """The smallest is the best: fewest requests beyond the window, then least money."""
        total = self.cost.total
        return self.sums.too_large, total if total is not None else self.weight


def make_result(policy: str, requests: Sequence[RequestRun], pricing: Pricing) -> Result:
    return Result(policy, add_up(requests), pricing.count(requests))


def compare(sources: Sequence[PlayedSource], policies: Sequence[str], pricing: Pricing) -> list[Result]:
    """The sums of all recordings under each policy."""
    return [
        make_result(
            name,
            [run for source in sources if source.played for run in source.played[place].requests],
            pricing,
        )
        for place, name in enumerate(policies)
    ]


def find_best(results: Sequence[Result]) -> int | None:
    """The place of the best; None if there is nothing to choose from."""
    if len(results) < 2:
        return None
    ranks = [result.rank for result in results]
    return ranks.index(min(ranks))
