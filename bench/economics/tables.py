"""What `python -m bench economics` prints: ratios to today's bill, and what the bills are made of."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bench.economics.charts import BILLS_IMAGE, PROMPTS_IMAGE, Bar, render_bills, render_prompts
from bench.economics.plays import ADAPTIVE, DEFAULT, PRESETS, TODAY, Play, Plays, play_all
from bench.economics.schedules import Course, find_optimum, make_course, truncate
from bench.economics.tariffs import PARTS, TARIFFS, Bill, Tariff, add_bills, make_bill
from bench.economics.visible import Shares, mean_of, measure_visible
from bench.economics.workloads import Workload
from bench.facts import Fold, extract, lose
from bench.table import print_table, render_target
from gateway.replay.results import RequestRun

BEST: Final = "best schedule"
TRUNCATED: Final = "client drops the oldest"
HALVED: Final = "client drops half"
_TARGETS: Final = {"OpenAI-like": 0.87, "Anthropic-like": 0.85, "uncached": 0.75}
_MOST_WORST: Final = 1.03
_KAPPAS: Final = (0, 0.5, 0.7, 1, 1.5, 2, 4)
_FOLDS: Final[Mapping[str, Fold]] = {"extractive": extract, "lossy": lose}
_KINDS: Final = ("names", "paths", "folded")
# What the charts show, and how they name it.
_SHOWN: Final = {TODAY: "before", DEFAULT: "adaptive", BEST: "best possible"}
_SHOWN_WINDOW: Final = 200_000

# Of a conversation, at a price table.
Place = tuple[str, str]


@dataclass(frozen=True)
class Measured:
    """Bills and numbers of summaries by policy, then by conversation and price table."""

    bills: Mapping[str, Mapping[Place, Bill]]
    summaries: Mapping[str, Mapping[Place, int]]
    # Requests beyond the window, which an upstream refuses.
    refused: Mapping[str, int]

    def find_ratios(self, policy: str, tariff: str) -> list[float]:
        """To today's bill, for each conversation."""
        today, bills = self.bills[TODAY], self.bills[policy]
        return [bills[place].total / bill.total for place, bill in today.items() if place[1] == tariff]


def print_economics(workloads: Sequence[Workload], *, is_whole: bool) -> None:
    """is_whole: also the presets that stand for other programs, what stays visible, and the charts."""
    presets = {name: f"preset: {name}" for name in PRESETS} if is_whole else {}
    plays = play_all(workloads, {**ADAPTIVE, **presets}, [*presets])
    measured = measure(workloads, plays, [*ADAPTIVE, *presets])
    print_ratios(measured)
    print_parts(measured, [TODAY, DEFAULT, BEST])
    print_conversations(measured, workloads)
    if is_whole:
        print_visible(workloads, plays, [TODAY, DEFAULT])
        write_charts(measured, workloads, plays)
    print_targets(measured)


def print_kappas(workloads: Sequence[Workload]) -> None:
    """Money and what stays visible by the key `economy` of the default policy."""
    policies = {f"economy {kappa:g}": f"preset: adaptive, economy: {kappa}" for kappa in _KAPPAS}
    plays = play_all(workloads, {TODAY: ADAPTIVE[TODAY], **policies})
    print_ratios(measure(workloads, plays, [TODAY, *policies]))
    print_visible(workloads, plays, [TODAY, *policies])


def measure(workloads: Sequence[Workload], plays: Plays, policies: Sequence[str]) -> Measured:
    bills: dict[str, dict[Place, Bill]] = {}
    summaries: dict[str, dict[Place, int]] = {}
    refused: dict[str, int] = {}
    for workload in workloads:
        for tariff in TARIFFS:
            place = workload.name, tariff.name
            for policy in policies:
                runs = plays[Play(workload.name, tariff.name, policy)]
                bills.setdefault(policy, {})[place] = make_bill(tariff, runs)
                summaries.setdefault(policy, {})[place] = sum(len(run.calls) for run in runs)
                refused[policy] = refused.get(policy, 0) + _count_refused(runs)
            course = make_course(plays[Play(workload.name, tariff.name, TODAY)])
            for name, make in _SCHEDULES.items():
                bill, made = make(course, tariff)
                bills.setdefault(name, {})[place] = bill
                summaries.setdefault(name, {})[place] = made
                refused[name] = 0
    return Measured(bills, summaries, refused)


def _find_best(course: Course, tariff: Tariff) -> tuple[Bill, int]:
    found = find_optimum(course, tariff)
    return found.bill, len(found.summaries)


def _drop(share: float) -> "Callable[[Course, Tariff], tuple[Bill, int]]":
    return lambda course, tariff: (truncate(course, tariff, share).bill, 0)


_SCHEDULES: Final = {BEST: _find_best, TRUNCATED: _drop(1.0), HALVED: _drop(0.5)}


def _count_refused(runs: Sequence[RequestRun]) -> int:
    return sum(run.window is not None and run.sent > run.window for run in runs)


def print_ratios(measured: Measured) -> None:
    rows = []
    for policy in measured.bills:
        cells = []
        for tariff in TARIFFS:
            ratios = measured.find_ratios(policy, tariff.name)
            cells += [f"{_mean(ratios):.2f}", f"{max(ratios):.2f}"]
        made = sum(measured.summaries[policy].values()) / len(TARIFFS)
        rows.append((policy, *cells, f"{made:.0f}", str(measured.refused[policy] // len(TARIFFS))))
    columns = [
        "policy",
        *(name for tariff in TARIFFS for name in (tariff.name, "worst")),
        "summaries",
        "refused",
    ]
    count = len({workload for workload, _ in measured.bills[TODAY]})
    print_table(f"Ratio to today's bill, mean and worst of {count} conversations", columns, rows)
    print("  refused: requests beyond the window; what they cost is a part of the bill.")


def print_parts(measured: Measured, policies: Sequence[str]) -> None:
    rows = []
    for tariff in TARIFFS:
        today = _add(measured, TODAY, tariff).total
        for policy in policies:
            bill = _add(measured, policy, tariff)
            shares = (f"{part / today:.0%}" for part in bill.parts)
            rows.append(
                (f"{tariff.name}: {policy}", f"${bill.total:.2f}", f"{bill.total / today:.2f}", *shares)
            )
    print_table(
        "What the bills of all conversations are made of, in shares of today's bill",
        ["", "bill", "ratio", *PARTS],
        rows,
    )


def _add(measured: Measured, policy: str, tariff: Tariff) -> Bill:
    return add_bills(bill for place, bill in measured.bills[policy].items() if place[1] == tariff.name)


def print_visible(workloads: Sequence[Workload], plays: Plays, policies: Sequence[str]) -> None:
    """Of the recorded sessions; seeded agents need no names."""
    recorded = [workload for workload in workloads if workload.is_recorded]
    if not recorded:
        return
    cases = [(tariff.name, policy) for tariff in TARIFFS for policy in policies]
    tasks = [
        _Look(workload, plays[Play(workload.name, tariff, policy)], fold)
        for tariff, policy in cases
        for fold in _FOLDS
        for workload in recorded
    ]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = iter(pool.map(_look, tasks, chunksize=1))
    rows = []
    for tariff, policy in cases:
        cells = []
        for _ in _FOLDS:
            shares = [next(found) for _ in recorded]
            cells += [f"{_mean([mean_of(each, kind) for each in shares]):.0%}" for kind in _KINDS]
        rows.append((f"{tariff}: {policy}", *cells))
    columns = ["", *(f"{fold}: {kind}" for fold in _FOLDS for kind in _KINDS)]
    print_table("Visible of what the next 30 replies need, mean of the recorded sessions", columns, rows)
    print(
        "  names: of all that were said before; paths: of these; folded: of those that a summary stands for"
    )


class _Look(NamedTuple):
    workload: Workload
    runs: Sequence[RequestRun]
    fold: str


def _look(task: _Look) -> list[Shares]:
    return measure_visible(task.workload, task.runs, _FOLDS[task.fold])


def write_charts(measured: Measured, workloads: Sequence[Workload], plays: Plays) -> None:
    groups = {
        tariff.name: [
            Bar(name, _add(measured, policy, tariff), _mean(measured.find_ratios(policy, tariff.name)))
            for policy, name in _SHOWN.items()
        ]
        for tariff in TARIFFS
    }
    BILLS_IMAGE.write_text(render_bills(groups), "utf-8")
    shown = next((each for each in workloads if each.window == _SHOWN_WINDOW), workloads[0])
    lines = {_SHOWN[policy]: plays[Play(shown.name, TARIFFS[0].name, policy)] for policy in (TODAY, DEFAULT)}
    title = f"Tokens of each prompt, {shown.name}, {TARIFFS[0].name} prices"
    PROMPTS_IMAGE.write_text(render_prompts(title, lines), "utf-8")


def print_conversations(measured: Measured, workloads: Sequence[Workload]) -> None:
    """Each conversation: the default policy and the best schedule beside today's."""
    rows = []
    for workload in workloads:
        for tariff in TARIFFS:
            place = workload.name, tariff.name
            today = measured.bills[TODAY][place].total
            ratios = (f"{measured.bills[name][place].total / today:.2f}" for name in (DEFAULT, BEST))
            made = "/".join(str(measured.summaries[name][place]) for name in (TODAY, DEFAULT, BEST))
            rows.append((f"{workload.name}: {tariff.name}", f"${today:.2f}", *ratios, made))
    columns = ["", "today", DEFAULT, "best", "summaries today/adaptive/best"]
    print_table("Each conversation: ratio to today's bill", columns, rows)


def print_targets(measured: Measured) -> None:
    rows = []
    for tariff in TARIFFS:
        ratios = measured.find_ratios(DEFAULT, tariff.name)
        above = [1 / ratio - 1 for ratio in measured.find_ratios(BEST, tariff.name)]
        rows.append(
            (
                tariff.name,
                f"{_mean(ratios):.3f}",
                render_target(_mean(ratios), _TARGETS[tariff.name], at_least=False),
                f"{max(ratios):.3f}",
                render_target(max(ratios), _MOST_WORST, at_least=False),
                f"{_mean(above):.0%}",
            )
        )
    columns = ["adaptive", "mean", "target", "worst", "target", "today above the best"]
    print_table("Targets", columns, rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
