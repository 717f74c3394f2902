"""Rounds of load on two subjects in turn, and what came of them: medians and ratios."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.load import Load, send_turns
from bench.subject import Subject
from bench.talk import Shape, make_talks

# Conversations that are under way at the same time; a gateway keeps the newest bodies of more than that.
_AT_ONCE: Final = 200
# A process that uses less than this share of a core has nothing left to do.
_CALM_SHARE: Final = 0.05
_CALM_STEP_SECONDS: Final = 0.2
_MOST_CALM_STEPS: Final = 100


@dataclass(frozen=True, kw_only=True)
class Case:
    """talks x (turns - primed) requests a round. primed: turns sent before the measurement begins.

    calm_seconds: pause between the two; what primes a pivot also has a summary to wait for.
    """

    name: str
    shape: Shape
    talks: int
    primed: int = 1
    connections: int = 16
    calm_seconds: float = 0.1


@dataclass(frozen=True)
class Round:
    load: Load
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.load.requests / self.load.seconds

    @property
    def cpu_us(self) -> float:
        """Per request."""
        return self.cpu_seconds / self.load.requests * 1e6

    @property
    def busy(self) -> float:
        """Share of a core; well below 1 the load was the bottleneck, and the rates say little."""
        return self.cpu_seconds / self.load.seconds


@dataclass(frozen=True)
class Pair:
    """Rounds of the bare pass-through and of the gateway, in turn.

    Ratios are medians over neighbours: a shared machine is slower in one minute than in the next, and two
    rounds side by side see the same machine.
    """

    bare: Sequence[Round]
    gateway: Sequence[Round]

    @property
    def bare_rate(self) -> float:
        return median(round_.rate for round_ in self.bare)

    @property
    def gateway_rate(self) -> float:
        return median(round_.rate for round_ in self.gateway)

    @property
    def rate_ratio(self) -> float:
        return median(g.rate / b.rate for b, g in self._neighbours)

    @property
    def saturated_ratio(self) -> float:
        """What the ratio of rates would be with a core full of work for each: by CPU per request."""
        return median(b.cpu_us / g.cpu_us for b, g in self._neighbours)

    @property
    def least_ratio(self) -> float:
        return min(self.rate_ratio, self.saturated_ratio)

    @property
    def bare_us(self) -> float:
        return median(round_.cpu_us for round_ in self.bare)

    @property
    def gateway_us(self) -> float:
        return median(round_.cpu_us for round_ in self.gateway)

    @property
    def cpu_ratio(self) -> float:
        return median(g.cpu_us / b.cpu_us for b, g in self._neighbours)

    @property
    def _neighbours(self) -> list[tuple[Round, Round]]:
        return list(zip(self.bare, self.gateway, strict=True))

    @property
    def own_us(self) -> float:
        """The gateway's CPU per request beyond the bare pass-through's."""
        return self.gateway_us - self.bare_us

    @property
    def busy(self) -> tuple[float, float]:
        return median(r.busy for r in self.bare), median(r.busy for r in self.gateway)

    @property
    def pivot_share(self) -> float:
        answers = sum(g.load.requests for g in self.gateway)
        return sum(g.load.pivots for g in self.gateway) / answers


async def compare(case: Case, bare: Subject, gateway: Subject, rounds: int) -> Pair:
    """In turn, A B B A A B, so that what else the machine does falls on both."""
    done: dict[str, list[Round]] = {bare.name: [], gateway.name: []}
    for number in range(rounds):
        order = (bare, gateway) if number % 2 == 0 else (gateway, bare)
        for subject, round_ in zip(order, await _run_side_by_side(case, order), strict=True):
            done[subject.name].append(round_)
    return Pair(done[bare.name], done[gateway.name])


async def run_round(case: Case, subject: Subject) -> Round:
    return (await _run_side_by_side(case, (subject,)))[0]


async def _run_side_by_side(case: Case, subjects: Sequence[Subject]) -> list[Round]:
    """The same conversations for each, in waves, as agents come and go: so many at once, then the next ones.

    All are primed before the first one is measured, so that little time lies between two measurements.
    """
    talks = make_talks(case.shape, case.talks)
    loads: list[list[Load]] = [[] for _ in subjects]
    cpu_seconds = [0.0] * len(subjects)
    for start in range(0, len(talks), _AT_ONCE):
        wave = talks[start : start + _AT_ONCE]
        for subject in subjects if case.primed else ():
            await send_turns(subject.port, wave, range(case.primed), case.connections)
            await asyncio.sleep(case.calm_seconds)
            await _wait_for_calm(subject)
        for at, subject in enumerate(subjects):
            before = subject.read_cpu_seconds()
            loads[at].append(await send_turns(subject.port, wave, _measured(case), case.connections))
            cpu_seconds[at] += subject.read_cpu_seconds() - before
    before_rest = [subject.read_cpu_seconds() for subject in subjects]
    await asyncio.sleep(max(subject.settle_seconds for subject in subjects))
    for at, subject in enumerate(subjects):
        cpu_seconds[at] += subject.read_cpu_seconds() - before_rest[at]
    return [Round(_sum_up(own), seconds) for own, seconds in zip(loads, cpu_seconds, strict=True)]


async def _wait_for_calm(subject: Subject) -> None:
    """What the priming set going (two hundred summaries, their tokens counted) is no part of the measurement,
    however slow the machine is.
    """
    for _ in range(_MOST_CALM_STEPS):
        before = subject.read_cpu_seconds()
        await asyncio.sleep(_CALM_STEP_SECONDS)
        if subject.read_cpu_seconds() - before < _CALM_SHARE * _CALM_STEP_SECONDS:
            return


def _measured(case: Case) -> range:
    return range(case.primed, case.shape.turns)


def _sum_up(loads: Sequence[Load]) -> Load:
    return Load(
        sum(load.requests for load in loads),
        sum(load.seconds for load in loads),
        sum(load.reads for load in loads),
        sum(load.pivots for load in loads),
    )
