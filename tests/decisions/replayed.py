"""Small recordings for tests, and what a replay makes of them."""

import json
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.activity.prices import PriceList
from gateway.core.money import Price
from gateway.replay.money import Pricing
from gateway.replay.playing import PlayedSource, play_all
from gateway.replay.policies import choose_settings
from gateway.replay.runs import RequestRun
from gateway.replay.sources import find_sources
from gateway.settings import Settings, load_settings
from tests.toy.transcripts import MODEL

PRICING = Pricing(PriceList((), {MODEL: Price(input=1, cached_input=0.1, output=5)}).find)
# So that tests need no tokenizer.
CHARS = "policies: {default: {estimator: chars}, small: {estimator: chars, trigger: {hard_ratio: 0.5}}}\n"
# Compacted by size alone.
BY_SIZE = CHARS.replace("estimator: chars", "estimator: chars, economy: 0")


def write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")
    return path


def write_lines(path: Path, values: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    return path


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


def make_run(**changes: Any) -> RequestRun:
    """A request of 1,000 tokens that is sent as it came."""
    plain = RequestRun(
        conversation="c0ffee00",
        purpose="main",
        model=MODEL,
        messages=3,
        size_bytes=4_000,
        plan="passthrough",
        estimated_received=1_000,
        estimated_sent=1_000,
        received=1_000,
        sent=1_000,
        received_cached=0,
        sent_cached=0,
    )
    return msgspec.structs.replace(plain, **changes)


@dataclass
class Peak:
    """size_bytes: set at the end."""

    size_bytes: int = 0


@contextmanager
def measured_peak() -> Iterator[Peak]:
    """How much memory was taken at most, beyond what was there before."""
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
        peak.size_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
