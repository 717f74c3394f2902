"""What a replay found, as values: for the terminal and for programs (`--json`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.replay.comparison import Result, compare, find_best, make_result
from gateway.replay.money import Pricing
from gateway.replay.offline import SUMMARY_TOKENS
from gateway.replay.playing import PlayedSource
from gateway.replay.runs import Played, RequestRun, Sums

# What a result does not come from a recording, or from a decision of the gateway.
SIMULATED = (
    f"Simulated: nothing was sent. Every summary has at most {SUMMARY_TOKENS:,} tokens and no content, and "
    "one that is made in the background is ready before the next request. Prompts and replies have the size "
    "that was recorded, or else our own count of it; no request is refused."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """seconds: that it took."""

    policies: Sequence[str]
    sources: Sequence[PlayedSource]
    pricing: Pricing
    seconds: float

    @property
    def results(self) -> list[Result]:
        return compare(self.sources, self.policies, self.pricing)

    @property
    def best(self) -> int | None:
        return find_best(self.results)

    @property
    def shown(self) -> int:
        """The place of the policy that is shown in detail: the best, or the only one."""
        return self.best or 0

    def list_sessions(self, place: int) -> list[tuple[str, Result]]:
        """What came of each recording under one policy; of each conversation, if there is one recording."""
        played = [source.played[place] for source in self.sources if source.played]
        if len(played) == 1:
            groups = split_conversations(played[0])
            return [(name, self._make(place, runs)) for name, runs in groups.items()]
        return [(each.recording, self._make(place, each.requests)) for each in played]

    def find_largest(self, place: int) -> tuple[str, Sequence[RequestRun]]:
        """The conversation that a chart is worth most for: its name and its requests."""
        found = ((source.name, self.find_runs(source.name, place)) for source in self.sources)
        return max(found, key=lambda each: _count_received(each[1]), default=("", ()))

    def find_runs(self, name: str, place: int) -> Sequence[RequestRun]:
        """The largest conversation of a recording, by its name."""
        for source in self.sources:
            if source.name == name and source.played:
                groups = split_conversations(source.played[place]).values()
                return max(groups, key=_count_received, default=())
        return ()

    def _make(self, place: int, runs: Sequence[RequestRun]) -> Result:
        return make_result(self.policies[place], runs, self.pricing)


def _count_received(runs: Sequence[RequestRun]) -> int:
    return sum(run.received for run in runs)


def split_conversations(played: Played) -> dict[str, list[RequestRun]]:
    """The requests of each branch, by what operators see of it."""
    groups: dict[str, list[RequestRun]] = {}
    for run in played.requests:
        groups.setdefault(f"{run.conversation[:8]} {run.purpose}", []).append(run)
    return groups


class CostJson(msgspec.Struct, frozen=True):
    without_usd: float | None
    with_usd: float | None
    summaries_usd: float | None
    saved_usd: float | None
    unpriced_requests: int


class ResultJson(msgspec.Struct, frozen=True):
    policy: str
    is_best: bool
    sums: Sums
    sent_reuse: float
    received_reuse: float
    cost: CostJson


class SessionJson(msgspec.Struct, frozen=True):
    """played: in the order of the policies."""

    name: str
    kind: str
    skipped: int
    file_bytes: int
    request_bytes: int
    failure: str | None
    results: list[ResultJson]
    played: tuple[Played, ...]


class ReportJson(msgspec.Struct, frozen=True):
    simulated: str
    seconds: float
    policies: list[ResultJson]
    sessions: list[SessionJson]


def make_json(report: ReplayReport) -> ReportJson:
    best = report.best
    return ReportJson(
        simulated=SIMULATED,
        seconds=round(report.seconds, 3),
        policies=[
            _make_result_json(result, is_best=place == best) for place, result in enumerate(report.results)
        ],
        sessions=[_make_session_json(source, report) for source in report.sources],
    )


def _make_session_json(source: PlayedSource, report: ReplayReport) -> SessionJson:
    results = [make_result(played.policy, played.requests, report.pricing) for played in source.played]
    best = find_best(results)
    return SessionJson(
        name=source.name,
        kind=source.kind,
        skipped=source.skipped,
        file_bytes=source.file_bytes,
        request_bytes=source.request_bytes,
        failure=source.failure,
        results=[_make_result_json(result, is_best=place == best) for place, result in enumerate(results)],
        played=source.played,
    )


def _make_result_json(result: Result, *, is_best: bool) -> ResultJson:
    cost = result.cost
    money = CostJson(cost.received, cost.total, cost.summaries, cost.saved, cost.unpriced)
    sums = result.sums
    return ResultJson(result.policy, is_best, sums, sums.sent_reuse, sums.received_reuse, money)
