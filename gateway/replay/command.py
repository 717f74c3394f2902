"""`refold replay`: reads, plays, and shows what came of it."""

import argparse
import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gateway.activity.prices import PriceList, load_price_table
from gateway.command_line.console import make_console, render_json
from gateway.replay.recordings import NotARecording, ReplayError
from gateway.replay.report import show_report
from gateway.replay.results import PlayedSource, Pricing, make_report
from gateway.replay.simulation import ReplaySession, choose_settings, open_gateways
from gateway.replay.sources import FoundSources, Source, find_sources, read_source
from gateway.settings import Settings, load_settings

# Of recordings that name no model, and of a replay without --price.
_NO_MODEL: Final = "recorded"
_MOST_UNREADABLE: Final = 3


def run_replay(options: argparse.Namespace) -> int:
    """The exit status: 0; 1 if nothing could be played; 2 for wrong usage."""
    console, errors = make_console(), make_console(is_error=True)
    # What a gateway would log of each compaction is in the result.
    logging.getLogger("gateway").setLevel(logging.ERROR)
    begun = time.monotonic()
    try:
        settings = load_settings(Path(options.config) if options.config else None, os.environ)
        sources = find_sources([Path(name) for name in options.files])
        settings = replace(settings, models=(*settings.models, *sources.rules))
        choices = choose_settings(settings, options.policies, options.window)
        pricing = _choose_pricing(settings, options.price)
    except ReplayError as error:
        errors.print(Text(f"gateway: {error}"))
        return 2
    _warn_of_unreadable(sources, errors)
    with _make_progress(errors) as progress:
        sessions = asyncio.run(play_all(sources.found, choices, options.price or _NO_MODEL, progress))
    report = make_report([*choices], sessions, pricing, time.monotonic() - begun)
    if options.json:
        console.print(Text(render_json(report)), soft_wrap=True)
    else:
        show_report(report, pricing, console)
    return 0 if any(session.played for session in sessions) else 1


def _choose_pricing(settings: Settings, model: str | None) -> Pricing:
    """Raises ReplayError for a model without a price."""
    prices = PriceList(settings, load_price_table())
    if model is not None and prices.find(model) is None:
        raise ReplayError(
            f"no price is known for {model!r}: name it in the settings (models: [{{match: …, price: …}}])"
        )
    return Pricing(prices.find, model)


def _warn_of_unreadable(sources: FoundSources, errors: Console) -> None:
    for path, why in sources.unreadable[:_MOST_UNREADABLE]:
        errors.print(Text(f"not a recording: {path}: {why}"), soft_wrap=True)
    left = len(sources.unreadable) - _MOST_UNREADABLE
    if left > 0:
        errors.print(Text(f"and {left} more files that are no recordings"))


def _make_progress(errors: Console) -> Progress:
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


async def play_all(
    sources: Sequence[Source], choices: Mapping[str, Settings], model: str, progress: Progress
) -> list[PlayedSource]:
    """In the order of the sources. model: of recordings that name none."""
    task = progress.add_task("replay", total=sum(source.size_bytes for source in sources))
    found = []
    async with open_gateways(choices) as gateways:
        for number, source in enumerate(sources):
            # A tenant for each source and policy: they share what is kept in memory.
            sessions = [ReplaySession(each, f"replay-{number}-{at}") for at, each in enumerate(gateways)]
            found.append(await _play_source(source, model, sessions, partial(progress.advance, task)))
    return found


async def _play_source(
    source: Source, model: str, sessions: Sequence[ReplaySession], advance: Callable[[float], None]
) -> PlayedSource:
    """advance: is told how many bytes of the files have been played since it was last told."""
    try:
        recording = read_source(source, model)
    except NotARecording as error:
        advance(source.size_bytes)
        return PlayedSource(name=source.name, file_bytes=source.size_bytes, failure=str(error))
    request_bytes = 0
    for request in recording.requests:
        body = request.body
        request_bytes += len(body)
        for session in sessions:
            await session.play(request, body)
        advance(source.size_bytes / len(recording.requests))
    return PlayedSource(
        name=source.name,
        kind=recording.kind,
        skipped=recording.skipped,
        file_bytes=source.size_bytes,
        request_bytes=request_bytes,
        played=tuple(session.finish(source.name) for session in sessions),
    )
