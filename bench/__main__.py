"""The command line: `python -m bench [--quick] [--write] [PART …]`, `--help` lists the parts.

`python -m bench hostile --case NAME` attacks in one way only, and may be repeated. `python -m bench memory
--hostile` shows the memory of a gateway that is attacked.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.economics.tables import print_economics, print_kappas
from bench.economics.workloads import list_small_workloads, list_workloads
from bench.estimates import print_estimates
from bench.facts import print_facts
from bench.growth import print_growth
from bench.heavy import HEAVY_MODELS
from bench.hostile import print_hostile
from bench.hostile_memory import print_hostile_memory
from bench.hostile_texts import ALL_CASES
from bench.memory import print_memory, read_memory_row
from bench.paced import print_streams
from bench.page import print_page
from bench.recall import print_recall
from bench.recall_index import print_recall_index
from bench.redis_cost import (
    make_memory_cases,
    make_request_cases,
    measure_memory,
    measure_requests,
    print_memory_of_redis,
    print_requests,
)
from bench.report import written_to_report
from bench.scale import FEW_WORKERS, WORKERS, measure_stage, print_cost, print_rates, running_stage
from bench.seen import write_seen
from bench.speed import print_speed
from bench.sse import print_sse
from bench.subject import (
    Subject,
    all_cpus,
    find_port,
    pin_load,
    running_bare,
    running_gateway,
    running_stub,
    subject_cpus,
)

T = TypeVar("T")

_SMALL_CACHES = "cache: {bodies_bytes: 4194304, facts_bytes: 2097152, records_bytes: 2097152}"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long the measurements take."""

    scale: float
    rounds: int
    events: int
    few_requests: int
    many_requests: int
    patience_seconds: float
    stream_seconds: float
    # Of each conversation in one round of the part `page`.
    page_turns: int
    # Of originals that are indexed and searched.
    originals_megabytes: int
    # Whether the part `economics` plays all of its conversations, with all presets.
    has_all: bool
    cases: tuple[str, ...] = tuple(ALL_CASES)
    # Whether the part `memory` attacks.
    is_hostile: bool = False


_FULL = Effort(
    scale=0.5,
    rounds=6,
    events=800,
    few_requests=2_000,
    many_requests=20_000,
    patience_seconds=60,
    stream_seconds=20,
    page_turns=30,
    originals_megabytes=100,
    has_all=True,
)
_QUICK = Effort(
    scale=0.1,
    rounds=1,
    events=200,
    few_requests=400,
    many_requests=2_000,
    patience_seconds=10,
    stream_seconds=6,
    page_turns=20,
    originals_megabytes=10,
    has_all=False,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; default all")
    parser.add_argument("--quick", action="store_true", help="a short version with rough figures")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/benchmarks.md, too")
    parser.add_argument(
        "--case",
        action="append",
        choices=ALL_CASES,
        metavar="NAME",
        help=f"of hostile: {', '.join(ALL_CASES)}",
    )
    parser.add_argument(
        "--hostile", action="store_true", help="memory: of a gateway that is attacked, and its bound"
    )
    options = parser.parse_args()
    unknown = set(options.parts) - set(_PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if sys.platform != "linux":
        parser.error("reads /proc and pins processes: Linux only")
    effort = _QUICK if options.quick else _FULL
    if options.hostile:
        effort = replace(effort, is_hostile=True)
    if options.case:
        effort = replace(effort, cases=tuple(options.case))
    for part in options.parts or _PARTS:
        with written_to_report(part) if options.write else nullcontext():
            _PARTS[part](effort)
    return 0


def _run_speed(effort: Effort) -> None:
    pin_load()
    with _compared() as (bare, gateway):
        _run(print_speed(bare, gateway, scale=effort.scale, rounds=effort.rounds))


def _run_sse(effort: Effort) -> None:
    pin_load()
    with _compared() as (bare, gateway):
        _run(print_sse(bare, gateway, events=effort.events, rounds=effort.rounds))


def _run_growth(effort: Effort) -> None:
    pin_load()
    with _compared() as (bare, gateway):
        _run(print_growth(bare, gateway, scale=effort.scale, rounds=effort.rounds))


@contextmanager
def _compared() -> Iterator[tuple[Subject, Subject]]:
    """Starts a bare pass-through and a gateway in front of one upstream."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stub() as stub,
        running_bare(stub) as bare,
        running_gateway(stub, Path(folder)) as gateway,
    ):
        yield bare, gateway


def _run_streams(effort: Effort) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stub() as stub,
        running_gateway(stub, Path(folder), models=HEAVY_MODELS) as gateway,
    ):
        _run(print_streams(gateway, stub, seconds=effort.stream_seconds))


def _run_page(effort: Effort) -> None:
    pin_load()
    admin_port = find_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stub() as stub,
        running_gateway(stub, Path(folder), admin_port=admin_port) as gateway,
    ):
        _run(print_page(gateway, admin_port, rounds=max(2, effort.rounds), turns=effort.page_turns))


def _run_memory(effort: Effort) -> None:
    """Two rows: with the default caches, and with caches so small that only a leak can make memory grow."""
    if effort.is_hostile:
        _run(print_hostile_memory(effort.patience_seconds))
        return
    rows = []
    for caches, more in (("default", ""), ("4 MB", _SMALL_CACHES)):
        with (
            tempfile.TemporaryDirectory() as folder,
            running_stub() as stub,
            running_gateway(stub, Path(folder), more) as gateway,
        ):
            rows.append(_run(read_memory_row(gateway, caches, effort.few_requests, effort.many_requests)))
    print_memory(rows)


def _run_scale(effort: Effort) -> None:
    rounds = max(1, effort.rounds // 3)
    stores = ("disk", "redis")
    with running_stub(cpus=all_cpus()) as stub:
        rates = [_run_stage(stub, store, effort, rounds, is_on_one_core=False) for store in stores]
    print_rates([row for rows in rates for row in rows], rounds)
    pin_load()
    with running_stub() as stub:
        costs = [_run_stage(stub, store, effort, rounds, is_on_one_core=True) for store in stores]
    print_cost([row for rows in costs for row in rows], rounds)


def _run_stage(
    stub: Subject, store: str, effort: Effort, rounds: int, *, is_on_one_core: bool
) -> list[tuple[str, ...]]:
    workers, cpus = (FEW_WORKERS, subject_cpus()) if is_on_one_core else (WORKERS, None)
    with running_stage(stub, store, workers, cpus) as stage:
        work = measure_stage(store, stage, scale=effort.scale, rounds=rounds, has_target=is_on_one_core)
        return _run(work)


def _run_redis(effort: Effort) -> None:
    with running_stub(cpus=all_cpus()) as stub:
        requests = [_run(measure_requests(stub, case)) for case in make_request_cases(effort.scale)]
        print_requests([row for pair in requests for row in pair])
        print_memory_of_redis([_run(measure_memory(stub, case)) for case in make_memory_cases(effort.scale)])


def _run_hostile(effort: Effort) -> None:
    """Nothing is pinned: the gateway may use all cores, as where it serves."""
    _run(print_hostile(effort.cases, effort.patience_seconds))


def _run_facts(effort: Effort) -> None:
    """Independent of the effort: this part counts facts in texts and measures no time."""
    print_facts()


def _run_recall(effort: Effort) -> None:
    """Likewise."""
    print_recall()


def _run_seen(effort: Effort) -> None:
    """Writes docs/seen.md, which is the same for every effort."""
    write_seen()


def _run_economics(effort: Effort) -> None:
    """Measures no time, either."""
    workloads = list_workloads() if effort.has_all else list_small_workloads()
    print_economics(workloads, is_whole=effort.has_all)


def _run_kappa(effort: Effort) -> None:
    """Likewise."""
    print_kappas(list_workloads() if effort.has_all else list_small_workloads())


def _run_recall_index(effort: Effort) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stub() as stub,
        running_gateway(stub, Path(folder)) as gateway,
    ):
        _run(print_recall_index(gateway, effort.originals_megabytes))


def _run_estimates(effort: Effort) -> None:
    """Independent of the effort: fewer steps would give other figures."""
    _run(print_estimates())


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Uses the event loop that the measured processes use."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


_PARTS = {
    "speed": _run_speed,
    "sse": _run_sse,
    "growth": _run_growth,
    "streams": _run_streams,
    "page": _run_page,
    "memory": _run_memory,
    "scale": _run_scale,
    "redis": _run_redis,
    "hostile": _run_hostile,
    "facts": _run_facts,
    "recall": _run_recall,
    "seen": _run_seen,
    "estimates": _run_estimates,
    "recall-index": _run_recall_index,
    "economics": _run_economics,
    "kappa": _run_kappa,
}

if __name__ == "__main__":
    sys.exit(main())
