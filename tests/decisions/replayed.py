"""Small recordings for tests, and what a replay makes of them."""

from collections.abc import Sequence
from pathlib import Path

from gateway.replay.playing import PlayedSource, play_all
from gateway.replay.policies import choose_settings
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
    processes: int = 1,
) -> list[PlayedSource]:
    choices = choose_settings(load(settings, folder), policies, window)
    return play_all(find_sources(paths).found, choices, MODEL, lambda _: None, processes)
