"""Requests per second and CPU time per request at three sizes: untouched, with a summary, and streamed."""

from dataclasses import replace

from bench.measure import Case, Pair, compare
from bench.subject import Subject
from bench.table import print_table, render_target
from bench.talk import Shape

_COLUMNS = (
    *(
        "case",
        "bare r/s",
        "gateway r/s",
        "r/s ratio",
        "by CPU",
        "target",
        "bare CPU us",
        "gateway CPU us",
        "CPU ratio",
    ),
    *("busy b/g", "summaries"),
)
# Least ratios of requests per second, for 1, 100 and 400 KB.
_UNTOUCHED_TARGETS = (0.60, 0.70, 0.80)
_SUMMARY_TARGETS = (0.55, 0.60, 0.70)

_SMALL = Shape(model="bench-wide", start_bytes=900, turn_bytes=300, turns=4, has_tools=False)
_MEDIUM = Shape(model="bench-wide", start_bytes=90_000, turn_bytes=1_500, turns=14)
_LARGE = Shape(model="bench-wide", start_bytes=360_000, turn_bytes=1_500, turns=40)
# 1 KB cannot fill a window. With a summary, requests of 23 KB become 2 to 4 KB.
_SMALL_FULL = Shape(model="bench-small", start_bytes=23_000, turn_bytes=300, turns=12, has_tools=False)


def make_cases(scale: float) -> list[tuple[Case, float | None]]:
    """Cases and the least ratio of requests per second of each; None: no target.

    `scale` multiplies the number of conversations.
    """

    def many(usual: int) -> int:
        return max(8, int(usual * scale))

    small, medium, large = many(1_000), many(160), many(32)
    return [
        (Case(name="1 KB untouched", shape=_SMALL, talks=small), _UNTOUCHED_TARGETS[0]),
        (Case(name="100 KB untouched", shape=_MEDIUM, talks=medium), _UNTOUCHED_TARGETS[1]),
        (Case(name="400 KB untouched", shape=_LARGE, talks=large), _UNTOUCHED_TARGETS[2]),
        (
            Case(name="1 KB (of 23) summary", shape=_SMALL_FULL, talks=many(240), primed=4, calm_seconds=1.0),
            _SUMMARY_TARGETS[0],
        ),
        (_with_pivot("100 KB summary", _with(_MEDIUM, "bench-medium"), medium), _SUMMARY_TARGETS[1]),
        (_with_pivot("400 KB summary", _with(_LARGE, "bench-large"), large), _SUMMARY_TARGETS[2]),
        (Case(name="1 KB streamed", shape=_streamed(_SMALL), talks=small), None),
        (Case(name="100 KB streamed", shape=_streamed(_MEDIUM), talks=medium), None),
        (Case(name="400 KB streamed", shape=_streamed(_LARGE), talks=large), None),
        (Case(name="1 KB, first turns too", shape=_SMALL, talks=small, primed=0), None),
    ]


async def print_speed(bare: Subject, gateway: Subject, *, scale: float, rounds: int) -> None:
    rows = [
        _render(case, await compare(case, bare, gateway, rounds), target)
        for case, target in make_cases(scale)
    ]
    print_table(f"Speed: growing conversations, medians of {rounds} pairs of rounds", _COLUMNS, rows)
    print(
        "  busy: share of a core. If bare is well below 1, the load was the limit: the r/s ratio is too high."
    )
    print(
        "  by CPU: the ratio of r/s with a full core for each. The lower of both ratios must meet the target."
    )


def _with_pivot(name: str, shape: Shape, talks: int) -> Case:
    """The first turn fills the window, the second one starts to use the summary; later turns are measured."""
    return Case(name=name, shape=shape, talks=talks, primed=2, calm_seconds=1.0)


def _with(shape: Shape, model: str) -> Shape:
    return replace(shape, model=model)


def _streamed(shape: Shape) -> Shape:
    """Three deltas, and a client that does not ask for usage."""
    return replace(shape, events=3)


def _render(case: Case, pair: Pair, target: float | None) -> tuple[str, ...]:
    return (
        case.name,
        f"{pair.bare_rate:.0f}",
        f"{pair.gateway_rate:.0f}",
        f"{pair.rate_ratio:.2f}",
        f"{pair.saturated_ratio:.2f}",
        "" if target is None else render_target(pair.least_ratio, target, at_least=True),
        f"{pair.bare_us:.0f}",
        f"{pair.gateway_us:.0f}",
        f"{pair.cpu_ratio:.2f}",
        f"{pair.busy[0]:.2f}/{pair.busy[1]:.2f}",
        f"{pair.pivot_share:.0%}",
    )
