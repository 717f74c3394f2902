"""The result of a replay in a terminal of 80 columns: policies side by side, and each session."""

from collections.abc import Callable, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.replay.comparison import Result, find_best
from gateway.replay.money import Cost
from gateway.replay.numbers import UNKNOWN, show_share, show_tokens, show_usd
from gateway.replay.runs import Sums

# As many columns as 80 characters have room for.
_POLICIES_IN_A_ROW: Final = 4
_NAME_COLUMNS: Final = 24
_MARK: Final = " *"
_BOX: Final = box.SIMPLE_HEAD

_Show = Callable[[Sums, Cost], str]
# What is shown of each policy; None separates groups.
_ROWS: Final[tuple[tuple[str, _Show] | None, ...]] = (
    ("requests", lambda sums, _: f"{sums.requests:,}"),
    ("tokens received", lambda sums, _: show_tokens(sums.received)),
    ("tokens sent", lambda sums, _: show_tokens(sums.sent)),
    ("less by", lambda sums, _: show_share(1 - sums.sent / sums.received if sums.received else None)),
    ("largest request received", lambda sums, _: show_tokens(sums.largest_received)),
    ("largest request sent", lambda sums, _: show_tokens(sums.largest_sent)),
    ("smallest window", lambda sums, _: show_tokens(sums.window)),
    ("sent beyond the window", lambda sums, _: f"{sums.too_large:,}" if sums.window else UNKNOWN),
    None,
    ("compactions", lambda sums, _: f"{sums.compactions:,}"),
    ("digests", lambda sums, _: f"{sums.digests:,}"),
    ("failed compactions", lambda sums, _: f"{sums.failures:,}"),
    ("prunings", lambda sums, _: f"{sums.prunings:,}"),
    ("summary calls", lambda sums, _: f"{sums.calls:,}"),
    ("their tokens", lambda sums, _: show_tokens(sums.call_prompt + sums.call_output)),
    None,
    ("cache breaks by the client", lambda sums, _: f"{sums.rewrites:,}"),
    ("cache breaks in all", lambda sums, _: f"{sums.breaks:,}"),
    ("prefix reuse without", lambda sums, _: show_share(sums.received_reuse)),
    ("prefix reuse with", lambda sums, _: show_share(sums.sent_reuse)),
    None,
    ("cost without", lambda _, cost: show_usd(cost.received)),
    ("cost with", lambda _, cost: show_usd(cost.total)),
    ("of that, summaries", lambda sums, cost: show_usd(_find_summary_cost(sums, cost))),
    ("saved", lambda _, cost: show_usd(cost.saved)),
)


def _find_summary_cost(sums: Sums, cost: Cost) -> float | None:
    """Without a call they cost nothing, whatever the price."""
    return 0.0 if not sums.calls and cost.sent is not None else cost.summaries


def render_policies(results: Sequence[Result]) -> RenderableType:
    """The sums of all sessions under each policy; the best one is marked."""
    best = find_best(results)
    tables = [
        _make_policy_table(
            results[start : start + _POLICIES_IN_A_ROW], best - start if best is not None else None
        )
        for start in range(0, len(results), _POLICIES_IN_A_ROW)
    ]
    if best is None:
        return Group(*tables)
    rule = "the fewest requests beyond the window, then the least money"
    if results[best].cost.total is None:
        rule = "the fewest requests beyond the window, then the fewest tokens outside of a cache"
    return Group(*tables, Text(f"*  best: {rule}", style="dim"))


def _make_policy_table(results: Sequence[Result], best: int | None) -> Table:
    table = Table(box=_BOX, pad_edge=False, show_edge=False)
    table.add_column("all sessions", no_wrap=True)
    for place, result in enumerate(results):
        is_best = place == best
        name = Text(result.policy + (_MARK if is_best else ""), overflow="fold")
        table.add_column(name, justify="right", style="bold" if is_best else "", header_style="bold")
    for row in _ROWS:
        if row is None:
            table.add_section()
        else:
            label, show = row
            table.add_row(label, *(show(result.sums, result.cost) for result in results))
    return table


def render_sessions(title: str, results: Sequence[tuple[str, Result]], most: int) -> RenderableType:
    """One line each, the largest first. results: name of the session, and what came of it."""
    shown = sorted(results, key=lambda each: -each[1].sums.received)[:most]
    table = Table(box=_BOX, pad_edge=False, show_edge=False, padding=0)
    table.add_column(Text(title), no_wrap=True, max_width=_NAME_COLUMNS)
    for name in ("reqs", "received", "sent", "comp", "prune", "breaks", "reuse", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, result in shown:
        sums = result.sums
        table.add_row(
            Text(_shorten(name)),
            str(sums.requests),
            show_tokens(sums.received),
            show_tokens(sums.sent),
            _show_count(sums.compactions + sums.digests),
            _show_count(sums.prunings),
            _show_count(sums.breaks),
            f"{100 * sums.sent_reuse:.0f}%" if sums.sent else UNKNOWN,
            show_usd(result.cost.saved) if result.cost.saved is not None else _show_less(sums),
        )
    left = len(results) - len(shown)
    return Group(table, Text(f"and {left} smaller ones; --json has all", style="dim")) if left else table


def _show_count(count: int) -> str:
    return str(count) if count else "·"


def _show_less(sums: Sums) -> str:
    return f"{100 * (1 - sums.sent / sums.received):.0f}%" if sums.received else UNKNOWN


def _shorten(name: str) -> str:
    """The end of a long name tells more than its beginning."""
    printable = "".join(character if character.isprintable() else "?" for character in name)
    return printable if len(printable) <= _NAME_COLUMNS else "…" + printable[1 - _NAME_COLUMNS :]
