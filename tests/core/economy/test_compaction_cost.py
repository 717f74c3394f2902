"""What a compaction costs, when it is due, and when pruning is cheaper."""

from dataclasses import replace
from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.economy.compaction_cost import (
    CompactionSizes,
    choose_smallest_batch,
    count_compaction_cost,
    is_due,
    is_pruning_cheaper,
    size_up,
)
from gateway.core.economy.ledger import Answered, note_response, pay_rent
from gateway.core.economy.rates import UNCACHED, Rates
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.sizing.usage import Usage

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
        answered = Answered(usage=usage, pivot=None, pivot_tokens=0, fixed_tokens=8_000.0, tail_tokens=10_000)
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


def test_a_batch_has_a_size_that_breaks_the_prefix_seldom_enough() -> None:
    assert choose_smallest_batch(_OPENAI, 60_000, 1_500) == pytest.approx(
        sqrt(2 * 0.9 * 60_000 * 1_500 / 0.1)
    )
    assert choose_smallest_batch(UNCACHED, 60_000, 1_500) == 0.0
    assert choose_smallest_batch(Rates(1.0, 0.0, 8.0), 60_000, 1_500) == inf


def test_pruning_stands_against_a_summary_by_the_token_that_it_frees() -> None:
    price = count_compaction_cost(_OPENAI, _SIZES)
    behind = 40_000
    even = 0.9 * behind * _SIZES.folded / price
    assert is_pruning_cheaper(_OPENAI, _SIZES, even + 1, behind)
    assert not is_pruning_cheaper(_OPENAI, _SIZES, even - 1, behind)
    # It breaks nothing where nothing is cached.
    assert is_pruning_cheaper(UNCACHED, _SIZES, 1, behind)
    assert is_pruning_cheaper(_OPENAI, replace(_SIZES, prompt=20_000), 1, behind)
