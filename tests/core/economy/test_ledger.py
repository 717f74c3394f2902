"""What the ledger of a branch says after a response."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.economy.ledger import (
    Answered,
    find_ledger,
    note_response,
    note_time,
    pass_on_ledger,
    pay_rent,
)
from gateway.core.economy.rates import Rates
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.sizing.usage import Usage
from tests.builders.compaction import head_of, receive

_RATES = Rates(write=1.25, read=0.1, output=5.0)


def answer(prompt_tokens: int, output_tokens: int = 100, **fields: Any) -> Answered:
    usage = Usage(prompt_tokens, output_tokens)
    defaults: dict[str, Any] = {
        "pivot": None,
        "pivot_tokens": 0,
        "fixed_tokens": 5_000.0,
        "tail_tokens": 10_000,
    }
    return Answered(**{"usage": usage} | defaults | fields)


def note(before: BranchLedger | None, answered: Answered) -> BranchLedger:
    return note_response(before, answered, _RATES, 7.0)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(10_000, 1, 8_000), (True, False)),
        (Usage(10_000, 1, 0, 9_000), (True, False)),
        (Usage(10_000, 1, 0), (False, True)),
        (Usage(10_000, 1), (False, True)),
        # Too short for a cache.
        (Usage(900, 1, 0), (False, False)),
    ],
)
def test_reported_tokens_tell_of_a_cache(usage: Usage, expected: tuple[bool, bool]) -> None:
    ledger = note(None, answer(0, usage=usage))
    assert (ledger.has_cached, ledger.is_uncached) == expected


def test_what_was_seen_of_a_cache_holds_for_one_scope() -> None:
    ledger = BranchLedger(answered_seconds=5.0, has_cached=True, is_uncached=True, rent_tokens=7.0)
    head = head_of(receive(1), ledger=ledger)
    assert find_ledger(head, head.scope) is ledger
    other = BranchLedger(answered_seconds=5.0, rent_tokens=7.0)
    assert find_ledger(head, "other") == other
    # Where there was no response, no cache knows the prefix yet.
    assert pass_on_ledger(head, head.scope) == replace(ledger, answered_seconds=0.0)
    assert pass_on_ledger(head, "other") == replace(other, answered_seconds=0.0)
    assert find_ledger(None, "s") is pass_on_ledger(None, "s") is None


def test_a_miss_does_not_undo_what_was_seen() -> None:
    ledger = note(BranchLedger(has_cached=True), answer(10_000))
    assert ledger.has_cached and ledger.is_uncached


def test_without_usage_only_the_time_is_noted() -> None:
    before = note(None, answer(6_000))
    assert note_time(before, 9.0) == replace(before, answered_seconds=9.0)
    assert note_time(None, 9.0) == BranchLedger(answered_seconds=9.0)


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


@given(st.lists(st.integers(1, 200_000), max_size=30))
def test_rent_never_falls_but_by_a_compaction(prompts: list[int]) -> None:
    ledger = note(None, answer(5_000))
    for prompt in prompts:
        after = note(ledger, answer(prompt))
        assert after.rent_tokens >= ledger.rent_tokens
        ledger = after
    assert pay_rent(ledger).rent_tokens == 0.0
