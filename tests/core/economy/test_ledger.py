"""What the ledger of a branch says after a response."""

import pytest

from gateway.core.economy.ledger import note_response
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.sizing.usage import Usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(10_000, 1, 8_000), (True, False)),
        (Usage(10_000, 1, 0, 9_000), (True, False)),
        (Usage(10_000, 1, 0), (False, True)),
        (Usage(10_000, 1), (False, True)),
        # Too short for a cache.
        (Usage(900, 1, 0), (False, False)),
        (None, (False, False)),
    ],
)
def test_reported_tokens_tell_of_a_cache(usage: Usage | None, expected: tuple[bool, bool]) -> None:
    ledger = note_response(None, usage, 7.0)
    assert (ledger.has_cached, ledger.is_uncached) == expected
    assert ledger.answered_seconds == 7.0


def test_a_miss_does_not_undo_what_was_seen() -> None:
    ledger = note_response(BranchLedger(has_cached=True), Usage(10_000, 1, 0), 1.0)
    assert ledger.has_cached and ledger.is_uncached
