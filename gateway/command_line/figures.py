"""Numbers, times, shares of a window and money, in few characters or in a line of words."""

from datetime import UTC, datetime
from typing import Final

from msgspec import structs

from gateway.activity.economics import Economics, find_saved_usd

UNKNOWN: Final = "–"
_THOUSAND: Final = 1_000
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
# The causes of breaks, for one and for several.
_CAUSES: Final = {
    "compaction": ("compaction", "compactions"),
    "pruning": ("pruning", "prunings"),
    "edit": ("edited summary", "edited summaries"),
    "history": ("changed history", "changed histories"),
}
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


# What conversations cost: one of them, or a sum of several.


def describe_cache(economics: Economics, breaks: int) -> str:
    """Such as `94% of 5M prompt tokens; 9 breaks (8 compactions, 1 changed history)`."""
    counts = structs.asdict(economics.breaks)
    causes = [
        f"{counts[name]:,} {one if counts[name] == 1 else several}"
        for name, (one, several) in _CAUSES.items()
        if counts[name]
    ]
    why = f" ({', '.join(causes)})" if causes else ""
    share = "nothing known"
    if economics.prompt_tokens:
        percent = 100 * economics.cached_tokens / economics.prompt_tokens
        share = f"{percent:.0f}% of {show_tokens(economics.prompt_tokens)} prompt tokens"
    return f"{share}; {show_number_of(breaks, 'break')}{why}"


def describe_saved(economics: Economics, died_at: int | None = None) -> str:
    """The figure that leads: what was saved up to where it would have ended without the gateway. died_at: of
    one conversation, the request where that was.
    """
    saved_usd = find_saved_usd(economics)
    if saved_usd is None:
        return "saved –: no price or no usage known"
    costs = f"{show_usd(economics.without_usd)} without the gateway, {show_usd(economics.with_usd)} with it"
    what = f"{show_signed_usd(saved_usd)} {'saved' if saved_usd >= 0 else 'more spent'}: {costs}"
    of_what = f"{what}, for {show_number_of(economics.compared_requests, 'request')}"
    if died_at is not None:
        return f"{of_what}; request {died_at:,} would not have fit"
    ended = show_number_of(economics.died, "conversation")
    return f"{of_what}; {ended} would have ended" if economics.died else of_what
