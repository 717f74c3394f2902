"""What a conversation cost with the gateway, and what it would have cost without it."""

from dataclasses import replace

import pytest

from gateway.activity.book import ActivityBook
from gateway.activity.counting import trust_usage
from gateway.activity.economics import make_economics
from gateway.activity.record import Totals
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.compaction.summary import Rejected
from gateway.core.limits.model_limits import Limits
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from tests.activity.talk import make_book, plan, receive, turn
from tests.builders.chat import make_pivot

_PRICE = Price(input=10, cached_input=1, cache_write=20, output=100, name="toy-price")
_PIVOT = make_pivot(receive().conversation, 5)
_REQUEST = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=3)
_TURN = turn(limits=Limits(context=128_000))


def make_priced_book() -> ActivityBook:
    book = make_book()
    book.use_prices(lambda model, *_: _PRICE if model == "toy" else None)
    return book


def find_totals(book: ActivityBook) -> Totals:
    activity = book.find("c")
    assert activity is not None
    return activity.totals


def test_requests_that_are_sent_as_they_came_cost_the_same_without_the_gateway() -> None:
    book = make_priced_book()
    noted = book.note_request(_TURN, plan(), Usage(50_000, 100, 40_000, 5_000))
    assert noted.spent_usd == noted.without_usd == pytest.approx((5 * 10 + 40 + 5 * 20 + 10) / 1000)
    totals = find_totals(book)
    assert (totals.with_usd, totals.without_usd) == (noted.spent_usd, noted.without_usd)
    assert (totals.cached_tokens, totals.cache_write_tokens) == (40_000, 5_000)


def test_money_is_compared_until_the_request_that_would_not_have_fit() -> None:
    book = make_priced_book()
    book.note_request(_TURN, plan(), Usage(100_000, 0))
    summary = CompactionResult(_PIVOT, 1, "toy", 0, Usage(10_000, 0))
    book.note_compaction(_TURN, summary, _REQUEST, seconds=1, post_tokens=0)
    second = book.note_request(_TURN, plan(120_200, 20_200, _PIVOT), Usage(20_000, 0))
    third = book.note_request(_TURN, plan(140_200, 20_200, _PIVOT), Usage(20_000, 0))
    later = book.note_request(_TURN, plan(30_000, 20_000, _PIVOT), Usage(20_000, 0))
    book.note_compaction(_TURN, summary, _REQUEST, seconds=1, post_tokens=0)
    assert second.without_usd == pytest.approx(1.2) and not second.has_died
    assert (third.without_usd, third.has_died) == (None, True)
    assert (later.without_usd, later.has_died) == (None, False)
    totals, activity = find_totals(book), book.find("c")
    assert activity is not None and activity.unshortened.died_at == 3
    assert totals.compared_requests == 2
    assert totals.with_usd == pytest.approx(1.0 + 0.1 + 0.2)
    assert totals.without_usd == pytest.approx(1.0 + 1.2)
    assert totals.spent_usd == pytest.approx(1.6) and totals.summary_usd == pytest.approx(0.2)


def test_what_has_no_price_is_not_compared() -> None:
    book = make_book()
    assert book.note_request(_TURN, plan(300, 100), Usage(10_000, 0)).without_usd is None
    totals = find_totals(book)
    assert (totals.compared_requests, totals.with_usd, totals.without_usd) == (0, None, None)


@pytest.mark.parametrize(
    ("riding_calls", "riding", "quoted_usd", "riding_usd"),
    [
        (0, None, 0.15, None),
        (2, Usage(15_000, 0), None, 0.15),
        (1, Usage(8_000, 0, 8_000), 0.07, 0.008),
        # It reported nothing.
        (1, None, 0.15, None),
    ],
)
def test_money_of_riding_and_of_quoted_summaries_is_told_apart(
    riding_calls: int, riding: Usage | None, quoted_usd: float | None, riding_usd: float | None
) -> None:
    book = make_priced_book()
    result = CompactionResult(Rejected("empty"), 2, "toy", usage=Usage(15_000, 0))
    result = replace(result, riding_calls=riding_calls, riding_usage=riding)
    money = book.note_summary_calls(_TURN, result)
    assert money.quoted_usd == (pytest.approx(quoted_usd) if quoted_usd is not None else None)
    assert money.riding_usd == (pytest.approx(riding_usd) if riding_usd is not None else None)
    totals = find_totals(book)
    assert (totals.summary_calls, totals.riding_calls) == (2, riding_calls)
    assert totals.riding_usd == money.riding_usd and totals.summary_usd == money.usd


def test_a_summary_has_the_price_of_the_upstream_that_was_asked_and_a_riding_one_its_conversations() -> None:
    prices = {
        ("small", "cheap"): Price(input=1, output=0, name="cheap"),
        ("small", _TURN.upstream.name): Price(input=99, output=0, name="dear"),
        ("toy", _TURN.upstream.name): Price(input=10, output=0, name="own"),
    }
    book = make_book()
    book.use_prices(lambda model, upstream=None, _="": prices.get((model, upstream or "")))
    result = CompactionResult(
        *(_PIVOT, 2, "small"),
        usage=Usage(1_500_000, 0),
        riding_calls=1,
        riding_usage=Usage(500_000, 0),
        upstream="cheap",
    )
    money = book.note_summary_calls(_TURN, result)
    assert (money.quoted_usd, money.quoted_price) == (1.0, "cheap")
    assert (money.riding_usd, money.riding_price) == (5.0, "own")


def test_summaries_are_compared_only_beside_requests_that_are() -> None:
    book = make_priced_book()
    summary = CompactionResult(_PIVOT, 1, "toy", usage=Usage(10_000, 0))
    first = book.note_summary_calls(_TURN, summary)
    book.note_request(_TURN, plan(), None)
    activity = book.find("c")
    assert activity is not None and make_economics(activity).with_usd is None and not first.is_compared
    # From the first one on, with everything that was spent before.
    noted = book.note_request(_TURN, plan(), Usage(20_000, 0))
    assert noted.spent_usd == 0.2 and noted.with_usd == pytest.approx(0.3)
    assert make_economics(activity).with_usd == pytest.approx(0.3)
    assert book.note_request(_TURN, plan(), Usage(20_000, 0)).with_usd == 0.2
    assert book.note_summary_calls(_TURN, summary).is_compared


def test_calls_of_a_model_that_searched_count_on_the_side_of_the_gateway() -> None:
    book = make_priced_book()
    money = book.note_recall_call(_TURN, Usage(10_000, 0, None, 4_000))
    assert (money.price, money.is_compared) == ("toy-price", False)
    totals = find_totals(book)
    assert totals.with_usd == totals.spent_usd == pytest.approx(0.14)
    assert (totals.cache_write_tokens, totals.without_usd) == (4_000, None)


def test_usage_that_no_model_can_have_is_not_trusted() -> None:
    assert trust_usage(Usage(10**30, 1)) is None and trust_usage(None) is None
    assert trust_usage(Usage(10, 1)) == Usage(10, 1)
