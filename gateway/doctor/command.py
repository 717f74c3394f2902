"""`refold doctor`: examines all subjects, in the order in which they matter, and prints what was found."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.admin.answers import ConversationList
from gateway.command_line.admin_client import AdminClient, AdminError
from gateway.command_line.console import make_console, render_json
from gateway.command_line.options import load_chosen_settings
from gateway.doctor.finding import STATUSES, Diagnosis, Level, blame, choose_level, note_ok
from gateway.doctor.machine import (
    examine_clock,
    examine_errors,
    examine_exposure,
    examine_ports,
    examine_process,
    examine_search,
    examine_settings,
)
from gateway.doctor.store_disk import examine_disk
from gateway.doctor.upstreams import UpstreamReport, examine_stream, examine_upstream, examine_windows
from gateway.http.client import Client
from gateway.settings import Settings, SettingsError
from gateway.store.redis_address import is_redis

_MEMORY: Final = "memory:"
_MOST_CONVERSATIONS: Final = 500
# Each is a line of the report.
_MOST_MODELS: Final = 10
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_WORKING: Final = "Examining the set-up …"


def run_doctor(options: argparse.Namespace) -> int:
    """The exit status: 0 if all is well, 1 with warnings, 2 with problems."""
    if options.json:
        findings = _examine(options)
        value = {"level": choose_level(findings), "findings": findings}
        # Not `print`, which belongs to the program itself.
        sys.stdout.write(render_json(value) + "\n")
    else:
        with make_console(is_error=True).status(_WORKING):
            findings = _examine(options)
        _show_findings(make_console(), findings)
    return STATUSES[choose_level(findings)]


def _examine(options: argparse.Namespace, env: Mapping[str, str] = os.environ) -> list[Diagnosis]:
    try:
        settings = load_chosen_settings(options, env)
    except SettingsError as error:
        return list(examine_errors(error))
    return asyncio.run(_examine_all(settings, options))


async def _examine_all(settings: Settings, options: argparse.Namespace) -> list[Diagnosis]:
    reports, answers = await _ask_upstreams(settings, options.ask)
    used = await asyncio.to_thread(_find_used_models, settings)
    models = [*options.models, *([options.ask] if options.ask else []), *used]
    listed = {name: report.names for name, report in reports.items() if report.names}
    dates = {name: report.date for name, report in reports.items() if report.date}
    return [
        *examine_settings(settings, options.config),
        *await _examine_store(settings),
        *examine_search(),
        *(finding for report in reports.values() for finding in report.findings),
        *answers,
        *await examine_windows(settings, models, listed),
        *examine_clock(dates),
        # It asks a gateway that may run here, and waits for it.
        *await asyncio.to_thread(lambda: list(examine_ports(settings))),
        *examine_process(settings),
        *examine_exposure(settings),
    ]


def _find_used_models(settings: Settings) -> list[str]:
    """Those of the conversations of the gateway that runs here, if any."""
    if not settings.admin.port:
        return []
    try:
        with AdminClient(settings) as client:
            listed = client.get("/conversations", ConversationList, {"limit": _MOST_CONVERSATIONS})
    except AdminError:
        return []
    return list(dict.fromkeys(row.model for row in listed.conversations))[:_MOST_MODELS]


async def _examine_store(settings: Settings) -> Sequence[Diagnosis]:
    if is_redis(settings.store):
        if find_spec("redis") is None:
            return [blame("store", "the package for Redis is not installed", "pip install 'refold[redis]'")]
        from gateway.doctor.store_redis import examine_redis  # it needs this package

        return await examine_redis(settings)
    if settings.store == _MEMORY:
        return [note_ok("store", "in memory: a restart forgets summaries, and clients go on without them")]
    return await asyncio.to_thread(lambda: list(examine_disk(settings)))


async def _ask_upstreams(
    settings: Settings, model: str | None
) -> tuple[dict[str, UpstreamReport], list[Diagnosis]]:
    """model: is asked for one token at each upstream that can be reached; None: none is."""
    upstreams = settings.upstreams
    async with Client() as client:
        found = await asyncio.gather(*(examine_upstream(client, upstream) for upstream in upstreams.values()))
        reports = dict(zip(upstreams, found, strict=True))
        if model is None:
            return reports, []
        usable = [upstream for name, upstream in upstreams.items() if reports[name].is_usable]
        asked = (examine_stream(client, settings, each, model, reports[each.name].names) for each in usable)
        return reports, list(await asyncio.gather(*asked))


def _show_findings(console: Console, findings: Sequence[Diagnosis]) -> None:
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
