"""Numbers, times and shares of a window, in few characters."""

from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"
_THOUSAND: Final = 1_000
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
_FULL, _EMPTY, _LIMIT = "█", "░", "│"


def show_tokens(tokens: int | None) -> str:
    """At most five characters: `950`, `12.3k`, `128k`, `1.2M`."""
    if tokens is None:
        return UNKNOWN
    if tokens < _THOUSAND:
        return str(tokens)
    value, unit = (tokens / 1e6, "M") if tokens >= 999_500 else (tokens / 1e3, "k")
    return f"{value:.1f}{unit}" if value < 99.95 and round(value, 1) % 1 else f"{value:.0f}{unit}"


def show_number_of(count: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def show_usd(usd: float | None) -> str:
    if usd is None:
        return UNKNOWN
    return f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def show_signed_usd(usd: float | None) -> str:
    """What was saved: `+$1.20`, or what was spent beyond: `−$0.0500`."""
    if usd is None or usd == 0:
        return show_usd(usd)
    return f"{'+' if usd > 0 else '−'}{show_usd(abs(usd))}"


def show_ago(time: str, now: datetime | None = None) -> str:
    """How long ago a time of the API was, such as `5s`, `3m`, `2h`, `4d`."""
    try:
        seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return UNKNOWN
    for unit, length in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def draw_bar(value: int, most: int | None, width: int, limit: int | None = None) -> str:
    """The share of `most`, with a mark at `limit` where the bar does not reach it."""
    if not most:
        return ""
    filled = min(width, round(width * value / most))
    cells = [_FULL] * filled + [_EMPTY] * (width - filled)
    if limit and (place := min(width - 1, int(width * limit / most))) >= filled:
        cells[place] = _LIMIT
    return "".join(cells)
