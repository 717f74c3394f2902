"""Which numbers of others may count something: tokens, lines, an index."""

from typing import Final, TypeGuard

# A larger number is a mistake or an attack: records and metrics have no room for one of 400 digits.
LARGEST_COUNT: Final = 1 << 40


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number from 0 to `LARGEST_COUNT`, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT
