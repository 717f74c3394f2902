"""What `refold doctor` prints."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.command_line.console import make_console, render_json
from gateway.doctor.examination import examine
from gateway.doctor.finding import STATUSES, Diagnosis, Level, choose_level

_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_WORKING: Final = "Examining the set-up …"


def run_doctor(options: argparse.Namespace) -> int:
    """The exit status: 0 if all is well, 1 with warnings, 2 with problems."""
    if options.json:
        findings = examine(options)
        # Not `print`, which belongs to the program itself.
        sys.stdout.write(render_json(list_values(findings)) + "\n")
    else:
        with make_console(is_error=True).status(_WORKING):
            findings = examine(options)
        show_findings(make_console(), findings)
    return STATUSES[choose_level(findings)]


def list_values(findings: Sequence[Diagnosis]) -> dict[str, object]:
    """For programs."""
    return {
        "level": choose_level(findings),
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }


def show_findings(console: Console, findings: Sequence[Diagnosis]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.level]
        table.add_row(Text(finding.subject, "dim"), Text(finding.level, style), Text(finding.what))
        if finding.fix is not None:
            table.add_row("", Text("fix", "bold"), Text(finding.fix, "cyan"))
    console.print(table)
    console.print(Text(_summarize(findings), _STYLES[choose_level(findings)]))


def _summarize(findings: Sequence[Diagnosis]) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    return "All is well." if not problems + warnings else f"problems: {problems}, warnings: {warnings}"
