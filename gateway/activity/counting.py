"""Adds requests and summaries to the sums of a conversation: what they used and cost, and what they would
have cost without the gateway. Called for each request, so it only counts.
"""

from typing import Final, NamedTuple

from gateway.activity.record import ConversationActivity
from gateway.activity.series import PrefixChange, RequestPoint
from gateway.activity.unshortened import Prior, follow
from gateway.core.compaction.request import CompactionResult
from gateway.core.money import Price, add_usd, count_saved_usd, count_usd
from gateway.core.sizing.usage import Usage, subtract_usage

# No prompt is so large: an upstream that says so is not believed.
_MOST_TOKENS: Final = 10**10


class NotedRequest(NamedTuple):
    """What one request added: for metrics."""

    change: PrefixChange | None
    # None while the price of the model is not known, or the upstream reported no usage.
    spent_usd: float | None
    saved_usd: float | None
    # What it would have cost without the gateway, and what is compared with that: of the first request with
    # everything that was spent before it. None if that is not known, and from the request on that would not
    # have fit its window any more.
    without_usd: float | None = None
    with_usd: float | None = None
    # Whether it is that request.
    has_died: bool = False
    # The name of the model's price; empty if there is none.
    price: str = ""
    # Whether it is the first one that was sent with its summary.
    brings_into_use: bool = False


class SummaryMoney(NamedTuple):
    """What summary calls cost, in US dollars; None if it is not known."""

    quoted_usd: float | None = None
    riding_usd: float | None = None
    # The names of both prices; empty for one that is not known.
    quoted_price: str = ""
    riding_price: str = ""
    # Whether they count beside what the conversation would have cost without the gateway.
    is_compared: bool = False

    @property
    def usd(self) -> float | None:
        return add_usd(self.quoted_usd, self.riding_usd)


def trust_usage(usage: Usage | None) -> Usage | None:
    """None for usage that no model can have."""
    return usage if usage is not None and usage.total <= _MOST_TOKENS else None


def count_request(
    activity: ConversationActivity,
    point: RequestPoint,
    usage: Usage | None,
    prior: Prior,
    price: Price | None,
) -> NotedRequest:
    totals = activity.totals
    saved_tokens = point.received - point.sent
    totals.requests += 1
    totals.received_tokens += point.received
    totals.sent_tokens += point.sent
    totals.saved_tokens += saved_tokens
    if point.change is not None:
        totals.count_break(point.change)
    saved_usd = None
    if price is not None:
        # Whether the upstream has ever reported cached tokens.
        is_cached = bool(totals.cached_tokens or (usage is not None and usage.cached_tokens))
        saved_usd = count_saved_usd(price, saved_tokens, is_cached=is_cached)
        totals.saved_usd = add_usd(totals.saved_usd, saved_usd)
    name = price.name if price is not None else ""
    noted = NotedRequest(point.change, None, saved_usd, price=name)
    return noted if usage is None else _count_usage(activity, point, usage, prior, price, noted)


def count_summary(
    activity: ConversationActivity, result: CompactionResult, price: Price | None, own_price: Price | None
) -> SummaryMoney:
    """price: of the model that was asked last. own_price: of the conversation's model, which riding calls
    ask.
    """
    totals, usage = activity.totals, trust_usage(result.usage)
    totals.summary_calls += result.calls
    totals.riding_calls += result.riding_calls
    if usage is None:
        return SummaryMoney()
    totals.summary_prompt_tokens += usage.prompt_tokens
    totals.summary_cached_tokens += usage.cached_tokens or 0
    totals.summary_output_tokens += usage.output_tokens
    money = _price_summary(result, usage, price, own_price)
    totals.summary_usd = add_usd(totals.summary_usd, money.usd)
    totals.riding_usd = add_usd(totals.riding_usd, money.riding_usd)
    return money._replace(is_compared=_add_own_usd(activity, money.usd))


def _price_summary(
    result: CompactionResult, usage: Usage, price: Price | None, own_price: Price | None
) -> SummaryMoney:
    riding, money = result.riding_usage, SummaryMoney()
    if riding is not None:
        usage = subtract_usage(usage, riding)
        if own_price is not None:
            money = SummaryMoney(riding_usd=count_usd(own_price, riding), riding_price=own_price.name)
    if price is not None and result.riding_calls < result.calls:
        money = money._replace(quoted_usd=count_usd(price, usage), quoted_price=price.name)
    return money


def _count_usage(
    activity: ConversationActivity,
    point: RequestPoint,
    usage: Usage,
    prior: Prior,
    price: Price | None,
    noted: NotedRequest,
) -> NotedRequest:
    """What the request cost, and what it would have cost without the gateway."""
    totals, had_died = activity.totals, activity.unshortened.died_at
    totals.prompt_tokens += usage.prompt_tokens
    totals.cached_tokens += usage.cached_tokens or 0
    totals.cache_write_tokens += usage.cache_write_tokens or 0
    totals.output_tokens += usage.output_tokens
    after, unshortened = follow(activity.unshortened, point, usage, prior, totals.requests)
    activity.unshortened = after
    spent_usd = without_usd = None
    if price is not None:
        spent_usd = count_usd(price, usage)
        totals.spent_usd = add_usd(totals.spent_usd, spent_usd)
    if price is not None and unshortened is not None:
        without_usd = count_usd(price, unshortened)
        totals.compared_requests += 1
        totals.without_usd = add_usd(totals.without_usd, without_usd)
        is_first = totals.compared_requests == 1
        _add_own_usd(activity, spent_usd)
        noted = noted._replace(with_usd=totals.with_usd if is_first else spent_usd)
    has_died = unshortened is None and not had_died
    return noted._replace(spent_usd=spent_usd, without_usd=without_usd, has_died=has_died)


def _add_own_usd(activity: ConversationActivity, usd: float | None) -> bool:
    """To what the conversation costs with the gateway. False if there is nothing to compare it with: not any
    more, or not yet.
    """
    if activity.unshortened.died_at:
        return False
    activity.totals.with_usd = add_usd(activity.totals.with_usd, usd)
    return activity.totals.compared_requests > 0
