import pytest

from gateway.core.counts import LARGEST_COUNT, is_count


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        (0, True),
        (LARGEST_COUNT, True),
        (LARGEST_COUNT + 1, False),
        (10**400, False),
        (-1, False),
        (True, False),
        (1.0, False),
        ("1", False),
        (None, False),
    ],
)
def test_only_whole_numbers_in_bounds_count(value: object, is_valid: bool) -> None:
    assert is_count(value) is is_valid
