"""What requests and summaries cost, by tenant and by the price of the model.

A price has the name that it stands under: a pattern of the settings file, or a model of the bundled table. So
clients choose no label, and all models without a price share the empty one.
"""

from collections.abc import Callable

from gateway.activity.counting import NotedRequest, SummaryMoney
from gateway.core.sizing.usage import Usage
from gateway.reporting.metrics import definitions
from gateway.reporting.metrics.counts import Counts
from gateway.reporting.metrics.definitions import CounterDefinition


class MoneyCounts:
    def __init__(self, add_counter: Callable[[CounterDefinition], Counts]) -> None:
        self._spent = add_counter(definitions.SPENT_USD)
        self._saved = add_counter(definitions.SAVED_USD)
        self._compared = add_counter(definitions.COMPARED_USD)
        self._died = add_counter(definitions.CONVERSATIONS_DIED)
        self._summaries = add_counter(definitions.SUMMARY_USD)
        self._priced_tokens = add_counter(definitions.PRICED_TOKENS)
        self._priced_usd = add_counter(definitions.PRICED_USD)

    def note_request(self, tenant: str, noted: NotedRequest, usage: Usage | None) -> None:
        """An answered request. tenant: its name in the settings, or empty."""
        price = noted.price
        if noted.spent_usd:
            self._note_spent(tenant, price, noted.spent_usd)
        if noted.saved_usd is not None and noted.saved_usd > 0:
            self._saved.add((tenant,), noted.saved_usd)
        if noted.without_usd is not None:
            self._compared.add(("without", price, tenant), noted.without_usd)
            self._compared.add(("with", price, tenant), noted.with_usd or 0.0)
        if noted.has_died:
            self._died.add((tenant,))
        if usage is not None:
            self._note_tokens(price, usage)

    def note_summary(self, tenant: str, money: SummaryMoney) -> None:
        """tenant: as for `note_request`."""
        ways = (
            ("quoted", money.quoted_price, money.quoted_usd),
            ("riding", money.riding_price, money.riding_usd),
        )
        for way, price, usd in ways:
            if usd:
                self._summaries.add((way,), usd)
                self._priced_usd.add(("summaries", price), usd)
                self._note_own(tenant, price, usd, is_compared=money.is_compared)

    def _note_spent(self, tenant: str, price: str, usd: float) -> None:
        self._spent.add((tenant,), usd)
        self._priced_usd.add(("requests", price), usd)

    def _note_own(self, tenant: str, price: str, usd: float, *, is_compared: bool) -> None:
        if is_compared:
            self._compared.add(("with", price, tenant), usd)

    def _note_tokens(self, price: str, usage: Usage) -> None:
        tokens = self._priced_tokens
        tokens.add(("prompt", price), usage.prompt_tokens)
        tokens.add(("output", price), usage.output_tokens)
        if usage.cached_tokens:
            tokens.add(("cached", price), usage.cached_tokens)
        if usage.cache_write_tokens:
            tokens.add(("written", price), usage.cache_write_tokens)
