"""Clients that drop old messages themselves: few summaries, and no conversation gets another's."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.covering import choose
from tests.toy.agent import Message, Session, Shape, Style, Trim, make_session
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Dialect
from tests.toy.economics import prefix_breaks, summary_budget_trimmed
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import MESSAGES
from tests.toy.replicas import LABEL
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES
from tests.toy.running import Pace, Run, run_session
from tests.toy.summarising import texts_of
from tests.toy.trimming import (
    CLOCK,
    drop_oldest_results,
    keep_first_and_newest,
    keep_head_and_tail,
    keep_newest,
    keep_tokens,
    shorten_then_drop,
    with_ages,
    with_clock,
)
from tests.toy.upstream import ToyUpstream

WINDOW = 16_000
BIAS = 1.2
SHAPE = Shape(max_tokens=1_000)
TURNS = 60


@dataclass(frozen=True, kw_only=True)
class Case:
    """turn_tokens: at bias 1.0. Twenty turns of these sizes fill the window."""

    name: str
    trim: Trim
    style: Style
    turn_tokens: int = 600
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def session(self) -> Session:
        return replace(make_session(TURNS, 7, self.style, self.turn_tokens), trim=self.trim)

    def __str__(self) -> str:
        return self.name


# Their histories end as an earlier request ended, and go on from there.
CASES = [
    Case(name="newest 40", trim=keep_newest(40), style="talk", turn_tokens=700),
    Case(name="newest 80 with calls", trim=keep_newest(80), style="many_users"),
    Case(name="first and newest 80", trim=keep_first_and_newest(80), style="one_user"),
    Case(name="newest tokens from a user on", trim=keep_tokens(24_000), style="many_users"),
    Case(name="newest tokens", trim=keep_tokens(24_000), style="talk"),
    Case(
        name="without the oldest results",
        trim=drop_oldest_results(16_000, keeps_texts=False),
        style="many_users",
    ),
    Case(
        name="texts without their calls",
        trim=drop_oldest_results(16_000, keeps_texts=True),
        style="many_users",
    ),
    Case(name="head and tail", trim=keep_head_and_tail(5, 80), style="many_users"),
    Case(name="shortened, then dropped", trim=shorten_then_drop(16_000), style="many_users"),
    # Only the name tells it from another conversation.
    Case(name="clock", trim=with_clock(), style="many_users", headers=LABEL),
]
# In Messages neighbors of one role become one message, which was never sent before: texts whose calls are
# gone, and a note or a task with a clock with what a user said after it.
_MERGING = {"texts without their calls", "head and tail", "clock"}
NEUTRAL = [case for case in CASES if case.name not in _MERGING]
# The first changes every message, the others change the task, as if it was another conversation. Nothing is
# proven.
UNKNOWN = [
    Case(name="ages", trim=with_ages, style="many_users"),
    Case(name="clock, newest 80", trim=with_clock(keep_first_and_newest(80)), style="many_users"),
    Case(name="clock without a name", trim=with_clock(), style="many_users"),
]


async def play(case: Case, shape: Shape) -> Run:
    toy = ToyUpstream(window=WINDOW, bias=BIAS)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        pace = Pace(headers=dict(case.headers))
        return await run_session(case.session, gateway.base_url, toy, shape, pace)


def count_unstable(run: Run) -> int:
    """Requests with a summary that do not begin as the one before, which had one too. What the client's
    clock says is left out.
    """
    has_summary = ["pivot" in (plan or "") for plan in run.plans]
    breaks = prefix_breaks([CLOCK.sub(b"", seen.body) for seen in run.outgoing])
    return sum(has_summary[at - 1] and has_summary[at] for at in breaks)


def assert_goes_on(run: Run, case: Case, shape: Shape) -> None:
    """Each request went out with the summary of what its client has dropped, and few summaries were made."""
    assert run.failed == [] and run.refusals == []
    assert len(run.summaries) <= summary_budget_trimmed(case.session, TokenCounter(BIAS), WINDOW, shape)
    assert "digest" not in run.plans
    batches = sum("pruned" in (plan or "") for plan in run.plans)
    assert count_unstable(run) <= len(run.summaries) + batches


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_trimmed_history_goes_on_with_its_summary(case: Case) -> None:
    assert_goes_on(await play(case, SHAPE), case, SHAPE)


@pytest.mark.parametrize("case", choose(NEUTRAL, [0]), ids=str)
@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES], ids=["messages", "responses"])
async def test_so_it_does_in_the_other_formats(case: Case, dialect: Dialect) -> None:
    shape = replace(SHAPE, dialect=dialect)
    assert_goes_on(await play(case, shape), case, shape)


@pytest.mark.parametrize("case", choose(CASES, [1]), ids=str)
async def test_after_a_restart_a_trimmed_history_is_still_recognized(case: Case, store_url: str) -> None:
    toy, runs = ToyUpstream(window=WINDOW, bias=BIAS), []
    # Another process may know more of a shared store's histories. There only a label is a proof.
    headers = LABEL if store_url.startswith("redis") else case.headers
    async with toy:
        settings = make_settings(toy, store=store_url)
        for pace in (Pace(last=50, headers=dict(headers)), Pace(first=50, last=52, headers=dict(headers))):
            async with running_gateway(settings) as gateway:
                runs.append(await run_session(case.session, gateway.base_url, toy, SHAPE, pace))
                await gateway.settle()
    before, after = runs
    assert before.failed == after.failed == []
    assert after.plans == ["pivot", "pivot"]
    assert after.conversation == before.conversation


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
async def test_where_nothing_is_proven_most_requests_get_a_digest(case: Case) -> None:
    run = await play(case, SHAPE)
    assert run.failed == [] and run.refusals == []
    assert "digest" in run.plans
    assert len(run.summaries) <= summary_budget_trimmed(case.session, TokenCounter(BIAS), WINDOW, SHAPE)


async def test_what_fits_the_window_costs_nothing() -> None:
    case = Case(name="newest 10", trim=keep_newest(10), style="talk", turn_tokens=700)
    assert summary_budget_trimmed(case.session, TokenCounter(BIAS), WINDOW, SHAPE) == 2
    run = await play(case, SHAPE)
    assert run.failed == [] and run.summaries == []
    assert set(run.plans) == {"passthrough"}


# Two conversations that have most messages in common


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sessions with the same system prompt, tools, task and some fifty further messages.

    first: the turns that each has to itself before these. is_interleaved: they are played turn by turn,
    otherwise one after the other.
    """

    case: Case
    first: int
    is_interleaved: bool

    @property
    def sessions(self) -> dict[str, Session]:
        shared = self.case.session
        return {name: self._tell_apart(shared, name, seed) for name, seed in (("a", 11), ("b", 12))}

    def _tell_apart(self, shared: Session, name: str, seed: int) -> Session:
        """From the fifty messages on, and before them, each turn names its session."""
        own = make_session(TURNS, seed, self.case.style, self.case.turn_tokens)
        turns = [replace(turn, assistant=_tag(turn.assistant, name)) for turn in own.turns]
        common = 25 if self.case.style == "talk" else 17
        turns[self.first : self.first + common] = shared.turns[self.first : self.first + common]
        return replace(shared, name=name, turns=tuple(turns))

    def turns(self) -> Iterator[tuple[str, int]]:
        """The names and turns in the order in which they are played."""
        if self.is_interleaved:
            yield from ((name, turn) for turn in range(TURNS) for name in "ab")
        else:
            yield from ((name, turn) for name in "ab" for turn in range(TURNS))

    def __str__(self) -> str:
        order = "together" if self.is_interleaved else "in turn"
        return f"{self.case}, {self.first} turns apart, {order}"


_TAG = re.compile(r"<talk-[ab]>")


def _tag(message: Message, name: str) -> Message:
    return {**message, "content": f"<talk-{name}> {message.get('content') or 'I look.'}"}


def find_tags(request: Mapping[str, object]) -> set[str]:
    messages = request["messages"]
    assert isinstance(messages, list)
    return set(_TAG.findall("\n".join(text for message in messages for text in texts_of(message))))


PAIRS = [
    Pair(case=case, first=first, is_interleaved=is_interleaved)
    for case in (*CASES, *UNKNOWN)
    for first in (0, 10)
    for is_interleaved in (True, False)
]
# Each of the four ways with one strategy.
_CHOSEN = [0, 4 * 1 + 1, 4 * 2 + 2, 4 * 7 + 3]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pair", choose(PAIRS, _CHOSEN), ids=str)
async def test_conversations_that_are_much_alike_never_get_each_others_summary(pair: Pair) -> None:
    await _play_apart(pair.sessions, pair.turns())


_DIFFERENT = range(5, 8)
# Turns of one session, or of both by turns, in the order in which they are played.
_ORDERS: dict[str, Sequence[tuple[str, int]]] = {
    "together": [(name, turn) for turn in range(TURNS) for name in "ab"],
    "in turn": [(name, turn) for name in "ab" for turn in range(TURNS)],
    "one overtakes": [("a", turn) for turn in range(35)]
    + [("b", turn) for turn in range(45)]
    + [("a", turn) for turn in range(35, TURNS)],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", _ORDERS.values(), ids=list(_ORDERS))
@pytest.mark.parametrize("case", choose(CASES, [0]), ids=str)
async def test_conversations_that_differ_in_what_was_dropped_never_get_each_others_summary(
    case: Case, order: Sequence[tuple[str, int]]
) -> None:
    """Three turns differ. Once these are dropped, both clients send the same."""
    sessions = {name: _with_tags(case.session, name) for name in "ab"}
    await _play_apart(sessions, order)


def _with_tags(session: Session, name: str) -> Session:
    turns = list(session.turns)
    for at in _DIFFERENT:
        turns[at] = replace(turns[at], assistant=_tag(turns[at].assistant, name))
    return replace(session, name=name, turns=tuple(turns))


async def _play_apart(sessions: Mapping[str, Session], order: Iterable[tuple[str, int]]) -> None:
    """Plays the turns in this order. Fails if a request goes out with what another session said."""
    toy = ToyUpstream(window=WINDOW, bias=BIAS)
    toy.summary = lambda request: Reply(text=f"So far: {' '.join(sorted(find_tags(request)))}. We went on.")
    async with toy, running_gateway(make_settings(toy)) as gateway:
        for name, turn in order:
            pace = Pace(first=turn, last=turn + 1)
            run = await run_session(sessions[name], gateway.base_url, toy, SHAPE, pace)
            assert run.failed == [] and run.refusals == []
            assert all(find_tags(seen.request) <= {f"<talk-{name}>"} for seen in run.outgoing)
    assert toy.summaries and all(len(find_tags(seen.request)) <= 1 for seen in toy.summaries)
