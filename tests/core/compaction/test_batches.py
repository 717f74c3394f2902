"""Whether another batch of old results is worth shortening, with and without prices."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.compaction.batches import changes_for_free, choose_batches
from gateway.core.compaction.situation import Situation
from gateway.core.economy.rates import UNCACHED, Rates
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.policy import Policy, Pruning, Summary
from tests.core.compaction.test_decision import situate

_THRIFTY = replace(Policy(), economy=1.0)
_BY_SIZE = replace(Policy(), economy=0.0)
_CACHED = Rates(write=1.0, read=0.1, output=8.0)
_LEDGER = BranchLedger(base_tokens=4_000.0, reply_tokens=100.0)


def prunes(total: int = 11_500, **fields: Any) -> bool:
    situation: Situation = situate(total, results=0.97, **fields)
    assert situation.thresholds is not None
    return choose_batches(situation, situation.thresholds, total) is not None


def test_without_prices_a_batch_that_is_enough_is_worth_it() -> None:
    assert prunes(policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER, growth=500.0)
    assert not prunes(8_000, policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER)


def test_a_batch_that_breaks_the_prefix_too_often_is_not_worth_it() -> None:
    """√(2 · 0.9 · 11,500 · growth / 0.1) tokens at least; here some 5,500 are freed."""
    assert prunes(policy=_THRIFTY, rates=_CACHED, ledger=_LEDGER, growth=50.0)
    assert not prunes(policy=_THRIFTY, rates=_CACHED, ledger=_LEDGER, growth=500.0)
    # Nothing breaks where nothing is cached.
    assert prunes(policy=_THRIFTY, rates=UNCACHED, ledger=_LEDGER, growth=500.0)


def test_a_summary_that_is_cheaper_by_the_token_is_made_instead() -> None:
    cheap = replace(_LEDGER, base_tokens=500.0, summary_tokens=64.0)
    dear = Rates(write=5.0, read=0.5, output=0.1)
    assert not prunes(policy=_THRIFTY, rates=dear, ledger=cheap)


def test_a_summary_that_rides_may_be_cheaper_than_pruning() -> None:
    """A quoted summary reads nearly the whole window anew, a riding one a tenth of it."""
    ledger = replace(_LEDGER, base_tokens=1_000.0, summary_tokens=500.0)
    fields: dict[str, Any] = {"policy": _THRIFTY, "rates": _CACHED, "ledger": ledger, "growth": 50.0}
    assert prunes(**fields)
    assert not prunes(**fields, rides=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"may_compact": False},
        {"policy": replace(_THRIFTY, summary=Summary(method="digest"))},
        {"policy": replace(_THRIFTY, pruning=Pruning(eager=True))},
        {"rates": replace(_CACHED, is_free=True)},
        {"ledger": None},
        {"ledger": BranchLedger()},
    ],
)
def test_without_a_price_a_summarizer_or_a_ledger_sizes_alone_decide(fields: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"policy": _THRIFTY, "rates": _CACHED, "ledger": _LEDGER, "growth": 500.0}
    assert prunes(**(defaults | fields))


def test_a_cold_cache_is_the_time_for_a_batch() -> None:
    assert prunes(8_000, policy=_THRIFTY, rates=_CACHED, ledger=_LEDGER, growth=500.0, is_cold=True)
    assert not prunes(8_000, policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER, is_cold=True)
    never = replace(_THRIFTY, prune=False)
    assert not prunes(8_000, policy=never, rates=_CACHED, ledger=_LEDGER, is_cold=True)
    large = replace(_THRIFTY, pruning=Pruning(minimum_tokens=9_000, minimum_ratio=1.0))
    assert not prunes(8_000, policy=large, rates=_CACHED, ledger=_LEDGER, is_cold=True)
    assert changes_for_free(situate(8_000, policy=_THRIFTY, is_cold=True))
    assert not changes_for_free(situate(8_000, policy=_BY_SIZE, is_cold=True))
