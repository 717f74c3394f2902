"""What conversations used and cost, and what they would have cost without the gateway: of one or several."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from gateway.activity.record import ConversationActivity
from gateway.core.money import sum_usd

T = TypeVar("T", bound=msgspec.Struct)

_USD_DIGITS: Final = 6
_HEADER_MONEY: Final = ("spent_usd", "summary_usd", "with_usd", "without_usd")


class CacheBreaks(msgspec.Struct, frozen=True, kw_only=True):
    """Requests whose sent prefix was not that of the request before, by cause. history: the client changed
    what it had sent before.
    """

    compaction: int = 0
    pruning: int = 0
    edit: int = 0
    history: int = 0


class Economics(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the upstream reported them; cached and written ones are parts of the prompt.

    riding_calls, riding_usd: of the summary calls those that continue the conversation, whose prefix is in
    the provider's cache. unused_summaries: summaries and digests that no request has been sent with so far.
    compared_requests: how many requests are in with_usd, with all summaries until then,
    and in without_usd, unshortened. died: how many conversations would have ended, because an unshortened
    request would not have fit its window; what came later is not compared.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    breaks: CacheBreaks = CacheBreaks()
    summary_calls: int = 0
    riding_calls: int = 0
    riding_usd: float | None = None
    unused_summaries: int = 0
    compared_requests: int = 0
    with_usd: float | None = None
    without_usd: float | None = None
    died: int = 0


def make_economics(activity: ConversationActivity) -> Economics:
    totals = activity.totals
    return fill(
        Economics,
        totals,
        riding_usd=round_usd(totals.riding_usd),
        with_usd=round_usd(totals.with_usd) if totals.compared_requests else None,
        without_usd=round_usd(totals.without_usd),
        breaks=CacheBreaks(
            compaction=totals.compaction_breaks,
            pruning=totals.pruning_breaks,
            edit=totals.edit_breaks,
            history=totals.history_breaks,
        ),
        died=int(activity.unshortened.died_at > 0),
    )


def sum_economics(each: Iterable[Economics]) -> Economics:
    summed = list(each)
    breaks = sum_fields([one.breaks for one in summed], CacheBreaks.__struct_fields__)
    names = [name for name in Economics.__struct_fields__ if name != "breaks"]
    return Economics(**sum_fields(summed, names), breaks=CacheBreaks(**breaks))


def sum_fields(each: Sequence[msgspec.Struct], names: Iterable[str]) -> dict[str, Any]:
    """Of money where the name ends in `_usd`: None only if none of it is known."""
    sums: dict[str, Any] = {}
    for name in names:
        values = (getattr(one, name) for one in each)
        sums[name] = round_usd(sum_usd(values)) if name.endswith("_usd") else sum(values)
    return sums


def fill(kind: type[T], source: object, /, **others: object) -> T:
    """What is shown of a source: its fields of the same names, and others."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**same, **others)


def find_saved_usd(economics: Economics) -> float | None:
    """What the compared requests would have cost without the gateway, less what they did cost. Negative if
    that was more; None if it is not known.
    """
    if economics.with_usd is None or economics.without_usd is None:
        return None
    return round_usd(economics.without_usd - economics.with_usd)


def render_economics(activity: ConversationActivity | None) -> str:
    """As one line of `name=value`. What is not known is left out."""
    if activity is None:
        return "requests=0"
    totals = activity.totals
    counts: dict[str, int | None] = {
        "requests": totals.requests,
        "received": totals.received_tokens,
        "sent": totals.sent_tokens,
        "saved": totals.saved_tokens,
        "prompt": totals.prompt_tokens,
        "cached": totals.cached_tokens,
        "written": totals.cache_write_tokens,
        "output": totals.output_tokens,
        "cache_breaks": totals.cache_breaks,
        "summary_calls": totals.summary_calls,
        "riding_calls": totals.riding_calls,
        "compared_requests": totals.compared_requests,
        "died_at": activity.unshortened.died_at or None,
    }
    money = {name: getattr(totals, name) for name in _HEADER_MONEY}
    if not totals.compared_requests:
        money["with_usd"] = None
    told = [f"{name}={count}" for name, count in counts.items() if count is not None]
    told += [f"{name}={usd:.{_USD_DIGITS}f}" for name, usd in money.items() if usd is not None]
    return ", ".join(told)


def round_usd(usd: float | None) -> float | None:
    return None if usd is None else round(usd, _USD_DIGITS)
