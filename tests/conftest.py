"""Settings for the whole suite, and the tables that tests fill in. Other fixtures live beside their tests."""

from collections.abc import Callable

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

from tests.examples import DEFAULT, EXHAUSTIVE, register_profiles

Note = Callable[[str, str], None]
_ROW = "row of "


def pytest_configure(config: pytest.Config) -> None:
    """`-m exhaustive` also chooses the hypothesis profile; `--hypothesis-profile` wins over it."""
    register_profiles()
    if config.getoption("--hypothesis-profile") is None:
        words = str(config.getoption("-m")).replace("not exhaustive", "").split()
        settings.load_profile(EXHAUSTIVE if "exhaustive" in words else DEFAULT)


@pytest.fixture
def note_row(record_property: Callable[[str, object], None]) -> Note:
    """Adds a row to the table with this heading. All tables are printed at the end of the run."""

    def note(heading: str, row: str) -> None:
        record_property(_ROW + heading, row)

    return note


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    stats = terminalreporter.stats
    reports = [report for outcome in ("passed", "failed") for report in stats.get(outcome, ())]
    noted = [noted for report in reports if report.when == "call" for noted in report.user_properties]
    tables: dict[str, list[str]] = {}
    for name, row in noted:
        if name.startswith(_ROW):
            tables.setdefault(name.removeprefix(_ROW), []).append(str(row))
    for heading, rows in sorted(tables.items()):
        terminalreporter.write_line("\n" + "\n".join([heading, *sorted(rows)]))
