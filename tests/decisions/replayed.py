"""Small recordings for tests, and what a replay makes of them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from gateway.replay.command import play_all
from gateway.replay.results import PlayedSource
from gateway.replay.simulation import choose_settings
from gateway.replay.sources import find_sources
from gateway.settings import Settings, load_settings
from tests.toy.transcripts import MODEL

# So that tests need no tokenizer.
CHARS = "policies: {default: {estimator: chars}, small: {estimator: chars, trigger: {hard_ratio: 0.5}}}\n"


def load(text: str, folder: Path) -> Settings:
    path = folder / "settings.yaml"
    path.write_text(text, "utf-8")
    return load_settings(path, {})


def play(
    paths: Sequence[Path],
    folder: Path,
    *,
    policies: Sequence[str] = ("default",),
    window: int | None = 16_000,
    settings: str = CHARS,
) -> list[PlayedSource]:
    choices = choose_settings(load(settings, folder), policies, window)
    return asyncio.run(play_all(find_sources(paths).found, choices, MODEL, Progress(disable=True)))
