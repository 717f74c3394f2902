"""Rounds of load on two processes in turn, and their medians and ratios."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.load import Load, send_turns
from bench.subject import Subject
from bench.talk import Shape, make_talks

# Conversations at the same time. A gateway keeps the newest bodies of more conversations than that.
_AT_ONCE: Final = 200
# A process that uses less than this share of a core is idle.
_CALM_SHARE: Final = 0.05
_CALM_STEP_SECONDS: Final = 0.2
_MAX_CALM_STEPS: Final = 100


@dataclass(frozen=True, kw_only=True)
class Case:
    """A round has talks x (turns - primed) requests. primed: turns sent before the measurement begins.

    calm_seconds: pause after the primed turns, for the summary that they may start.
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
        """Share of a core. Well below 1, the load was the bottleneck and the rates mean little."""
        return self.cpu_seconds / self.load.seconds


@dataclass(frozen=True)
class Pair:
    """Rounds of the bare pass-through and of the gateway, in turn.

    Ratios are medians over neighbouring rounds, because the speed of a shared machine changes over minutes.
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
        """The ratio of rates if each had a full core, computed from CPU time per request."""
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
        """CPU time per request beyond that of the bare pass-through."""
        return self.gateway_us - self.bare_us

    @property
    def busy(self) -> tuple[float, float]:
        return median(r.busy for r in self.bare), median(r.busy for r in self.gateway)

    @property
    def pivot_share(self) -> float:
        answers = sum(g.load.requests for g in self.gateway)
        return sum(g.load.pivots for g in self.gateway) / answers


async def compare(case: Case, bare: Subject, gateway: Subject, rounds: int) -> Pair:
    """Alternates the order (A B B A A B), so that other work on the machine slows down both."""
    of_bare, of_gateway = await compare_all(case, (bare, gateway), rounds)
    return Pair(of_bare, of_gateway)


async def compare_all(case: Case, subjects: Sequence[Subject], rounds: int) -> list[list[Round]]:
    """The rounds of each process, which take place in turn, in one order and then in the other."""
    done: dict[str, list[Round]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        order = subjects if number % 2 == 0 else subjects[::-1]
        for subject, round_ in zip(order, await _run_side_by_side(case, order), strict=True):
            done[subject.name].append(round_)
    return list(done.values())


async def run_round(case: Case, subject: Subject) -> Round:
    return (await _run_side_by_side(case, (subject,)))[0]


async def _run_side_by_side(case: Case, subjects: Sequence[Subject]) -> list[Round]:
    """Sends the same conversations to each process, in waves of `_AT_ONCE`.

    All processes are primed before the first one is measured, so that the measurements are close together.
    """
    talks = make_talks(case.shape, case.talks)
    loads: list[list[Load]] = [[] for _ in subjects]
    cpu_seconds = [0.0] * len(subjects)
    for start in range(0, len(talks), _AT_ONCE):
        wave = talks[start : start + _AT_ONCE]
        for subject in subjects if case.primed else ():
            await send_turns(subject.port, wave, range(case.primed), case.connections)
            await asyncio.sleep(case.calm_seconds)
            await wait_for_calm(subject)
        for at, subject in enumerate(subjects):
            before = subject.read_cpu_seconds()
            loads[at].append(await send_turns(subject.port, wave, _measured(case), case.connections))
            cpu_seconds[at] += subject.read_cpu_seconds() - before
    before_rest = [subject.read_cpu_seconds() for subject in subjects]
    await asyncio.sleep(max(subject.settle_seconds for subject in subjects))
    for at, subject in enumerate(subjects):
        cpu_seconds[at] += subject.read_cpu_seconds() - before_rest[at]
    return [Round(_sum_up(own), seconds) for own, seconds in zip(loads, cpu_seconds, strict=True)]


async def wait_for_calm(subject: Subject) -> None:
    """Waits for the work that priming has started, such as two hundred summaries. It is not measured."""
    for _ in range(_MAX_CALM_STEPS):
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
