"""`refold doctor`: runs all checks, in the order in which they matter, and prints what was found."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.admin.answers import ConversationList
from gateway.command_line.admin_client import AdminClient, AdminError, TokenRefused
from gateway.command_line.console import make_console, render_json
from gateway.command_line.options import load_chosen_settings
from gateway.doctor.finding import STATUSES, Check, Diagnosis, Examined, Level, blame
from gateway.doctor.machine import (
    check_clock,
    check_exposure,
    check_ports,
    check_process,
    check_search,
    check_settings,
)
from gateway.doctor.store_disk import check_store
from gateway.doctor.upstreams import check_streaming, check_upstreams, check_windows, examine_upstream
from gateway.http.client import Client
from gateway.settings import Settings, SettingsError

# By subject.
CHECKS: Final[dict[str, Check]] = {
    "settings": check_settings,
    "store": check_store,
    "search": check_search,
    "upstream": check_upstreams,
    "streaming": check_streaming,
    "windows": check_windows,
    "clock": check_clock,
    "ports": check_ports,
    "process": check_process,
    "exposure": check_exposure,
}
_MOST_CONVERSATIONS: Final = 500
# Each is a line of the report.
_MOST_MODELS: Final = 10
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


# A finding and its subject.
_Found = tuple[str, Diagnosis]


def run_doctor(options: argparse.Namespace) -> int:
    """The exit status: 0 if all is well, 1 with warnings, 2 with problems."""
    if options.json:
        found = _examine(options)
        shown = [{"subject": subject, **finding._asdict()} for subject, finding in found]
        # Not `print`, which belongs to the program itself.
        sys.stdout.write(render_json({"level": _choose_level(found), "findings": shown}) + "\n")
    else:
        with make_console(is_error=True).status("Examining the set-up …"):
            found = _examine(options)
        _show(make_console(), found)
    return STATUSES[_choose_level(found)]


def _examine(options: argparse.Namespace) -> list[_Found]:
    try:
        settings = load_chosen_settings(options, os.environ)
    except SettingsError as error:
        # Each problem names its line, and never the value there.
        hint = "`refold schema` helps editors to do it"
        return [
            ("settings", blame(str(problem), f"correct {problem.where}; {hint}"))
            for problem in error.problems
        ]
    return asyncio.run(_run_checks(settings, options))


async def _run_checks(settings: Settings, options: argparse.Namespace) -> list[_Found]:
    used, has_other_token = await asyncio.to_thread(_ask_gateway, settings)
    upstreams = settings.upstreams
    async with Client() as client:
        reports = await asyncio.gather(*(examine_upstream(client, each) for each in upstreams.values()))
        examined = Examined(
            settings=settings,
            file=options.config,
            models=[*options.models, *([options.ask] if options.ask else []), *used],
            asked=options.ask,
            client=client,
            reports=dict(zip(upstreams, reports, strict=True)),
            has_other_token=has_other_token,
        )
        return [(subject, finding) for subject, check in CHECKS.items() async for finding in check(examined)]


def _ask_gateway(settings: Settings) -> tuple[list[str], bool]:
    """The models of the conversations of the gateway that runs here, if any; whether it refuses the token."""
    if not settings.admin.port:
        return [], False
    try:
        with AdminClient(settings) as client:
            listed = client.get("/conversations", ConversationList, {"limit": _MOST_CONVERSATIONS})
    except AdminError as error:
        return [], isinstance(error, TokenRefused)
    return list(dict.fromkeys(row.model for row in listed.conversations))[:_MOST_MODELS], False


def _choose_level(found: Sequence[_Found]) -> Level:
    """The worst."""
    return max((finding.level for _, finding in found), key=STATUSES.__getitem__, default="ok")


def _show(console: Console, found: Sequence[_Found]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for subject, (level, what, fix) in found:
        table.add_row(Text(subject, "dim"), Text(level, _STYLES[level]), Text(what))
        if fix is not None:
            table.add_row("", Text("fix", "bold"), Text(fix, "cyan"))
    console.print(table)
    problems, warnings = (
        sum(finding.level == level for _, finding in found) for level in ("problem", "warning")
    )
    is_well = not problems + warnings
    text = "All is well." if is_well else f"problems: {problems}, warnings: {warnings}"
    console.print(Text(text, _STYLES[_choose_level(found)]))
