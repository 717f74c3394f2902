"""What requests would cost."""

import pytest

from gateway.activity.prices import PriceList
from gateway.core.money import Price
from gateway.replay.money import Pricing
from gateway.replay.runs import SummaryCallRun
from tests.replay.samples import MODEL, PRICING, make_run

_MILLION = 1_000_000


def test_cached_parts_are_cheaper_and_the_reply_is_paid_on_both_sides() -> None:
    run = make_run(
        received=_MILLION, sent=_MILLION // 2, received_cached=_MILLION, sent_cached=0, output=_MILLION
    )
    cost = PRICING.count([run])
    assert cost.received == pytest.approx(0.1 + 5)
    assert cost.sent == pytest.approx(0.5 + 5)
    assert cost.saved == pytest.approx(-0.4)
    assert (cost.summaries, cost.unpriced) == (None, 0)


def test_what_is_not_cached_is_written_to_the_cache_where_that_has_a_price() -> None:
    pricing = Pricing(PriceList((), {MODEL: Price(input=1, cached_input=0, cache_write=2, output=0)}).find)
    assert pricing.count([make_run(received=_MILLION, sent=_MILLION)]).received == pytest.approx(2)


def test_summaries_have_the_price_of_the_model_that_makes_them() -> None:
    prices = {MODEL: Price(input=1, output=1), "cheap": Price(input=0.5, output=0)}
    calls = (SummaryCallRun(MODEL, _MILLION, 0), SummaryCallRun("cheap", _MILLION, 0))
    cost = Pricing(PriceList((), prices).find).count([make_run(calls=calls)])
    assert cost.summaries == pytest.approx(1.5)
    assert cost.total == pytest.approx(1.501)


def test_a_named_model_takes_the_place_of_those_of_the_recording() -> None:
    pricing = Pricing(PRICING.find, MODEL)
    assert pricing.count([make_run(model="nobody-knows", received=_MILLION)]).received == pytest.approx(1)


def test_a_model_without_a_price_costs_an_unknown_amount() -> None:
    cost = PRICING.count([make_run(model="nobody-knows")])
    assert (cost.received, cost.total, cost.saved, cost.unpriced) == (None, None, None, 1)
