"""What a response adds to the ledger of its branch, and when that makes a compaction due."""

from dataclasses import replace

import pytest
from msgspec import structs

from gateway.compaction.rent import is_compaction_due, update_ledger
from gateway.core.economy.rates import Rates, choose_rates
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.usage import Usage
from tests.builders.chat import JSON, make_pivot, make_plan
from tests.builders.compaction import SUMMARIZING, head_of, receive, turn_of

_TALK = receive(14)
_THRIFTY = replace(SUMMARIZING, economy=1.0)
_RIDING = replace(_THRIFTY, prompts=replace(_THRIFTY.prompts, ride="Summarize now.", instruction="## Goal"))
_RICH = BranchLedger(rent_tokens=1e6, base_tokens=2_000.0, reply_tokens=100.0)


def test_the_first_response_of_a_branch_finds_what_cannot_be_replaced() -> None:
    """By its share of the bytes: the task is a small part of them."""
    turn = turn_of(_TALK)
    ledger = update_ledger(turn, make_plan(), Usage(13_000, 100), 5.0)
    assert turn.thresholds is not None
    assert 1_500 + turn.thresholds.tail < ledger.base_tokens < 1_600 + turn.thresholds.tail
    assert (ledger.rent_tokens, ledger.reply_tokens, ledger.answered_seconds) == (0.0, 100.0, 5.0)
    # The share is of what was received, and so are the tokens.
    pruned = update_ledger(turn, replace(make_plan(), received=13_000, sent=3_000), Usage(3_000, 100), 5.0)
    assert pruned.base_tokens == ledger.base_tokens


def test_later_responses_pay_rent_until_a_pivot_takes_effect() -> None:
    head = head_of(receive(13), ledger=replace(_RICH, rent_tokens=5.0))
    turn = turn_of(_TALK, head=head)
    assert update_ledger(turn, make_plan(), Usage(3_000, 100), 0.0).rent_tokens == 5.0 + 1_000
    pivot = make_pivot(_TALK.conversation, 9)
    after = update_ledger(turn, make_plan(pivot), Usage(3_000, 100), 0.0)
    assert (after.rent_tokens, after.base_tokens, after.pivot) == (0.0, 3_000.0, pivot.key)
    # The same summary under another key has changed nothing.
    copy = replace(pivot, key="cd", origin=pivot.key)
    copied = turn_of(_TALK, head=replace(head, ledger=after))
    assert update_ledger(copied, make_plan(copy), Usage(4_000, 100), 0.0).rent_tokens == 1_000.0
    assert update_ledger(turn, make_plan(), None, 9.0) == replace(head.ledger or _RICH, answered_seconds=9.0)


def test_what_was_seen_of_a_cache_is_forgotten_with_another_model() -> None:
    head = head_of(receive(13), ledger=replace(_RICH, has_cached=True))
    assert update_ledger(turn_of(_TALK, head=head), make_plan(), Usage(900, 1), 0.0).has_cached
    other = turn_of(_TALK, head=head, scope="other")
    # Its first prompt is in no cache, and neither was that of the model before: nothing is known of the next.
    guessed = structs.replace(other, rates=choose_rates(None))
    first = update_ledger(guessed, make_plan(), Usage(9_000, 1, 0), 0.0)
    assert not first.has_cached and first.rent_tokens == _RICH.rent_tokens + 0.1 * 7_000
    after = update_ledger(other, make_plan(), Usage(900, 1), 0.0)
    assert not after.has_cached and after.rent_tokens == _RICH.rent_tokens


def test_without_a_price_a_response_pays_by_what_its_own_usage_tells() -> None:
    head = head_of(receive(13), ledger=replace(_RICH, rent_tokens=0.0))
    turn = turn_of(_TALK, _RIDING, head=head, rates=choose_rates(None))
    cached = update_ledger(turn, make_plan(), Usage(30_000, 100, 8_000), 0.0)
    assert cached.rent_tokens == pytest.approx(0.1 * 28_000)
    fresh = update_ledger(turn, make_plan(), Usage(30_000, 100, 0), 0.0)
    assert fresh.rent_tokens == 28_000.0
    # And what is due is compared with what a compaction costs at the same rates.
    due = [
        is_compaction_due(turn, head_of(_TALK, prompt_tokens=30_000, ledger=replace(each, rent_tokens=3e4)))
        for each in (cached, fresh)
    ]
    assert due == [True, False]


@pytest.mark.parametrize(
    ("changes", "ledger", "expected"),
    [
        ({}, _RICH, True),
        ({}, replace(_RICH, rent_tokens=10.0), False),
        ({}, None, False),
        ({"purpose": "summary"}, _RICH, False),
        ({"purpose": "agent"}, _RICH, True),
        ({"limits": Limits()}, _RICH, False),
        ({"policy": replace(SUMMARIZING, economy=0.0)}, _RICH, False),
        ({"policy": replace(_THRIFTY, auto=False)}, _RICH, False),
    ],
)
def test_it_is_due_by_the_ledger_alone(changes: JSON, ledger: BranchLedger | None, expected: bool) -> None:
    defaults: JSON = {"policy": _THRIFTY}
    turn = turn_of(_TALK, **(defaults | changes))
    head = head_of(_TALK, prompt_tokens=9_000, ledger=ledger)
    assert is_compaction_due(turn, head) is expected


def test_a_summary_that_cannot_ride_has_to_be_paid_as_quoted() -> None:
    cached = Rates(write=1.0, read=0.01, output=0.0)
    # More than what is read from the cache, and less than what would be quoted.
    ledger = replace(_RICH, rent_tokens=6_000.0)
    head = head_of(_TALK, prompt_tokens=9_000, ledger=ledger)
    for policy, expected in ((_RIDING, True), (_THRIFTY, False)):
        assert is_compaction_due(turn_of(_TALK, policy, rates=cached), head) is expected
