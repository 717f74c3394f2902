"""Collects the rows of all trials, prints them as a table at the end, and leaves it beside the programs."""

import pytest
from _pytest.terminal import TerminalReporter

from tests.agents.client import INSTALLED
from tests.agents.table import render_table
from tests.agents.trial import Row

_ROWS = pytest.StashKey[list[Row]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return request.config.stash[_ROWS]


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_ROWS, [])
    if not found:
        return
    table = render_table(found)
    (INSTALLED / "table.md").write_text(table, "utf-8")
    terminalreporter.section("agents behind the gateway")
    terminalreporter.write(table)
