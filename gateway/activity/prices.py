"""Which model costs what, by the settings and the bundled table."""

from collections.abc import Callable

from gateway.core.money import Price

# Gives the price of a model, or None if it is not known.
FindPrice = Callable[[str], Price | None]


def find_no_price(_: str) -> Price | None:
    return None
