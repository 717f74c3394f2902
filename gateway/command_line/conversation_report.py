"""Conversations for a person: as a table; and one with its numbers, a chart of its newest requests, and its
summaries.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.activity.economics import find_saved_usd
from gateway.activity.rows import Row
from gateway.admin.answers import ConversationPage, RequestRow, SummaryRow
from gateway.command_line.console import make_printable
from gateway.command_line.figures import (
    UNKNOWN,
    describe_cache,
    describe_saved,
    draw_bar,
    show_ago,
    show_number_of,
    show_signed_usd,
    show_tokens,
    show_usd,
)

_SHOWN_REQUESTS: Final = 15
_BAR_COLUMNS: Final = 24
_ID_CHARS: Final = 8
_TABLE_BAR_COLUMNS: Final = 8
# From here on there is room for labels and money.
_WIDE_COLUMNS: Final = 140
_NEAR: Final = 0.75
_STATES: Final = {"prepared": ", prepared", "in_use": ", in use", "replaced": ", replaced"}


def make_table(rows: Iterable[Row], columns: int) -> Table:
    """columns: width of the terminal. Of 80 columns, each conversation takes one line."""
    is_wide = columns >= _WIDE_COLUMNS
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("ID", no_wrap=True, min_width=_ID_CHARS)
    table.add_column("TENANT", no_wrap=True, overflow="ellipsis", max_width=12 if is_wide else 9)
    if is_wide:
        table.add_column("LABEL", no_wrap=True, overflow="ellipsis", max_width=12)
    table.add_column("MODEL", no_wrap=True, overflow="ellipsis", max_width=16 if is_wide else 13)
    for name in ("SEEN", "REQ", "SENT/WINDOW"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True, width=_TABLE_BAR_COLUMNS)
    for name in ("CMP", "SAVED", *(("UNSENT", "SPENT", "SUMMARIES") if is_wide else ())):
        table.add_column(name, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*_make_cells(row, is_wide=is_wide))
    return table


def _make_cells(row: Row, *, is_wide: bool) -> list[Text]:
    share = row.sent_tokens / row.window if row.window else 0.0
    wide = show_tokens(row.saved_tokens), show_usd(row.spent_usd), show_usd(row.summary_usd)
    return [
        Text(row.id[:_ID_CHARS], "bold"),
        Text(make_printable(row.tenant)),
        *([Text(make_printable(row.session or UNKNOWN), "dim")] if is_wide else []),
        Text(make_printable(row.model)),
        Text(show_ago(row.last_seen)),
        Text(f"{row.requests:,}"),
        Text(f"{show_tokens(row.sent_tokens)}/{show_tokens(row.window)}"),
        Text(
            draw_bar(row.sent_tokens, row.window, _TABLE_BAR_COLUMNS, row.soft),
            "yellow" if share > _NEAR else "green",
        ),
        Text(str(row.compactions), "magenta" if row.compactions else ""),
        Text(show_signed_usd(find_saved_usd(row.economics))),
        *(map(Text, wide) if is_wide else []),
    ]


class ShownConversation(msgspec.Struct, frozen=True, kw_only=True):
    """requests: the oldest first. summaries: the newest first."""

    conversation: ConversationPage
    requests: list[RequestRow]
    summaries: list[SummaryRow]


def show_conversation(console: Console, shown: ShownConversation, *, with_texts: bool) -> None:
    row, requests = shown.conversation, shown.requests[-_SHOWN_REQUESTS:]
    console.print(_make_head(row))
    if requests:
        console.print(Text(f"\nNewest requests: {len(requests)} of {row.requests:,}", "bold"))
        console.print(_make_chart(requests, row.window))
    for summary in shown.summaries:
        console.print(Text(f"\n{_describe_summary(summary)}", "bold"))
        if with_texts:
            hidden = f"its text is not shown: {row.texts.reason or UNKNOWN}"
            console.print(Text(_clean(summary.text) if summary.text is not None else hidden))


def _make_head(row: ConversationPage) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    label = f", labelled {row.session}" if row.session else ""
    limits = (("window", row.window), ("soft", row.soft), ("hard", row.hard))
    changes = f"{show_number_of(row.compactions, 'compaction')}, {show_number_of(row.prunings, 'pruning')}"
    if row.economics.unused_summaries:
        changes += f", summaries not used so far: {row.economics.unused_summaries:,}"
    sent = f"{'' if row.prompt_tokens else 'about '}{show_tokens(row.sent_tokens)}"
    lines = (
        ("money", describe_saved(row.economics, row.died_at)),
        ("id", row.id + (f", branched from {row.parent}" if row.parent else "")),
        ("tenant", f"{row.tenant}{label}"),
        ("model", f"{row.model} at {row.upstream}"),
        ("seen", f"{show_ago(row.last_seen)} ago; first {show_ago(row.first_seen)} ago"),
        ("limits", ", ".join(f"{name} {show_tokens(tokens)}" for name, tokens in limits)),
        ("tokens", f"{show_tokens(row.received_tokens)} received, {sent} sent"),
        ("plan", f"{row.plan}; {changes}"),
        ("not sent", f"{show_tokens(row.saved_tokens)} tokens of all requests"),
        ("spent", f"{show_usd(row.spent_usd)}, summaries {show_usd(row.summary_usd)}"),
        ("cached", describe_cache(row.economics, row.cache_breaks)),
    )
    for name, text in lines:
        table.add_row(name, Text(make_printable(text)))
    return table


def _make_chart(requests: Sequence[RequestRow], window: int | None) -> Table:
    """A line for each request: what was received and what was sent of it, against the window."""
    most = window or max(request.received for request in requests) or None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("AGO", "MSGS", "RECEIVED", "SENT"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("OF THE WINDOW" if window else "", no_wrap=True)
    table.add_column("PLAN", no_wrap=True, overflow="ellipsis")
    for request in requests:
        table.add_row(
            show_ago(request.at),
            str(request.messages),
            show_tokens(request.received),
            show_tokens(request.sent),
            Text(draw_bar(request.sent, most, _BAR_COLUMNS, request.soft), "green"),
            Text(
                request.plan + (f" ← {request.change}" if request.change else ""),
                "magenta" if request.change else "",
            ),
        )
    return table


def _describe_summary(summary: SummaryRow) -> str:
    used = _STATES[summary.state]
    riding = f", {summary.riding_calls:,} riding" if summary.riding_calls else ""
    calls = f"{show_number_of(summary.calls, 'call')}{riding}"
    covers = show_number_of(summary.covers, "message")
    why = make_printable(summary.reason or "made for an earlier part")
    return (
        f"{summary.kind} of {covers}{used}: {why}, {show_ago(summary.created)} ago; "
        f"{show_tokens(summary.tokens)} tokens; {calls}, {show_usd(summary.usd)}"
    )


def _clean(text: str) -> str:
    """With its lines, and nothing else that a terminal would obey."""
    return "\n".join(map(make_printable, text.splitlines()))
