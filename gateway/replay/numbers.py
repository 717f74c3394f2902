"""Numbers as tables show them: three digits and a letter, so that columns stay narrow."""

from typing import Final

# Stands for what is not known.
UNKNOWN: Final = "–"
_STEPS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K"))
# From here on, cents are left out; below, parts of a cent are shown.
_DOLLARS_USD: Final = 1_000
_CENTS_USD: Final = 0.01


def show_tokens(count: int | None) -> str:
    """`12`, `3.4K`, `128K`, `2.81M`."""
    if count is None:
        return UNKNOWN
    for step, letter in _STEPS:
        if count >= step:
            value = count / step
            digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f}{letter}"
    return str(count)


def show_share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f}%"


def show_usd(usd: float | None) -> str:
    """`$0.0042`, `$0.13`, `$12.34`, `$1,234`."""
    if usd is None:
        return UNKNOWN
    sign, usd = ("-", -usd) if usd < 0 else ("", usd)
    digits = 0 if usd >= _DOLLARS_USD else 2 if usd >= _CENTS_USD or not usd else 4
    return f"{sign}${usd:,.{digits}f}"
