"""`refold replay`: reads, plays, and shows what came of it."""

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gateway.activity.prices import load_price_table, make_price_list
from gateway.command_line.console import render_json
from gateway.replay.chart import render_chart
from gateway.replay.errors import ReplayError
from gateway.replay.money import Pricing
from gateway.replay.playing import PlayedSource, count_processes, play_all
from gateway.replay.policies import choose_settings
from gateway.replay.report import SIMULATED, ReplayReport, make_json
from gateway.replay.sources import FoundSources, find_sources, list_rules
from gateway.replay.svg import Panel, render_svg
from gateway.replay.tables import render_policies, render_sessions
from gateway.replay.timeline import list_events
from gateway.settings import Settings, load_settings

# Of recordings that name no model, and of a replay without --price.
_NO_MODEL: Final = "recorded"
_MOST_SESSIONS: Final = 15
_MOST_EVENTS: Final = 20
_MOST_UNREADABLE: Final = 3
_MOST_CHARTS: Final = 2


def run_replay(options: argparse.Namespace, env: Mapping[str, str], console: Console, errors: Console) -> int:
    """The exit status: 0; 1 if nothing could be played; 2 for wrong usage.

    console: for the result. errors: for progress, and what went wrong.
    """
    # What a gateway would log of each compaction is in the result.
    logging.getLogger("gateway").setLevel(logging.ERROR)
    try:
        report = _play(options, env, errors)
    except ReplayError as error:
        errors.print(Text(f"gateway: {error}"))
        return 2
    if options.json:
        console.print(Text(render_json(make_json(report))), soft_wrap=True)
    else:
        show_report(report, console)
    if options.svg is not None:
        Path(options.svg).write_text(render_report_svg(report), "utf-8")
        errors.print(Text(f"wrote {options.svg}"))
    return 0 if any(source.played for source in report.sources) else 1


def _play(options: argparse.Namespace, env: Mapping[str, str], errors: Console) -> ReplayReport:
    begun = time.monotonic()
    settings = load_settings(Path(options.config) if options.config else None, env)
    sources = find_sources([Path(name) for name in options.files])
    settings = replace(settings, models=(*settings.models, *list_rules(sources.found)))
    choices = choose_settings(settings, options.policies, options.window)
    pricing = _choose_pricing(settings, options.price)
    _warn_of_unreadable(sources, errors)
    with _open_progress(errors) as progress:
        task = progress.add_task("replay", total=sum(source.size_bytes for source in sources.found))
        played = play_all(
            sources.found,
            choices,
            options.price or _NO_MODEL,
            lambda done: progress.advance(task, done),
            count_processes(sources.found),
        )
    return ReplayReport(
        policies=[*choices], sources=played, pricing=pricing, seconds=time.monotonic() - begun
    )


def _choose_pricing(settings: Settings, model: str | None) -> Pricing:
    """Raises ReplayError for a model without a price."""
    prices = make_price_list(settings, load_price_table())
    if model is not None and prices.find(model) is None:
        raise ReplayError(
            f"no price is known for {model!r}: name it in the settings (models: [{{match: …, price: …}}])"
        )
    return Pricing(prices.find, model)


def _open_progress(errors: Console) -> Progress:
    """Nothing of it stays on the screen, and in a pipe there is none."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


def _warn_of_unreadable(sources: FoundSources, errors: Console) -> None:
    for path, why in sources.unreadable[:_MOST_UNREADABLE]:
        errors.print(Text(f"not a recording: {path}: {why}"), soft_wrap=True)
    left = len(sources.unreadable) - _MOST_UNREADABLE
    if left > 0:
        errors.print(Text(f"and {left} more files that are no recordings"))


def show_report(report: ReplayReport, console: Console) -> None:
    """For a person."""
    place = report.shown
    name, _ = report.find_largest(place)
    for number in _choose_charts(report):
        runs = report.find_runs(name, number)
        console.print(Text(f"{report.policies[number]}: {name}, tokens of each request", style="bold"))
        console.print(render_chart(runs, console.width), soft_wrap=True)
        console.print()
    events = [*list_events(report.find_runs(name, place))]
    if events:
        console.print(Text(f"{report.policies[place]}: at which request, and what", style="bold"))
        console.print(Text("\n".join(events[:_MOST_EVENTS])))
        if len(events) > _MOST_EVENTS:
            console.print(Text(f"  and {len(events) - _MOST_EVENTS} more; --json has all", style="dim"))
        console.print()
    console.print(Text(f"{report.policies[place]}: each of the sessions", style="bold"))
    title = "session" if len(report.sources) > 1 else "conversation"
    console.print(render_sessions(title, report.list_sessions(place), _MOST_SESSIONS))
    console.print()
    console.print(render_policies(report.results))
    console.print()
    for line in _list_notes(report):
        console.print(Text(line, style="dim"))


def _choose_charts(report: ReplayReport) -> list[int]:
    """The policy that is shown in detail, and another one beside it."""
    others = [number for number in range(len(report.policies)) if number != report.shown]
    return [report.shown, *others][:_MOST_CHARTS]


def render_report_svg(report: ReplayReport) -> str:
    name, _ = report.find_largest(report.shown)
    panels = [Panel(policy, report.find_runs(name, place)) for place, policy in enumerate(report.policies)]
    return render_svg(name, panels)


def _list_notes(report: ReplayReport) -> list[str]:
    """What a reader has to know to trust the numbers."""
    notes = [SIMULATED]
    results = report.results
    sums = results[0].sums
    if sums.window is None:
        notes.append(
            "No window is known for the models of these recordings, so nothing is compacted: try --window."
        )
    notes += _list_gaps(report.sources)
    unpriced = results[0].cost.unpriced
    if unpriced:
        notes.append(f"{unpriced:,} requests are of models without a price: try --price MODEL.")
    notes.append(
        f"Usage was recorded for {sums.recorded_usages:,} of {sums.requests:,} requests. "
        "A cache is assumed to reuse what a prompt begins with in common with the one before it."
    )
    file_bytes = sum(source.file_bytes for source in report.sources)
    request_bytes = sum(source.request_bytes for source in report.sources)
    rate, seconds = max(report.seconds, 1e-9), report.seconds
    notes.append(
        f"{file_bytes / 1e6:,.1f} MB of recordings, {request_bytes / 1e6:,.1f} MB of requests under "
        f"{len(report.policies)} {'policy' if len(report.policies) == 1 else 'policies'} in {seconds:.1f} s: "
        f"{file_bytes / 1e6 / rate:,.1f} and {request_bytes / 1e6 / rate:,.0f} MB/s."
    )
    return notes


def _list_gaps(sources: Sequence[PlayedSource]) -> list[str]:
    """What of the recordings was not played."""
    skipped = sum(source.skipped for source in sources)
    unread = sum(source.played[0].unread for source in sources if source.played)
    failed = sum(source.played[0].failed for source in sources if source.played)
    notes = [f"{source.name} was not played: {source.failure}" for source in sources if source.failure]
    if skipped:
        notes.append(f"{skipped:,} damaged lines or entries were skipped.")
    if unread:
        notes.append(f"{unread:,} requests would pass unread: other paths, or a history stored upstream.")
    if failed:
        notes.append(f"{failed:,} requests failed when they were recorded, and fail here.")
    return notes
