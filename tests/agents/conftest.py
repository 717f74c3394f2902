"""Collects the rows of all trials, prints them as a table at the end, and leaves it beside the programs."""

from collections.abc import Mapping

import pytest
from _pytest.terminal import TerminalReporter

from tests.agents.client import INSTALLED
from tests.agents.trial import Row

_ROWS = pytest.StashKey[list[Row]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return request.config.stash[_ROWS]


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(_ROWS, []):
        table = _render([_name_cells(row) for row in found])
        (INSTALLED / "table.md").write_text(table, "utf-8")
        terminalreporter.section("agents behind the gateway")
        terminalreporter.write(table)


def _render(rows: list[Mapping[str, str]]) -> str:
    """In Markdown, columns aligned."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def _name_cells(row: Row) -> Mapping[str, str]:
    client = row.client
    cells = {
        "agent": client.name,
        "package": f"{client.package} {client.version}",
        "API": client.api,
        "window": f"{client.window:,}",
        "windows": f"{row.windows:.1f}",
    }
    counts = {name: f"{count:,}" for name, count in row.count_all().items()}
    return {**cells, **counts, "seconds": f"{row.seconds:.0f}"}
