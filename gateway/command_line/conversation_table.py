"""Conversations as a table, for `conversations list` and `top`."""

from collections.abc import Iterable
from typing import Final

from rich.table import Table
from rich.text import Text

from gateway.activity.economics import find_saved_usd
from gateway.activity.rows import Row
from gateway.command_line.console import make_printable
from gateway.command_line.figures import UNKNOWN, draw_bar, show_ago, show_signed_usd, show_tokens, show_usd

_ID_CHARS: Final = 8
_BAR_COLUMNS: Final = 8
# From here on there is room for labels and money.
_WIDE_COLUMNS: Final = 140
_NEAR: Final = 0.75


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
    table.add_column("", no_wrap=True, width=_BAR_COLUMNS)
    for name in ("CMP", "SAVED", *(("UNSENT", "SPENT", "SUMMARIES") if is_wide else ())):
        table.add_column(name, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*_make_cells(row, is_wide=is_wide))
    return table


def _make_cells(row: Row, *, is_wide: bool) -> list[Text]:
    share = row.sent_tokens / row.window if row.window else 0.0
    return [
        Text(row.id[:_ID_CHARS], "bold"),
        Text(make_printable(row.tenant)),
        *([Text(make_printable(row.session or UNKNOWN), "dim")] if is_wide else []),
        Text(make_printable(row.model)),
        Text(show_ago(row.last_seen)),
        Text(f"{row.requests:,}"),
        Text(f"{show_tokens(row.sent_tokens)}/{show_tokens(row.window)}"),
        Text(
            draw_bar(row.sent_tokens, row.window, _BAR_COLUMNS, row.soft),
            "yellow" if share > _NEAR else "green",
        ),
        Text(str(row.compactions), "magenta" if row.compactions else ""),
        Text(show_signed_usd(find_saved_usd(row.economics))),
        *(map(Text, _list_wide(row)) if is_wide else []),
    ]


def _list_wide(row: Row) -> tuple[str, str, str]:
    return show_tokens(row.saved_tokens), show_usd(row.spent_usd), show_usd(row.summary_usd)
