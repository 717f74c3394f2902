"""What requests would cost: as they came, as they are sent, and the summaries.

What a provider's cache has of a prompt that is sent is simulated (`prefix_cache`). Of the prompts as they
came, what two begin with in common is priced as read, and the rest as written, where the price list makes
that difference. A model without a price costs an unknown amount, not nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.core.money import Price, add_usd, count_usd
from gateway.core.sizing.usage import Usage
from gateway.replay.runs import RequestRun, SummaryCallRun


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars; None while no price is known."""

    received: float | None = None
    # Without the summaries.
    sent: float | None = None
    summaries: float | None = None
    # Requests of models without a price.
    unpriced: int = 0

    @property
    def total(self) -> float | None:
        return add_usd(self.sent, self.summaries)

    @property
    def saved(self) -> float | None:
        total = self.total
        return self.received - total if self.received is not None and total is not None else None


@dataclass(frozen=True, slots=True)
class Pricing:
    """model: in place of those of the requests, if it is given. Summaries that a policy has made by another
    model keep that one's price.
    """

    find: Callable[[str], Price | None]
    model: str | None = None

    def count(self, requests: Iterable[RequestRun]) -> Cost:
        received = sent = summaries = None
        unpriced = 0
        for each in requests:
            price = self.find(self.model or each.model)
            if price is None:
                unpriced += 1
                continue
            received = add_usd(received, _count(price, each.received, each.received_cached, each.output))
            sent = add_usd(sent, count_usd(price, make_usage(each)))
            for call in each.calls:
                own = self.find(call.model) if call.model != each.model else None
                summaries = add_usd(summaries, count_usd(own or price, make_call_usage(call)))
        return Cost(received, sent, summaries, unpriced)


def make_usage(run: RequestRun) -> Usage:
    """Of a request as it is sent. Without a simulated cache: what it shares with the one before is read."""
    if run.cache_read is None:
        return Usage(run.sent, run.output, run.sent_cached, run.sent - run.sent_cached)
    return Usage(run.sent, run.output, run.cache_read, run.cache_written)


def make_call_usage(call: SummaryCallRun) -> Usage:
    return Usage(call.prompt_tokens, call.output_tokens, call.cached_tokens, call.written_tokens)


def _count(price: Price, prompt: int, cached: int, output: int) -> float:
    return count_usd(price, Usage(prompt, output, cached, prompt - cached))
