"""Conversations as a table."""

from io import StringIO

import pytest
from rich.console import Console

from gateway.activity.rows import Row
from gateway.command_line.conversation_table import make_table
from tests.builders.shown_rows import make_plain_row


def render(row: Row, columns: int) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=columns).print(make_table([row], columns))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("columns", [80, 140])
def test_a_conversation_takes_one_line(columns: int) -> None:
    row = make_plain_row(
        tenant="a-tenant-with-a-long-name" * 2,
        model="a/model-with-a-very-long-name-indeed" * 2,
        session="label" * 20,
        requests=1_234_567,
        sent_tokens=123_456,
        window=1_234_567,
        saved_tokens=999_999_999,
        compactions=999,
        spent_usd=12_345.0,
    )
    lines = render(row, columns)
    assert len(lines) == 2 and max(map(len, lines)) <= columns
    assert "123k/1.2M" in lines[1] and "999" in lines[1]
    assert ("$12345.00" in lines[1]) == (columns == 140)


def test_a_window_that_is_not_known_has_no_bar() -> None:
    lines = render(make_plain_row(window=None, soft=None), 80)
    assert "8k/–" in lines[1] and "█" not in lines[1]
    assert "████░" in render(make_plain_row(), 80)[1]


def test_names_of_tenants_are_no_commands_to_a_terminal() -> None:
    assert "\x1b" not in render(make_plain_row(tenant="\x1b[2J", model="[red]m"), 80)[1]
