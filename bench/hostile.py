"""The longest stall and the peak memory of a new gateway for each hostile case (bench/hostile_cases.py)."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.hostile_cases import MEGABYTE, Case, Stage
from bench.hostile_texts import ALL_CASES
from bench.stall import Stall, StallMeter
from bench.subject import read_peak_rss_bytes, read_rss_bytes
from bench.table import print_table
from tests.toy.product import Process, serve_process
from tests.toy.raw import RawUpstream

_COLUMNS: Final = ("case", "longest ms", "p99 ms", "done s", "start MB", "peak MB", "missed", "answers")
# What nobody may keep others waiting for, and where the memory of a gateway has to end with the defaults.
_LONGEST_MS: Final = 250.0
_P99_MS: Final = 50.0
_PEAK_MB: Final = 600.0
# What follows an answer counts, too: usage is read, heads are written. And p99 is one of some seconds.
_SETTLE_SECONDS: Final = 0.5
_LEAST_SECONDS: Final = 5.0
_SETTINGS: Final = """
store: "memory:"
drain_seconds: 1
upstreams:
  default: {{base_url: "{base_url}", discover: false}}
models:
  - {{match: "m", context: {context}}}
"""


async def print_hostile(names: Sequence[str], patience_seconds: float) -> None:
    rows = []
    for name in names:
        rows.append(await _read_row(name, ALL_CASES[name], patience_seconds))
        print("  ".join(rows[-1]), flush=True)
    print_table(
        f"Hostile: waits of /healthz beside each case, given up after {patience_seconds:.0f} s",
        _COLUMNS,
        rows,
    )
    print(f"  Aims: longest {_LONGEST_MS:.0f} ms, p99 {_P99_MS:.0f} ms, peak {_PEAK_MB:.0f} MB.", flush=True)


async def _read_row(name: str, case: Case, patience_seconds: float) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        async with RawUpstream() as upstream:
            settings = _SETTINGS.format(base_url=upstream.base_url, context=case.context)
            async with serve_process(settings, Path(folder)) as gateway:
                before = read_rss_bytes(gateway.pid)
                stall, seconds, answers = await _attack(
                    case, Stage(gateway.port, upstream, gateway.admin_port), patience_seconds
                )
                return _render(name, case, stall, (seconds, before, _read_peak(gateway)), answers)


async def _attack(case: Case, stage: Stage, patience_seconds: float) -> tuple[Stall, float, str]:
    """Waits, seconds until all was answered, and the answers."""
    clock = asyncio.get_running_loop().time
    async with StallMeter(stage.port) as meter:
        started = clock()
        try:
            async with asyncio.timeout(patience_seconds):
                answers = await case.attack(stage)
        except TimeoutError:
            answers = "gave up"
        seconds = clock() - started
        await asyncio.sleep(max(_SETTLE_SECONDS, _LEAST_SECONDS - seconds))
    return meter.stall, seconds, answers


def _read_peak(gateway: Process) -> int:
    """0 if it has ended."""
    try:
        return read_peak_rss_bytes(gateway.pid)
    except (OSError, StopIteration):
        return 0


def _render(
    name: str, case: Case, stall: Stall, cost: tuple[float, int, int], answers: str
) -> tuple[str, ...]:
    seconds, before, peak = cost
    longest, p99 = stall.longest_seconds * 1_000, stall.p99_seconds * 1_000
    measured = {
        "longest": longest > _LONGEST_MS,
        "p99": p99 > _P99_MS,
        "peak": peak / MEGABYTE > _PEAK_MB,
        "ended": not peak or stall.lost > 0,
    }
    missed = " ".join(aim for aim, is_missed in measured.items() if is_missed)
    figures = (longest, p99, before / MEGABYTE, peak / MEGABYTE)
    longest_ms, p99_ms, start_mb, peak_mb = (f"{figure:.0f}" for figure in figures)
    return (
        f"{name}: {case.title}",
        longest_ms,
        p99_ms,
        f"{seconds:.1f}",
        start_mb,
        peak_mb,
        missed or "-",
        answers,
    )
