"""Bills without the gateway's plan: the cheapest schedule there is, and clients that cut their own history.

Both know the sizes of all requests in advance. A schedule says before which requests a summary is made; the
messages that stay are at most the tail that the default policy keeps, at least those that the model has not
answered.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.economics.tariffs import Bill, Tariff, add_bills
from gateway.replay.results import SUMMARY_TOKENS, RequestRun

_TOKENS_PER_PRICE: Final = 1_000_000
# A summary call beside the history: the template of one that rides, and all around a quoted history.
_RIDE_TOKENS: Final = 250
_QUOTE_TOKENS: Final = 700
_TAIL_TOKENS: Final = 20_000
_TAIL_SHARE: Final = 0.15
_OPENING_SHARE: Final = 0.15
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Course:
    """A conversation as its client sends it, in tokens of each request."""

    received: Sequence[int]
    replies: Sequence[int]
    # Before the messages, and what no summary replaces.
    environment: int
    floor: int
    # No request may be larger.
    hard: int

    @property
    def tail(self) -> int:
        return min(_TAIL_TOKENS, int(_TAIL_SHARE * self.hard))

    def find_kept(self, at: int, most: int) -> int:
        """The first request whose reply and all after it stay in request `at`."""
        first = bisect_left(self.received, self.received[at] - most, 0, at)
        return min(first, at - 1)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """summaries: before which requests one is made."""

    bill: Bill
    summaries: tuple[int, ...] = ()


def make_course(runs: Sequence[RequestRun]) -> Course:
    """runs: of one branch, in their order."""
    window = next((run.window for run in runs if run.window), 0)
    hard = next((run.hard for run in reversed(runs) if run.hard), 0)
    environment = max(run.environment for run in runs)
    opening = min(max(run.floor for run in runs) - environment, int(_OPENING_SHARE * window))
    return Course(
        received=_make_growing([run.received for run in runs]),
        replies=[run.output for run in runs],
        environment=environment,
        floor=environment + opening,
        hard=hard,
    )


def _make_growing(sizes: Sequence[int]) -> list[int]:
    """Recorded sizes may shrink a little where the client left out a notice."""
    grown: list[int] = []
    for size in sizes:
        grown.append(max(size, grown[-1] if grown else 0))
    return grown


class _Costs:
    """What a course costs at a tariff, in US dollars."""

    def __init__(self, course: Course, tariff: Tariff) -> None:
        self.course = course
        self.tariff = tariff

    def send(self, prompt: int, shared: int, added: int) -> Bill:
        """added: what the client has sent for the first time."""
        price = self.tariff.price
        if self.tariff.cache == "none":
            shared = 0
        fresh = prompt - shared
        new = min(fresh, added)
        return Bill(
            cached=_usd(shared, self.tariff.read),
            new=_usd(new, self.tariff.write if shared else price.input),
            again=_usd(fresh - new, self.tariff.write if shared else price.input),
        )

    def summarize(self, prompt: int, folded: int) -> Bill:
        """The cheaper one of a call that rides behind the last prompt, and one that quotes."""
        price = self.tariff.price
        rides = _usd(prompt, self.tariff.read) + _usd(_RIDE_TOKENS, price.input)
        quotes = _usd(folded + _QUOTE_TOKENS, price.input)
        return Bill(summary_input=min(rides, quotes), summary_output=_usd(SUMMARY_TOKENS, price.output))

    @property
    def kept_prefix(self) -> int:
        """What a prompt after a break begins with in common with the one before."""
        return self.course.environment if self.tariff.cache == "marked" else self.course.floor

    @property
    def replies(self) -> Bill:
        return Bill(replies=_usd(sum(self.course.replies), self.tariff.price.output))


def find_optimum(course: Course, tariff: Tariff) -> Scheduled:
    """By dynamic programming over the requests before which a summary is made."""
    costs, count = _Costs(course, tariff), len(course.received)
    best: list[float] = [0.0] + [_NEVER] * count
    before = [0] * (count + 1)
    for start in range(count):
        if best[start] == _NEVER:
            continue
        for at, spent, fold in _walk(costs, start):
            # All up to request `at` is sent; the next summary comes before the request behind it, or none.
            total = best[start] + spent + (fold if at + 1 < count else 0.0)
            if total < best[at + 1]:
                best[at + 1], before[at + 1] = total, start
    summaries = []
    place = before[count]
    while place:
        summaries.append(place)
        place = before[place]
    ordered = tuple(reversed(summaries))
    return Scheduled(_add_up(costs, ordered), ordered)


def _walk(costs: _Costs, start: int) -> Iterator[tuple[int, float, float]]:
    """Requests after a summary made before request `start`: what they cost so far, and what a summary of
    what they hold would cost then. Ends where the hard threshold is passed.
    """
    course, count = costs.course, len(costs.course.received)
    base, folded = _find_base(course, start), _find_folded(course, start)
    spent = 0.0
    for at in range(start, count):
        prompt = course.received[at] - base
        if at > start and prompt > course.hard:
            return
        spent += _send_next(costs, start, at).total
        is_useful = at + 1 < count and _find_folded(course, at + 1) > folded
        fold = costs.summarize(prompt, _count_quoted(course, start, at + 1)).total if is_useful else _NEVER
        yield at, spent, fold


def _find_base(course: Course, start: int) -> int:
    """How much smaller requests are than they came, behind a summary made before request `start`."""
    if not start:
        return 0
    kept = course.received[start] - course.received[course.find_kept(start, course.tail)]
    return course.received[start] - min(course.received[start], course.floor + SUMMARY_TOKENS + kept)


def _send_next(costs: _Costs, start: int, at: int) -> Bill:
    course = costs.course
    base = _find_base(course, start)
    prompt = course.received[at] - base
    before = course.received[at - 1] if at else 0
    added = course.received[at] - before
    if at == start:
        return costs.send(prompt, min(prompt, costs.kept_prefix) if start else 0, added)
    return costs.send(prompt, before - base, added)


def price_schedule(course: Course, tariff: Tariff, summaries: Sequence[int]) -> Bill | None:
    """None if a request would be above the hard threshold, or a summary would stand for nothing new."""
    start = 0
    for end in (*summaries, len(course.received)):
        base = _find_base(course, start)
        if any(course.received[at] - base > course.hard for at in range(start + 1, end)):
            return None
        if end < len(course.received) and _find_folded(course, end) <= _find_folded(course, start):
            return None
        start = end
    return _add_up(_Costs(course, tariff), summaries)


def _add_up(costs: _Costs, summaries: Sequence[int]) -> Bill:
    course, bills, start = costs.course, [costs.replies], 0
    for at in range(len(course.received)):
        if at in summaries:
            prompt = course.received[at - 1] - _find_base(course, start)
            bills.append(costs.summarize(prompt, _count_quoted(course, start, at)))
            start = at
        bills.append(_send_next(costs, start, at))
    return add_bills(bills)


def _find_folded(course: Course, start: int) -> int:
    """Tokens up to the end of what a summary made before request `start` stands for."""
    return course.received[course.find_kept(start, course.tail)] if start else course.floor


def _count_quoted(course: Course, start: int, at: int) -> int:
    """What a summary before request `at` has to read, after one before request `start`."""
    return _find_folded(course, at) - _find_folded(course, start) + (SUMMARY_TOKENS if start else 0)


def truncate(course: Course, tariff: Tariff, share: float = 1.0) -> Scheduled:
    """A client that drops its oldest messages whenever a request would be above the hard threshold.

    share: of the threshold that it cuts down to. 1: as much as must be, which changes the prefix each time.
    """
    costs = _Costs(course, tariff)
    bills, first, before = [costs.replies], 0, 0
    for at, size in enumerate(course.received):
        dropped = course.received[first] - course.floor if first else 0
        is_cut = size - dropped > course.hard and at > 0
        if is_cut:
            first = course.find_kept(at, int(share * course.hard) - course.floor)
            dropped = max(0, course.received[first] - course.floor)
        prompt = size - dropped
        shared = min(prompt, costs.kept_prefix if is_cut else before)
        bills.append(costs.send(prompt, shared, size - (course.received[at - 1] if at else 0)))
        before = prompt
    return Scheduled(add_bills(bills))


def _usd(tokens: float, price: float) -> float:
    return tokens * price / _TOKENS_PER_PRICE
