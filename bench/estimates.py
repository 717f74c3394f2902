"""The error of token estimates, on recorded and on generated sessions, by source and kind of content.

The error is that of what a step added, for steps of at least 2,000 tokens as counted by the upstream. The
figures are the same on every machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from bench.table import print_table, render_target
from gateway.bounds.lanes import Lanes
from gateway.core.policy import Estimator
from gateway.planning.message_sizes import Sizer, TextCounter, Tokenizer, count_by_length
from tests.toy.increments import (
    Increment,
    calibrated_errors,
    find_increments,
    load_recordings,
    make_recordings,
    plain_errors,
)

_COLUMNS = ("added by", "steps", "plain", "p90", "chars/4", "steps", "calibrated", "p90", "chars/4")
_PLAIN_TARGET, _CALIBRATED_TARGET = 0.20, 0.10
_SIZES_BYTES = 1 << 26


@dataclass(frozen=True)
class Group:
    """The same steps, counted by each estimator."""

    name: str
    tiktoken: Sequence[Increment]
    chars: Sequence[Increment]

    def split(self, field: str) -> "Iterator[Group]":
        for value in sorted({getattr(step, field) for step in self.tiktoken}):
            own, chars = _pick(self.tiktoken, field, value), _pick(self.chars, field, value)
            yield Group(f"  {value}", own, chars)


async def print_estimates() -> None:
    rows = []
    groups = await _read_groups()
    for group in groups:
        rows += [_render(each) for each in (group, *group.split("source"), *group.split("kind"))]
    print_table(
        "Error of estimates, for steps that add at least 2,000 tokens: median and 90th percentile",
        _COLUMNS,
        rows,
    )
    for group in groups:
        _print_targets(group)


async def _read_groups() -> list[Group]:
    """Recorded sessions lack the system prompt and the tools; complete bodies have both."""
    counts: dict[Estimator, TextCounter] = {"tiktoken": Tokenizer().count, "chars": count_by_length}
    lanes = Lanes()
    sizer = Sizer(counts, _SIZES_BYTES, lanes)
    try:
        steps = {estimator: await _read_increments(sizer, estimator) for estimator in counts}
    finally:
        lanes.close()
    names = {False: "recorded sessions", True: "complete bodies"}
    groups = [
        Group(name, *[_pick(steps[estimator], "is_complete", is_complete) for estimator in counts])
        for is_complete, name in names.items()
    ]
    return [group for group in groups if group.tiktoken]


async def _read_increments(sizer: Sizer, estimator: Estimator) -> list[Increment]:
    recorded = await find_increments(load_recordings(), sizer, estimator)
    return recorded + await find_increments(make_recordings(), sizer, estimator)


def _pick(steps: Sequence[Increment], field: str, value: object) -> list[Increment]:
    return [step for step in steps if getattr(step, field) == value]


def _render(group: Group) -> tuple[str, ...]:
    return (
        group.name,
        *_figures(plain_errors(group.tiktoken), plain_errors(group.chars)),
        *_figures(calibrated_errors(group.tiktoken), calibrated_errors(group.chars)),
    )


def _print_targets(group: Group) -> None:
    """The targets are for all steps together, not for each kind."""
    plain, calibrated = median(plain_errors(group.tiktoken)), median(calibrated_errors(group.tiktoken))
    verdicts = (
        f"plain {plain:.3f} {render_target(plain, _PLAIN_TARGET, at_least=False)}",
        f"calibrated {calibrated:.3f} {render_target(calibrated, _CALIBRATED_TARGET, at_least=False)}",
    )
    print(f"  {group.name}: {', '.join(verdicts)}")


def _figures(errors: Sequence[float], of_chars: Sequence[float]) -> tuple[str, ...]:
    if not errors:
        return "0", "-", "-", "-"
    highest = quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]
    middle = f"{median(errors):.1%}"
    return str(len(errors)), middle, f"{highest:.0%}", f"{median(of_chars):.0%}"
