"""What conversations cost, in words: of one conversation, or of a sum of several."""

from typing import Final

from msgspec import structs

from gateway.activity.economics import Economics, find_saved_usd
from gateway.command_line.figures import show_number_of, show_signed_usd, show_tokens, show_usd

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
