"""One conversation for a person: its numbers, a chart of its newest requests, and its summaries."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.command_line.console import make_printable
from gateway.command_line.figures import UNKNOWN, draw_bar, show_ago, show_tokens, show_usd

_SHOWN_REQUESTS: Final = 15
_BAR_COLUMNS: Final = 24


def show_conversation(console: Console, shown: Mapping[str, Any], *, with_texts: bool) -> None:
    """shown: `conversation`, `requests` (the oldest first) and `summaries`, as the API answers them."""
    row = shown["conversation"]
    console.print(_make_head(row))
    requests = shown["requests"][-_SHOWN_REQUESTS:]
    if requests:
        console.print(Text(f"\nNewest requests: {len(requests)} of {row['requests']:,}", "bold"))
        console.print(_make_chart(requests, row.get("window")))
    for summary in shown["summaries"]:
        _show_summary(console, summary, row, with_texts=with_texts)


def _make_head(row: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    label = f", labelled {row['session']}" if row.get("session") else ""
    limits = ", ".join(f"{name} {show_tokens(row.get(name))}" for name in ("window", "soft", "hard"))
    lines = (
        ("id", row["id"] + (f", branched from {row['parent']}" if row.get("parent") else "")),
        ("tenant", f"{row['tenant']}{label}"),
        ("model", f"{row['model']} at {row['upstream']}"),
        ("seen", f"{show_ago(row['last_seen'])} ago; first {show_ago(row['first_seen'])} ago"),
        (
            "tokens",
            f"{show_tokens(row['received_tokens'])} received, {show_tokens(row['sent_tokens'])} sent; {limits}",
        ),
        ("plan", f"{row['plan']}; {row['compactions']} compactions, {row['prunings']} prunings"),
        ("saved", f"{show_tokens(row['saved_tokens'])} tokens, {show_usd(row['saved_usd'])}"),
        ("spent", f"{show_usd(row['spent_usd'])}, summaries {show_usd(row['summary_usd'])}"),
    )
    for name, text in lines:
        table.add_row(name, Text(make_printable(text)))
    return table


def _make_chart(requests: Sequence[Mapping[str, Any]], window: int | None) -> Table:
    """A line for each request: what was received and what was sent of it, against the window."""
    most = window or max(request["received"] for request in requests) or None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("AGO", "MSGS", "RECEIVED", "SENT"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("OF THE WINDOW" if window else "", no_wrap=True)
    table.add_column("PLAN", no_wrap=True, overflow="ellipsis")
    for request in requests:
        change = request.get("change")
        table.add_row(
            show_ago(request["at"]),
            str(request["messages"]),
            show_tokens(request["received"]),
            show_tokens(request["sent"]),
            Text(draw_bar(request["sent"], most, _BAR_COLUMNS, request.get("soft")), "green"),
            Text(request["plan"] + (f" ← {change}" if change else ""), "magenta" if change else ""),
        )
    return table


def _show_summary(
    console: Console, summary: Mapping[str, Any], row: Mapping[str, Any], *, with_texts: bool
) -> None:
    used = ", in use" if summary.get("in_use") else ""
    cost = f"{summary['calls']} calls, {show_usd(summary.get('usd'))}"
    console.print(
        Text(
            f"\n{summary['kind']} of {summary['covers']} messages{used}: {summary['reason'] or summary['trigger']}, "
            f"{show_ago(summary['created'])} ago; {show_tokens(summary['tokens'])} tokens; {cost}",
            "bold",
        )
    )
    if not with_texts:
        return
    text = summary.get("text")
    reason = (row.get("texts") or {}).get("reason") or UNKNOWN
    console.print(Text(_clean(text) if text is not None else f"its text is not shown: {reason}"))


def _clean(text: str) -> str:
    """With its lines, and nothing else that a terminal would obey."""
    return "\n".join(map(make_printable, text.splitlines()))
