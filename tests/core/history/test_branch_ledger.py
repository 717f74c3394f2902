"""What nothing is known of is told apart from what is nothing."""

from gateway.core.history.branch_ledger import BranchLedger


def test_a_new_ledger_knows_no_time_no_cache_and_no_base() -> None:
    new = BranchLedger()
    assert not new.answered_seconds and not new.base_tokens and new.pivot is None
    assert not new.has_cached and not new.is_uncached
