"""Tests over recorded traffic say how many cases they leave out where it is absent."""

import pytest

from tests.shared_data import SHARED

RECORDINGS = 111
JSON_CASES = 340
CAPTURES = 154


def requires_cases(count: int, what: str) -> pytest.MarkDecorator:
    reason = f"{count} {what} skipped: put `shared` beside the repository or name it in GATEWAY_SHARED"
    return pytest.mark.skipif(not (SHARED / "data").is_dir(), reason=reason)
