"""The result of a replay in a terminal of 80 columns: sessions, policies side by side, and notes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.command_line.figures import UNKNOWN
from gateway.replay.results import PlayedSource, Pricing, ReplayReport, RequestRun, Result, make_result

_STEPS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K"))
# From here on, cents are left out; below, parts of a cent are shown.
_DOLLARS_USD: Final = 1_000
_CENTS_USD: Final = 0.01
# As many columns as 80 characters have room for.
_POLICIES_IN_A_ROW: Final = 4
_NAME_COLUMNS: Final = 24
_MOST_SESSIONS: Final = 15
_MARK: Final = " *"
_BOX: Final = box.SIMPLE_HEAD


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


# What is shown of each policy; None separates groups.
_ROWS: Final[tuple[tuple[str, Callable[[Result], str]] | None, ...]] = (
    ("requests", lambda result: f"{result.sums.requests:,}"),
    ("tokens received", lambda result: show_tokens(result.sums.received)),
    ("tokens sent", lambda result: show_tokens(result.sums.sent)),
    ("less by", lambda result: show_share(_find_less(result))),
    ("largest request received", lambda result: show_tokens(result.sums.largest_received)),
    ("largest request sent", lambda result: show_tokens(result.sums.largest_sent)),
    ("smallest window", lambda result: show_tokens(result.sums.window)),
    (
        "sent beyond the window",
        lambda result: f"{result.sums.too_large:,}" if result.sums.window else UNKNOWN,
    ),
    None,
    ("compactions", lambda result: f"{result.sums.compactions:,}"),
    ("digests", lambda result: f"{result.sums.digests:,}"),
    ("failed compactions", lambda result: f"{result.sums.failures:,}"),
    ("prunings", lambda result: f"{result.sums.prunings:,}"),
    ("summary calls", lambda result: f"{result.sums.calls:,}"),
    ("their tokens", lambda result: show_tokens(result.sums.call_prompt + result.sums.call_output)),
    None,
    ("cache breaks by the client", lambda result: f"{result.sums.rewrites:,}"),
    ("cache breaks in all", lambda result: f"{result.sums.breaks:,}"),
    ("prefix reuse without", lambda result: show_share(result.received_reuse)),
    ("prefix reuse with", lambda result: show_share(result.sent_reuse)),
    None,
    ("cost without", lambda result: show_usd(result.cost.without_usd)),
    ("cost with", lambda result: show_usd(result.cost.with_usd)),
    ("of that, summaries", lambda result: show_usd(_find_summary_cost(result))),
    ("saved", lambda result: show_usd(result.cost.saved_usd)),
)


def show_report(report: ReplayReport, pricing: Pricing, console: Console) -> None:
    """For a person. pricing: of the report. One policy is shown in detail: the best, or the only one."""
    shown = next((place for place, result in enumerate(report.policies) if result.is_best), 0)
    console.print(Text(f"{report.policies[shown].policy}: each of the sessions", style="bold"))
    title = "session" if len(report.sessions) > 1 else "conversation"
    console.print(_render_sessions(title, _list_sessions(report.sessions, shown, pricing)))
    console.print()
    console.print(_render_policies(report.policies))
    console.print()
    for line in _list_notes(report):
        console.print(Text(line, style="dim"))


# Tables


def _list_sessions(
    sessions: Sequence[PlayedSource], place: int, pricing: Pricing
) -> list[tuple[str, Result]]:
    """What came of each recording under one policy; of each conversation, if there is one recording."""
    played = [session for session in sessions if session.played]
    if len(played) != 1:
        return [(session.name, session.results[place]) for session in played]
    only = played[0].played[place]
    # A branch, by what operators see of it.
    branches: dict[str, list[RequestRun]] = {}
    for run in only.requests:
        branches.setdefault(f"{run.conversation[:8]} {run.purpose}", []).append(run)
    return [(name, make_result(only.policy, runs, pricing)) for name, runs in branches.items()]


def _find_less(result: Result) -> float | None:
    sums = result.sums
    return 1 - sums.sent / sums.received if sums.received else None


def _find_summary_cost(result: Result) -> float | None:
    """Without a call they cost nothing, whatever the price."""
    cost = result.cost
    return 0.0 if not result.sums.calls and cost.with_usd is not None else cost.summaries_usd


def _render_policies(results: Sequence[Result]) -> RenderableType:
    """The sums of all sessions under each policy; the best one is marked."""
    tables = [
        _make_policy_table(results[start : start + _POLICIES_IN_A_ROW])
        for start in range(0, len(results), _POLICIES_IN_A_ROW)
    ]
    best = next((result for result in results if result.is_best), None)
    if best is None:
        return Group(*tables)
    rule = "the least money" if best.cost.with_usd is not None else "the fewest tokens outside of a cache"
    words = f"*  best: the fewest requests beyond the window, then {rule}"
    return Group(*tables, Text(words, style="dim"))


def _make_policy_table(results: Sequence[Result]) -> Table:
    table = Table(box=_BOX, pad_edge=False, show_edge=False)
    table.add_column("all sessions", no_wrap=True)
    for result in results:
        name = Text(result.policy + (_MARK if result.is_best else ""), overflow="fold")
        style = "bold" if result.is_best else ""
        table.add_column(name, justify="right", style=style, header_style="bold")
    for row in _ROWS:
        if row is None:
            table.add_section()
        else:
            label, show = row
            table.add_row(label, *map(show, results))
    return table


def _render_sessions(title: str, results: Sequence[tuple[str, Result]]) -> RenderableType:
    """One line each, the largest first. results: name of the session, and what came of it."""
    shown = sorted(results, key=lambda each: -each[1].sums.received)[:_MOST_SESSIONS]
    table = Table(box=_BOX, pad_edge=False, show_edge=False, padding=0)
    table.add_column(Text(title), no_wrap=True, max_width=_NAME_COLUMNS)
    for name in ("reqs", "received", "sent", "comp", "prune", "breaks", "reuse", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, result in shown:
        sums, saved, less = result.sums, result.cost.saved_usd, _find_less(result)
        table.add_row(
            Text(_shorten(name)),
            str(sums.requests),
            show_tokens(sums.received),
            show_tokens(sums.sent),
            *(str(count or "·") for count in (sums.compactions + sums.digests, sums.prunings, sums.breaks)),
            f"{100 * result.sent_reuse:.0f}%" if sums.sent else UNKNOWN,
            show_usd(saved) if saved is not None else f"{100 * less:.0f}%" if less is not None else UNKNOWN,
        )
    left = len(results) - len(shown)
    return Group(table, Text(f"and {left} smaller ones; --json has all", style="dim")) if left else table


def _shorten(name: str) -> str:
    """The end of a long name tells more than its beginning."""
    printable = "".join(character if character.isprintable() else "?" for character in name)
    return printable if len(printable) <= _NAME_COLUMNS else "…" + printable[1 - _NAME_COLUMNS :]


# What a reader has to know to trust the numbers


def _list_notes(report: ReplayReport) -> Iterator[str]:
    yield report.simulated
    sums, cost = report.policies[0].sums, report.policies[0].cost
    if sums.window is None:
        yield "No window is known for the models of these recordings, so nothing is compacted: try --window."
    yield from _list_gaps(report.sessions)
    if cost.unpriced_requests:
        yield f"{cost.unpriced_requests:,} requests are of models without a price: try --price MODEL."
    yield (
        f"Usage was recorded for {sums.recorded_usages:,} of {sums.requests:,} requests. "
        "A cache is assumed to reuse what a prompt begins with in common with the one before it."
    )
    file_mb = sum(session.file_bytes for session in report.sessions) / 1e6
    request_mb = sum(session.request_bytes for session in report.sessions) / 1e6
    policies, seconds = len(report.policies), report.seconds
    rate = max(seconds, 1e-9)
    yield (
        f"{file_mb:,.1f} MB of recordings, {request_mb:,.1f} MB of requests under "
        f"{policies} {'policy' if policies == 1 else 'policies'} in {seconds:.1f} s: "
        f"{file_mb / rate:,.1f} and {request_mb / rate:,.0f} MB/s."
    )


def _list_gaps(sessions: Sequence[PlayedSource]) -> Iterator[str]:
    """What of the recordings was not played."""
    for session in sessions:
        if session.failure:
            yield f"{session.name} was not played: {session.failure}"
    skipped = sum(session.skipped for session in sessions)
    unread = sum(session.played[0].unread for session in sessions if session.played)
    failed = sum(session.played[0].failed for session in sessions if session.played)
    if skipped:
        yield f"{skipped:,} damaged lines or entries were skipped."
    if unread:
        yield f"{unread:,} requests would pass unread: other paths, or a history stored upstream."
    if failed:
        yield f"{failed:,} requests failed when they were recorded, and fail here."
