"""The ledger of a branch before anything is known."""

from gateway.core.history.branch_ledger import BranchLedger


def test_a_new_ledger_says_nothing() -> None:
    assert BranchLedger() == BranchLedger(answered_seconds=0.0, has_cached=False, is_uncached=False)
