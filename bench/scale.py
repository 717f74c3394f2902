"""Requests per second and CPU time per request by number of workers, on disk and on Redis.

It is measured twice. With all cores for all, the rates are those that a client sees; load, upstream and Redis
take their share of the cores. With one core for all processes of a gateway, CPU time per request shows what
several processes cost beside one, whatever else the machine does.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.measure import Case, Round, compare_all
from bench.subject import Subject, all_cpus, running_bare, running_redis, running_workers
from bench.table import print_table, render_target
from bench.talk import Shape

WORKERS: Final = (1, 2, 4)
FEW_WORKERS: Final = (1, 2)
# With two workers, compared with one process.
_CPU_TARGET: Final = 1.15
_COLUMNS: Final = (
    *("store", "case", "gateway", "r/s", "of bare", "CPU us", "of one", "target", "r/s of a core"),
    *("cores busy", "summaries"),
)
DISK: Final = "disk:{folder}/store"
# A busy machine is no reason for the gateway to go on without Redis, as it would after 50 ms.
REDIS: Final = "redis://127.0.0.1:{port}/0?timeout_ms=10000"

SMALL: Final = Shape(model="bench-wide", start_bytes=900, turn_bytes=300, turns=10, has_tools=False)
MEDIUM: Final = Shape(model="bench-wide", start_bytes=90_000, turn_bytes=1_500, turns=14)
MEDIUM_FULL: Final = Shape(model="bench-medium", start_bytes=90_000, turn_bytes=1_500, turns=14)


@dataclass(frozen=True)
class Stage:
    """What is compared: the bare pass-through, and a gateway for each number of workers."""

    bare: Subject
    gateways: Sequence[Subject]


def make_scale_cases(scale: float) -> list[Case]:
    """Whole conversations, each on one connection, as a client's: so each stays with its worker."""
    small, medium = max(16, int(400 * scale)), max(16, int(80 * scale))
    return [
        Case(name="1 KB untouched", shape=SMALL, talks=small, primed=0),
        Case(name="100 KB untouched", shape=MEDIUM, talks=medium, primed=0),
        Case(name="100 KB summary", shape=MEDIUM_FULL, talks=medium, primed=0),
    ]


@contextmanager
def running_stage(
    stub: Subject, store: str, workers: Collection[int], cpus: set[int] | None = None
) -> Iterator[Stage]:
    """store: `disk` or `redis`. On Redis the gateways share one server, which may use all cores.

    cpus: those of bare pass-through and gateways; None: all.
    """
    with ExitStack() as exits:
        url = DISK
        if store == "redis":
            url = REDIS.format(port=exits.enter_context(running_redis()).port)
        bare = exits.enter_context(running_bare(stub, cpus=cpus or all_cpus()))
        gateways = [
            exits.enter_context(running_workers(stub, _name(each), each, store=url, cpus=cpus))
            for each in workers
        ]
        yield Stage(bare, gateways)


async def measure_stage(
    store: str, stage: Stage, *, scale: float, rounds: int, has_target: bool
) -> list[tuple[str, ...]]:
    """The rows of one store. has_target: CPU time per request has one."""
    rows = []
    for case in make_scale_cases(scale):
        bare, *gateways = await compare_all(case, (stage.bare, *stage.gateways), rounds)
        rows.append((store, case.name, "bare", *_render(bare, bare, None, has_target=False)))
        for gateway, done in zip(stage.gateways, gateways, strict=True):
            rows.append(
                (store, case.name, gateway.name, *_render(done, bare, gateways[0], has_target=has_target))
            )
    return rows


def print_rates(rows: Sequence[Sequence[str]], rounds: int) -> None:
    print_table(
        f"Scale: growing conversations by number of workers, medians of {rounds} rounds", _COLUMNS, rows
    )
    print("  All share the cores of this machine. CPU us: of a request, of all processes of the gateway.")
    print("  r/s of a core: what one core does if all of it is the gateway's, computed from CPU us.")


def print_cost(rows: Sequence[Sequence[str]], rounds: int) -> None:
    title = f"Scale: what a second worker costs, each gateway on one core, medians of {rounds} rounds"
    print_table(title, _COLUMNS, rows)
    print("  of one: CPU us compared with one process, in neighbouring rounds.")


def _name(workers: int) -> str:
    return "1 process" if workers == 1 else f"{workers} workers"


def _render(
    done: Sequence[Round], bare: Sequence[Round], one: Sequence[Round] | None, *, has_target: bool
) -> tuple[str, ...]:
    """one: the rounds of the gateway of one process; None in the row of the bare pass-through."""
    cpu_us = median(each.cpu_us for each in done)
    of_one = _compare_cpu(done, one) if one is not None else None
    is_aim = has_target and done is not one
    return (
        f"{median(each.rate for each in done):.0f}",
        f"{median(own.rate / other.rate for own, other in zip(done, bare, strict=True)):.2f}",
        f"{cpu_us:.0f}",
        f"{of_one:.2f}" if of_one is not None else "",
        render_target(of_one, _CPU_TARGET, at_least=False) if of_one is not None and is_aim else "",
        f"{1e6 / cpu_us:.0f}",
        f"{median(each.busy for each in done):.2f}",
        f"{sum(each.load.pivots for each in done) / sum(each.load.requests for each in done):.0%}",
    )


def _compare_cpu(done: Sequence[Round], one: Sequence[Round]) -> float:
    return median(own.cpu_us / other.cpu_us for own, other in zip(done, one, strict=True))
