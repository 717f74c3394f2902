"""The gateway's CPU time for one turn beyond that of passing it on, by length of history and of new messages.

Passing on is measured twice: with the bare pass-through, and with a gateway that is told to bypass, which
reads and writes in pieces of the same size. From 1 MB on, the bare pass-through pays more for its single
large write.
"""

from dataclasses import replace

from bench.measure import Case, run_round
from bench.subject import Subject
from bench.table import print_table
from bench.talk import Shape

_COLUMNS = ("history", "new messages", "bare us", "bypass us", "gateway us", "beyond bare", "beyond bypass")
_NEW_BYTES = 1_500
_HISTORIES = {"100 KB": 100_000, "400 KB": 400_000, "1 MB": 1_000_000, "4 MB": 4_000_000}
_TALKS = 4
_TURNS = 50


async def print_growth(bare: Subject, gateway: Subject, *, scale: float, rounds: int) -> None:
    turns = max(12, int(_TURNS * scale))
    cases = [(name, size, 1) for name, size in _HISTORIES.items()]
    cases += [("1 MB", 1_000_000, factor) for factor in (4, 16)]
    rows = []
    for name, size, factor in cases:
        new_bytes = _NEW_BYTES * factor
        # The mean history over all turns has the named size.
        start_bytes = max(size // 2, size - new_bytes * turns // 2)
        shape = Shape(model="bench-wide", start_bytes=start_bytes, turn_bytes=new_bytes, turns=turns + 1)
        case = Case(name=name, shape=shape, talks=_TALKS, connections=_TALKS)
        rows.append((name, f"{new_bytes / 1000:.1f} KB", *await _measure(case, bare, gateway, rounds)))
    title = f"Growth: CPU time of a turn, least of {rounds} rounds; it should grow with new messages only"
    print_table(title, _COLUMNS, rows)


async def _measure(case: Case, bare: Subject, gateway: Subject, rounds: int) -> tuple[str, ...]:
    """The least of all rounds: other work on the machine only adds, and the differences are small."""
    bypass = replace(case, shape=replace(case.shape, bypasses=True))
    order = ((case, bare), (bypass, gateway), (case, gateway))
    seen = [[(await run_round(each, subject)).cpu_us for each, subject in order] for _ in range(rounds)]
    of_bare, of_bypass, of_gateway = (min(column) for column in zip(*seen, strict=True))
    figures = (of_bare, of_bypass, of_gateway, of_gateway - of_bare, of_gateway - of_bypass)
    return tuple(f"{figure:.0f}" for figure in figures)
