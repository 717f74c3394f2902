"""`refold top`: the conversations of a running gateway, live.

The list is loaded once, and whenever the stream of events begins anew; in between the event `activity` brings
the rows that have changed.
"""

import argparse
import os
import select
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec.structs import replace
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gateway.activity.economics import Economics, sum_economics, sum_fields
from gateway.activity.rows import ActivityEvent, Row, count_sessions
from gateway.admin.answers import ConversationList
from gateway.command_line.admin_client import AdminClient, AdminError
from gateway.command_line.console import make_console, render_json
from gateway.command_line.conversation_report import make_table
from gateway.command_line.figures import describe_cache, describe_saved, show_tokens, show_usd
from gateway.command_line.options import load_chosen_settings
from gateway.settings import Settings


class Keyboard:
    """`with Keyboard() as keyboard:`. Without a terminal it only waits."""

    def __init__(self) -> None:
        has_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._descriptor = sys.stdin.fileno() if has_terminal else None
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Self:
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            # Ctrl-C stays a signal.
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None and self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The next key, or "" if none was pressed within the time."""
        watched = [] if self._descriptor is None else [self._descriptor]
        ready, _, _ = select.select(watched, [], [], seconds)
        if not ready or self._descriptor is None:
            return ""
        pressed = os.read(self._descriptor, 16)
        if not pressed:
            # The terminal was closed; it would be ready for ever.
            self._descriptor = None
        return pressed.decode("utf-8", "replace")


_EVENT: Final = "activity"
_LIMIT: Final = 500
_RATE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 2.0
_QUITS: Final = frozenset("qQ\x1b\x04")
# Lines that are not conversations.
_OTHER_LINES: Final = 7


class LiveRows:
    """Rows by id, and how fast their numbers grow. One thread brings them up to date, another one reads."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.trouble = ""
        self.replace(rows)

    def replace(self, rows: Sequence[Row]) -> None:
        """The whole list."""
        self._rows = {row.id: row for row in rows}
        # Time, and the requests and sent tokens that were seen up to then.
        self._seen = deque([(time.monotonic(), 0, 0)])

    def update(self, rows: Sequence[Row]) -> None:
        """Those that have changed."""
        before = self._rows
        new = sum(row.requests - (before[row.id].requests if row.id in before else 0) for row in rows)
        sent = sum(row.sent_tokens for row in rows if row != before.get(row.id))
        self._rows = before | {row.id: row for row in rows}
        _, all_requests, all_sent = self._seen[-1]
        self._seen.append((time.monotonic(), all_requests + max(new, 0), all_sent + sent))

    def list_rows(self) -> list[Row]:
        """The newest first."""
        return sorted(self._rows.values(), key=lambda row: row.last_seen, reverse=True)

    def count_rates(self) -> tuple[float, float]:
        """Requests and sent tokens in a minute, over the last minute at most."""
        seen, now = self._seen, time.monotonic()
        while len(seen) > 1 and seen[0][0] < now - _RATE_SECONDS:
            seen.popleft()
        (begun, *before), (_, *newest) = seen[0], seen[-1]
        minutes = max(now - begun, 1.0) / 60
        return (newest[0] - before[0]) / minutes, (newest[1] - before[1]) / minutes


def run_top(options: argparse.Namespace) -> int:
    """The exit status. Raises SettingsError and AdminError."""
    settings = load_chosen_settings(options, os.environ)
    with AdminClient(settings) as client:
        rows = LiveRows(_load(client))
    found = rows.list_rows()
    if options.json:
        print(render_json(TopValues(totals=count_totals(found), conversations=found)))
    elif options.once:
        console = make_console()
        console.print(render_screen(rows, console, most=_LIMIT))
    else:
        _watch(settings, rows)
    return 0


class TopTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over conversations. Money is None while no price is known."""

    conversations: int
    requests: int
    compactions: int
    prunings: int
    cache_breaks: int
    saved_tokens: int
    saved_usd: float | None
    spent_usd: float | None
    summary_usd: float | None
    economics: Economics


class TopValues(msgspec.Struct, frozen=True, kw_only=True):
    """What a program gets."""

    totals: TopTotals
    conversations: list[Row]


def count_totals(rows: Sequence[Row]) -> TopTotals:
    counted = count_sessions(rows)
    return TopTotals(
        conversations=counted.sessions,
        **sum_fields(rows, TopTotals.__struct_fields__[1:-1]),
        economics=replace(sum_economics(row.economics for row in rows), died=counted.died),
    )


def render_screen(
    rows: LiveRows, console: Console, *, most: int, rates: tuple[float, float] | None = None
) -> Group:
    """most: conversations that are shown."""
    found = rows.list_rows()
    totals = count_totals(found)
    head = (
        f"conversations {totals.conversations:,} · requests {totals.requests:,} · "
        f"compactions {totals.compactions:,} · prunings {totals.prunings:,}"
    )
    money = (
        f"not sent {show_tokens(totals.saved_tokens)} tokens · spent "
        f"{show_usd(totals.spent_usd)} · summaries {show_usd(totals.summary_usd)}"
    )
    cached = f"cached {describe_cache(totals.economics, totals.cache_breaks)}"
    lines = [
        Text(describe_saved(totals.economics), "bold", no_wrap=True, overflow="ellipsis"),
        *(Text(line, no_wrap=True, overflow="ellipsis") for line in (head, money, cached)),
    ]
    if rates is not None:
        requests, tokens = rates
        rate = f"{requests:.1f} requests and {show_tokens(round(tokens))} tokens a minute · q quits"
        lines.append(Text(rows.trouble or rate, "red" if rows.trouble else "dim"))
    return Group(*lines, make_table(found[:most], console.width))


def _load(client: AdminClient) -> list[Row]:
    return client.get("/conversations", ConversationList, {"limit": _LIMIT}).conversations


def _watch(settings: Settings, rows: LiveRows) -> None:
    """Until a person ends it."""
    console = make_console()
    # A daemon: it waits for events, and has nothing to put away when the program ends.
    threading.Thread(target=_follow, args=(settings, rows), daemon=True).start()
    with (
        Keyboard() as keyboard,
        Live(console=console, screen=console.is_terminal, auto_refresh=False) as live,
    ):
        try:
            while not _QUITS & set(keyboard.wait(_LOOK_SECONDS)):
                most = max(1, console.height - _OTHER_LINES)
                live.update(render_screen(rows, console, most=most, rates=rows.count_rates()), refresh=True)
        except KeyboardInterrupt:
            return


def _follow(settings: Settings, rows: LiveRows) -> None:
    """Brings the rows up to date. While the gateway is away, the old ones stay."""
    while True:
        try:
            with AdminClient(settings) as client:
                _follow_once(client, rows)
        except AdminError as error:
            rows.trouble = str(error)
        time.sleep(_RETRY_SECONDS)


def _follow_once(client: AdminClient, rows: LiveRows) -> None:
    is_first = True
    for event in client.read_events(_EVENT, ActivityEvent):
        if is_first:
            # What happened before the stream began is in the list.
            rows.replace(_load(client))
            rows.trouble, is_first = "", False
        if event is not None:
            rows.update(event.conversations)
