"""Tests over recorded traffic are skipped with their number of cases if the recordings are absent."""

import pytest

from tests.shared_data import SHARED

RECORDINGS = 111
JSON_CASES = 340
CAPTURES = 154


def requires_cases(count: int, what: str) -> pytest.MarkDecorator:
    reason = f"{count} {what} skipped: put `shared` beside the repository or name it in GATEWAY_SHARED"
    return pytest.mark.skipif(not (SHARED / "data").is_dir(), reason=reason)
