"""What conversations cost, in words: of one conversation, or of a sum of several."""

from typing import Final

from msgspec import structs

from gateway.activity.economics import Economics
from gateway.command_line.figures import show_number_of, show_tokens, show_usd

# The causes of breaks, for one and for several.
_CAUSES: Final = {
    "compaction": ("compaction", "compactions"),
    "pruning": ("pruning", "prunings"),
    "edit": ("edited summary", "edited summaries"),
    "history": ("changed history", "changed histories"),
}


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


def describe_comparison(economics: Economics, died_at: int | None = None) -> str:
    """What the same requests would have cost. died_at: of one conversation, the request where it ended."""
    if not economics.compared_requests:
        return "not known: no price, or no usage"
    money = f"{show_usd(economics.without_usd)}, with it {show_usd(economics.with_usd)}"
    of_what = f"{money}, for {show_number_of(economics.compared_requests, 'request')}"
    if died_at is not None:
        return f"{of_what}; request {died_at:,} would not have fit"
    ended = show_number_of(economics.died, "conversation")
    return f"{of_what}; {ended} would end" if economics.died else of_what
