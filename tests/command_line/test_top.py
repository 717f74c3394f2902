"""`refold top`: once, as JSON, live in a real terminal, and its rates."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from functools import partial
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from gateway.activity.economics import Economics
from gateway.command_line.options import parse_arguments
from gateway.command_line.top import LiveRows, count_totals, follow, render_screen, run_top
from gateway.settings import load_settings
from tests.builders.shown_rows import make_plain_row
from tests.toy.admin_api import serving_admin_port
from tests.toy.agent import make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session, wait_until
from tests.toy.upstream import ToyUpstream

# Without a token.
OPEN_ADMIN = "admin: {port: 0}\n"


def test_rates_count_what_was_added_within_a_minute() -> None:
    now = [0.0]
    rows = LiveRows(lambda: now[0])
    rows.replace([make_plain_row(requests=10)])
    now[0] = 30.0
    rows.update([make_plain_row(requests=13, sent_tokens=9_000)])
    assert rows.count_rates() == {"requests_per_minute": 6.0, "sent_tokens_per_minute": 18_000}
    now[0] = 300.0
    assert rows.count_rates() == {"requests_per_minute": 0.0, "sent_tokens_per_minute": 0}


def test_a_changed_row_takes_the_place_of_the_old_one() -> None:
    rows = LiveRows()
    older = make_plain_row(id="b", last_seen="2026-11-23T11:00:00.000+00:00")
    rows.replace([make_plain_row(id="a"), older])
    rows.update([make_plain_row(id="b", requests=9)])
    assert {row.id: row.requests for row in rows.list_rows()} == {"a": 3, "b": 9}


def test_sums_leave_out_money_that_is_not_known() -> None:
    totals = count_totals([make_plain_row(), make_plain_row(saved_usd=None)])
    assert (totals.requests, totals.saved_usd, totals.summary_usd) == (6, 0.25, None)


def test_what_all_of_them_cost_is_one_line_each() -> None:
    economics = Economics(
        prompt_tokens=900, cached_tokens=450, compared_requests=5, with_usd=1, without_usd=2
    )
    rows = LiveRows()
    rows.replace([make_plain_row(id=name, cache_breaks=2, economics=economics) for name in "ab"])
    stream = StringIO()
    console = Console(file=stream, width=80)
    console.print(render_screen(rows, console, most=5))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("+$2.00 saved: $4.00 without the gateway, $2.00 with it, for 10 requests")
    assert lines[3].startswith("cached 50% of 1.8k prompt tokens; 4 breaks")


def test_the_screen_fits_80_columns_and_tells_trouble() -> None:
    rows = LiveRows()
    rows.replace([make_plain_row()])
    rows.trouble = "the gateway is away"
    stream = StringIO()
    console = Console(file=stream, width=80)
    console.print(render_screen(rows, console, most=5, rates=rows.count_rates()))
    assert "the gateway is away" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= 80


async def test_once_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving_admin_port() as toy:
        rows = msgspec.to_builtins([make_plain_row()])
        toy.answer("GET", "/conversations", {"conversations": rows, "next": None})
        config = ("--config", toy.write_settings(tmp_path))
        assert await asyncio.to_thread(run_top, parse_arguments(["top", "--once", *config]), {}) == 0
        assert "conversations 1 · requests 3" in capsys.readouterr().out
        assert await asyncio.to_thread(run_top, parse_arguments(["top", "--json", *config]), {}) == 0
        assert json.loads(capsys.readouterr().out)["totals"]["requests"] == 3
    assert await asyncio.to_thread(run_top, parse_arguments(["top", "--json", *config]), {}) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "no gateway answers" in captured.err


async def test_rows_follow_a_running_gateway() -> None:
    rows, over = LiveRows(), asyncio.Event()
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=OPEN_ADMIN)) as gateway:
        settings = load_settings(None, {}, admin_port=gateway.admin_port)
        following = asyncio.create_task(
            asyncio.to_thread(partial(follow, settings, rows, is_over=over.is_set))
        )
        try:
            await wait_until(lambda: gateway.bus.watchers > 0, 60)
            played = await run_session(make_session(3, 1, "one_user", 100), gateway.base_url, toy)
            await wait_until(lambda: any(row.requests == 3 for row in rows.list_rows()), 60)
        finally:
            over.set()
        assert [row.id for row in rows.list_rows()] == [played.conversation]
    await following


@pytest.mark.parametrize("end", [b"q", b"\x03"])
async def test_a_terminal_is_left_as_it_was(end: bytes, tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        rows = msgspec.to_builtins([make_plain_row()])
        toy.answer("GET", "/conversations", {"conversations": rows, "next": None})
        config = toy.write_settings(tmp_path)
        assert await asyncio.to_thread(watch, config, end) == 0


def watch(config: str, end: bytes) -> int:
    """The exit status of `refold top` in a terminal in which somebody presses a key."""
    person, terminal = pty.openpty()
    words = [sys.executable, "-m", "gateway", "top", "--config", config]
    program = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, preexec_fn=_control
    )
    os.close(terminal)
    try:
        read_until(person, b"SENT/WINDOW")
        os.write(person, end)
        # The other screen is left, and the cursor shown again.
        shown = read_until(person, b"\x1b[?1049l")
        shown += read_until(person, b"\x1b[?25h") if b"\x1b[?25h" not in shown else b""
        return program.wait(60)
    finally:
        program.kill()
        program.wait()
        os.close(person)


def _control() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_until(descriptor: int, end: bytes) -> bytes:
    data = b""
    while end not in data:
        data += os.read(descriptor, 1 << 16)
    return data
