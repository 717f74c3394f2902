"""What requests would cost: as they came, as they are sent, and the summaries.

What two prompts begin with in common is priced as read from the provider's cache, and the rest as written to
it, where the price list makes that difference. A model without a price costs an unknown amount, not nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.core.money import Price, add_usd, count_usd
from gateway.core.sizing.usage import Usage
from gateway.replay.runs import RequestRun


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
            sent = add_usd(sent, _count(price, each.sent, each.sent_cached, each.output))
            for call in each.calls:
                own = self.find(call.model) if call.model != each.model else None
                usd = count_usd(own or price, Usage(call.prompt_tokens, call.output_tokens))
                summaries = add_usd(summaries, usd)
        return Cost(received, sent, summaries, unpriced)


def _count(price: Price, prompt: int, cached: int, output: int) -> float:
    return count_usd(price, Usage(prompt, output, cached, prompt - cached))
