"""What a token of each kind costs, and when a compaction pays."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.economy import (
    UNCACHED,
    AnsweredTurn,
    CompactionSizes,
    Rates,
    choose_rates,
    count_compaction_cost,
    find_ledger,
    is_due,
    note_response,
    pass_on_ledger,
    pay_rent,
    size_up,
    with_cache,
)
from gateway.core.history.head import BranchLedger
from gateway.core.money import Price, add_usd, count_saved_usd, sum_usd
from gateway.core.sizing.usage import Usage, add_usage, subtract_usage
from tests.decisions.builders import head_after

_OPENAI = Rates(write=1.0, read=0.1, output=8.0)
_SIZES = CompactionSizes(
    prompt=60_000, base=30_000, tail=14_000, summary=1_500, growth=1_500, reply=300, may_ride=True
)


def test_a_ridden_summary_reads_the_prompt_from_the_cache() -> None:
    call = 0.1 * 60_000 + 250 + 8 * 1_500
    again = 0.9 * (1_500 + 14_000)
    step = 1_500 + 8 * 300 + 0.1 * 30_000
    assert count_compaction_cost(_OPENAI, _SIZES) == pytest.approx(call + again + step)


def test_a_quoted_summary_reads_what_is_folded_anew() -> None:
    again = 0.9 * (1_500 + 14_000)
    step = 1_500 + 8 * 300 + 0.1 * 30_000
    quoted = 30_000 + 1_500 + 8 * 1_500
    assert count_compaction_cost(_OPENAI, replace(_SIZES, may_ride=False)) == pytest.approx(
        quoted + again + step
    )


def test_without_a_cache_nothing_is_written_again_and_nothing_rides() -> None:
    step = 1_500 + 8 * 300 + 30_000
    assert count_compaction_cost(UNCACHED, replace(_SIZES, prompt=31_000)) == pytest.approx(
        1_000 + 1_500 + 8 * 1_500 + step
    )


def test_sizes_come_from_the_ledger() -> None:
    ledger = BranchLedger(base_tokens=30_000.0, reply_tokens=300.0)
    assert size_up(ledger, 60_000, 14_000, 1_500) == _SIZES
    assert size_up(replace(ledger, summary_tokens=900.0), 60_000, 14_000, 1_500).summary == 900.0


def test_it_is_due_once_the_rent_reaches_the_price() -> None:
    price = count_compaction_cost(_OPENAI, _SIZES)
    for economy in (0.5, 2.0):
        below, reached = (BranchLedger(rent_tokens=economy * price + more) for more in (-1, 0.01))
        assert not is_due(economy, below, _OPENAI, _SIZES)
        assert is_due(economy, reached, _OPENAI, _SIZES)
    assert not is_due(0.0, BranchLedger(rent_tokens=1e9), _OPENAI, _SIZES)
    free = replace(_OPENAI, is_free=True)
    assert not is_due(1.0, BranchLedger(rent_tokens=1e9), free, _SIZES)
    # Nothing would be folded.
    assert not is_due(1.0, BranchLedger(rent_tokens=1e9), _OPENAI, replace(_SIZES, prompt=30_000))


@given(
    read=st.floats(0.01, 1.0),
    write=st.floats(1.0, 1.5),
    growth=st.integers(200, 8_000),
    economy=st.floats(0.25, 8.0),
)
def test_a_compaction_that_always_fails_is_not_tried_more_often_than_rent_pays_for(
    read: float, write: float, growth: int, economy: float
) -> None:
    """D is paid when a compaction begins, whatever comes of it, so tries cost no more than the rent."""
    rates = Rates(write, read, 8.0)
    ledger, prompt, rent, paid, tries = None, 10_000, 0.0, 0.0, 0
    for _ in range(120):
        usage = Usage(prompt, 100)
        answered = AnsweredTurn(
            usage=usage, pivot=None, pivot_tokens=0, fixed_tokens=8_000.0, tail_tokens=10_000
        )
        ledger = note_response(ledger, answered, rates, 0.0)
        rent += read * max(0.0, prompt - ledger.base_tokens)
        sizes = size_up(ledger, prompt, 10_000, growth)
        if is_due(economy, ledger, rates, sizes):
            tries, paid = tries + 1, paid + economy * count_compaction_cost(rates, sizes)
            ledger = pay_rent(ledger)
            assert not is_due(economy, ledger, rates, sizes)
        prompt += growth
    assert paid <= rent + 1e-6 * rent
    assert tries < 120


_RATES = Rates(write=1.25, read=0.1, output=5.0)


def answer(prompt_tokens: int, output_tokens: int = 100, **fields: Any) -> AnsweredTurn:
    usage = Usage(prompt_tokens, output_tokens)
    defaults: dict[str, Any] = {
        "pivot": None,
        "pivot_tokens": 0,
        "fixed_tokens": 5_000.0,
        "tail_tokens": 10_000,
    }
    return AnsweredTurn(**{"usage": usage} | defaults | fields)


def note(before: BranchLedger | None, answered: AnsweredTurn) -> BranchLedger:
    return note_response(before, answered, _RATES, 7.0)


def test_what_was_seen_of_a_cache_holds_for_one_scope() -> None:
    ledger = BranchLedger(answered_seconds=5.0, has_cached=True, is_uncached=True, rent_tokens=7.0)
    head = head_after(1, ledger=ledger)
    assert find_ledger(head, head.scope) is ledger
    other = BranchLedger(answered_seconds=5.0, rent_tokens=7.0)
    assert find_ledger(head, "other") == other
    # Where there was no response, no cache knows the prefix yet.
    assert pass_on_ledger(head, head.scope) == replace(ledger, answered_seconds=0.0)
    assert pass_on_ledger(head, "other") == replace(other, answered_seconds=0.0)
    assert find_ledger(None, "s") is pass_on_ledger(None, "s") is None


def test_what_is_beyond_the_prompt_after_a_compaction_pays_rent() -> None:
    first = note(None, answer(5_000))
    # What cannot be replaced, the usual summary and the tail.
    assert (first.base_tokens, first.rent_tokens) == (16_500.0, 0.0)
    below = note(first, answer(16_000))
    assert below.rent_tokens == 0.0
    above = note(note(below, answer(26_500)), answer(36_500))
    assert above.rent_tokens == pytest.approx(0.1 * (10_000 + 20_000))
    assert above.base_tokens == 16_500.0


def test_a_pivot_that_takes_effect_begins_anew() -> None:
    before = note(note(None, answer(5_000)), answer(100_000))
    after = note(before, answer(20_000, pivot="ab", pivot_tokens=2_000))
    assert (after.base_tokens, after.rent_tokens, after.summary_tokens) == (20_000.0, 0.0, 2_000.0)
    again = note(
        note(after, answer(90_000, pivot="ab", pivot_tokens=2_000)),
        answer(21_000, pivot="cd", pivot_tokens=1_000),
    )
    assert (again.base_tokens, again.rent_tokens, again.summary_tokens) == (21_000.0, 0.0, 1_500.0)


def test_a_pivot_that_is_gone_begins_anew_without_knowing_its_prompt() -> None:
    before = BranchLedger(base_tokens=20_000.0, rent_tokens=9_000.0, pivot="ab", summary_tokens=2_000.0)
    assert note(before, answer(100_000)).base_tokens == 5_000 + 2_000 + 10_000


def test_the_first_response_with_a_pivot_tells_the_base() -> None:
    ledger = note(None, answer(30_000, pivot="ab", pivot_tokens=1_000))
    assert (ledger.base_tokens, ledger.pivot, ledger.summary_tokens) == (30_000.0, "ab", 1_000.0)


@pytest.mark.parametrize("price", [None, Price(input=0, output=0)])
@pytest.mark.parametrize(("has_cached", "read"), [(True, 0.1), (False, 1.0)])
def test_without_a_price_cached_tokens_tell(price: Price | None, has_cached: bool, read: float) -> None:
    expected = Rates(1.0, read, 8.0, is_free=price is not None, is_guessed=True)
    found = choose_rates(price, BranchLedger(has_cached=has_cached))
    assert found == expected
    assert with_cache(found) == replace(expected, read=0.1)


def test_a_cache_that_marks_ask_for_counts_only_where_it_shows() -> None:
    marked = Price(input=4, cached_input=0.5, cache_write=5, output=20)
    assert choose_rates(marked, BranchLedger(is_uncached=True)) == Rates(1.0, 1.0, 5.0)
    # A miss of a cache that needs no marks says nothing.
    automatic = Price(input=4, cached_input=0.5, output=20)
    assert choose_rates(automatic, BranchLedger(is_uncached=True)) == Rates(1.0, 0.125, 5.0)


def test_a_call_is_weighed_in_tokens_of_fresh_input() -> None:
    rates = Rates(write=1.25, read=0.1, output=5.0)
    assert rates.weigh(Usage(1_000, 10, cached_tokens=600, cache_write_tokens=200)) == 200 + 60 + 250 + 50
    assert rates.weigh(Usage(1_000, 10)) == 1_050


_PRICE = Price(input=3, cached_input=0.3, cache_write=3.75, output=15)


def test_saved_tokens_cost_what_the_cache_costs_where_there_is_one() -> None:
    assert count_saved_usd(_PRICE, 1_000_000, is_cached=False) == pytest.approx(3.0)
    assert count_saved_usd(_PRICE, 1_000_000, is_cached=True) == pytest.approx(0.3)
    assert count_saved_usd(Price(input=3, output=15), 1_000_000, is_cached=True) == pytest.approx(3.0)


def test_an_unknown_sum_stays_unknown_and_adds_nothing_to_a_known_one() -> None:
    assert add_usd(None, None) is None
    assert add_usd(None, 1.0) == add_usd(1.0, None) == 1.0
    assert add_usd(1.0, 2.0) == 3.0
    assert sum_usd([None, 1.0, None, 2.0]) == 3.0
    assert sum_usd([]) is None


def test_usage_of_several_requests_is_added_kind_by_kind() -> None:
    assert add_usage(None, None) is None
    assert add_usage(Usage(1, 2), None) == add_usage(None, Usage(1, 2)) == Usage(1, 2)
    assert add_usage(Usage(1, 2, 3), Usage(10, 20, 30, 40)) == Usage(11, 22, 33, 40)
    assert subtract_usage(Usage(11, 22, 33, 40), Usage(1, 2, 3)) == Usage(10, 20, 30, 40)
    assert subtract_usage(Usage(1, 2), Usage(3, 4, 5)) == Usage(0, 0, 0, 0)
