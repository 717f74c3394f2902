"""Clients that drop or clear old messages themselves: few summaries, and no conversation gets another's."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.covering import choose
from tests.toy.agent import Message, Session, Shape, Style, Trim, make_session
from tests.toy.checks import check_privacy
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Dialect
from tests.toy.economics import prefix_breaks, summary_budget_trimmed
from tests.toy.house import House, make_settings
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES
from tests.toy.running import Run
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
from tests.toy.upstream import Request, ToyUpstream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

WINDOW, BIAS, TURNS = 16_000, 1.2, 60
SHAPE = Shape(max_tokens=1_000)
# Where several processes serve a client that trims its history, it has to name its session.
LABEL = {"x-gateway-session": "toy"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """turn_tokens: at bias 1.0. Twenty turns of these sizes fill the window."""

    name: str
    trim: Trim
    style: Style = "many_users"
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
    Case(name="newest 80 with calls", trim=keep_newest(80)),
    Case(name="first and newest 80", trim=keep_first_and_newest(80), style="one_user"),
    Case(name="newest tokens from a user on", trim=keep_tokens(24_000)),
    Case(name="newest tokens", trim=keep_tokens(24_000), style="talk"),
    Case(name="without the oldest results", trim=drop_oldest_results(16_000, keeps_texts=False)),
    Case(name="texts without their calls", trim=drop_oldest_results(16_000, keeps_texts=True)),
    Case(name="head and tail", trim=keep_head_and_tail(5, 80)),
    Case(name="shortened, then dropped", trim=shorten_then_drop(16_000)),
    # Only the name tells it from another conversation.
    Case(name="clock", trim=with_clock(), headers=LABEL),
]
# In Messages neighbors of one role become one message, which was never sent before: texts whose calls are
# gone, and a note or a task with a clock with what a user said after it.
_MERGING = {"texts without their calls", "head and tail", "clock"}
NEUTRAL = [case for case in CASES if case.name not in _MERGING]
# The first changes every message, the others change the task, as if it was another conversation. Nothing is
# proven.
UNKNOWN = [
    Case(name="ages", trim=with_ages),
    Case(name="clock, newest 80", trim=with_clock(keep_first_and_newest(80))),
    Case(name="clock without a name", trim=with_clock()),
]


async def play(house: House, case: Case, shape: Shape, first: int = 0, last: int | None = None) -> Run:
    run = await house.play(case.session, shape, first, last, since=None, **case.headers)
    assert run.failed == [] and run.refusals == []
    for seen in run.seen:
        check_privacy(seen)
    return run


def count_unstable(run: Run) -> int:
    """Requests with a summary that do not begin as the one before, which had one too. What the client's
    clock says is left out.
    """
    has_summary = ["pivot" in (plan or "") for plan in run.plans]
    breaks = prefix_breaks([CLOCK.sub(b"", seen.body) for seen in run.outgoing])
    return sum(has_summary[at - 1] and has_summary[at] for at in breaks)


def assert_goes_on(run: Run, case: Case, shape: Shape) -> None:
    """Each request went out with the summary of what its client has dropped, and few summaries were made."""
    assert len(run.summaries) <= summary_budget_trimmed(case.session, TokenCounter(BIAS), WINDOW, shape)
    assert "digest" not in run.plans
    batches = sum("pruned" in (plan or "") for plan in run.plans)
    assert count_unstable(run) <= len(run.summaries) + batches


@pytest.mark.parametrize("case", choose(CASES, [0, 2, 4, 6]), ids=str)
async def test_a_trimmed_history_goes_on_with_its_summary(house: House, case: Case) -> None:
    assert_goes_on(await play(house, case, SHAPE), case, SHAPE)


@pytest.mark.parametrize("case", choose(NEUTRAL, [0]), ids=str)
@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES], ids=["messages", "responses"])
async def test_so_it_does_in_the_other_formats(house: House, case: Case, dialect: Dialect) -> None:
    shape = replace(SHAPE, dialect=dialect)
    assert_goes_on(await play(house, case, shape), case, shape)


@pytest.mark.parametrize("case", choose(CASES, [1]), ids=str)
async def test_after_a_restart_a_trimmed_history_is_still_recognized(case: Case, store_url: str) -> None:
    toy, runs = ToyUpstream(window=WINDOW, bias=BIAS), []
    # Another process may know more of a shared store's histories. There only a label is a proof.
    case = replace(case, headers=LABEL) if store_url.startswith("redis") else case
    async with toy:
        for first, last in ((0, 50), (50, 52)):
            async with serve(make_settings(toy, store=store_url)) as product:
                house = House(toy, product, "sk-toy")
                runs.append(await play(house, case, SHAPE, first, last))
                await house.at_rest()
    before, after = runs
    assert after.plans == ["pivot", "pivot"]
    assert after.conversation == before.conversation


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
async def test_where_nothing_is_proven_most_requests_get_a_digest(house: House, case: Case) -> None:
    run = await play(house, case, SHAPE)
    assert "digest" in run.plans
    assert len(run.summaries) <= summary_budget_trimmed(case.session, TokenCounter(BIAS), WINDOW, SHAPE)


async def test_what_fits_the_window_costs_nothing(house: House) -> None:
    case = Case(name="newest 10", trim=keep_newest(10), style="talk", turn_tokens=700)
    run = await play(house, case, SHAPE)
    assert run.summaries == [] and set(run.plans) == {"passthrough"}


# Two conversations that have most messages in common. Each turn of their own names its session.

_TAG = re.compile(r"<talk-[ab]>")


def _tag(message: Message, name: str) -> Message:
    return {**message, "content": f"<talk-{name}> {message.get('content') or 'I look.'}"}


def find_tags(request: Request) -> set[str]:
    messages: Any = request["messages"]
    return set(_TAG.findall("\n".join(text for message in messages for text in texts_of(message))))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sessions with the same system prompt, tools, task and some fifty further messages.

    first: the turns that each has to itself before these. order: of the turns of both.
    """

    case: Case
    first: int
    order: str

    @property
    def sessions(self) -> dict[str, Session]:
        return {name: self._tell_apart(name, seed) for name, seed in (("a", 11), ("b", 12))}

    def _tell_apart(self, name: str, seed: int) -> Session:
        shared = self.case.session
        own = make_session(TURNS, seed, self.case.style, self.case.turn_tokens)
        turns = [replace(turn, assistant=_tag(turn.assistant, name)) for turn in own.turns]
        common = 25 if self.case.style == "talk" else 17
        turns[self.first : self.first + common] = shared.turns[self.first : self.first + common]
        return replace(shared, name=name, turns=tuple(turns))

    def __str__(self) -> str:
        return f"{self.case}, {self.first} turns apart, {self.order}"


# Turns of one session, or of both by turns, in the order in which they are played.
_ORDERS: dict[str, Sequence[tuple[str, int]]] = {
    "together": [(name, turn) for turn in range(TURNS) for name in "ab"],
    "in turn": [(name, turn) for name in "ab" for turn in range(TURNS)],
    "one overtakes": [("a", turn) for turn in range(35)]
    + [("b", turn) for turn in range(45)]
    + [("a", turn) for turn in range(35, TURNS)],
}
PAIRS = [
    Pair(case=case, first=first, order=order)
    for case in (*CASES, *UNKNOWN)
    for first in (0, 10)
    for order in ("together", "in turn")
]
# Each of the four ways with one strategy.
_CHOSEN = [0, 4 * 1 + 1, 4 * 2 + 2, 4 * 7 + 3]


@pytest.mark.parametrize("pair", choose(PAIRS, _CHOSEN), ids=str)
async def test_conversations_that_are_much_alike_never_get_each_others_summary(
    house: House, pair: Pair
) -> None:
    await _play_apart(house, pair.sessions, _ORDERS[pair.order])


@pytest.mark.parametrize("order", _ORDERS.values(), ids=list(_ORDERS))
@pytest.mark.parametrize("case", choose(CASES, [0]), ids=str)
async def test_conversations_that_differ_in_what_was_dropped_never_get_each_others_summary(
    house: House, case: Case, order: Sequence[tuple[str, int]]
) -> None:
    """Three turns differ. Once these are dropped, both clients send the same."""
    sessions = {}
    for name in "ab":
        turns = list(case.session.turns)
        turns[5:8] = [replace(turn, assistant=_tag(turn.assistant, name)) for turn in turns[5:8]]
        sessions[name] = replace(case.session, name=name, turns=tuple(turns))
    await _play_apart(house, sessions, order)


async def _play_apart(
    house: House, sessions: Mapping[str, Session], order: Sequence[tuple[str, int]]
) -> None:
    """Plays the turns in this order. Fails if a request goes out with what another session said."""
    toy = house.toy
    toy.summary = lambda request: Reply(text=f"So far: {' '.join(sorted(find_tags(request)))}. We went on.")
    for name, turn in order:
        run = await house.play(sessions[name], SHAPE, turn, turn + 1)
        assert run.failed == [] and run.refusals == []
        assert all(find_tags(seen.request) <= {f"<talk-{name}>"} for seen in run.outgoing)
    assert toy.summaries and all(len(find_tags(seen.request)) <= 1 for seen in toy.summaries)


# Clients that put a text in place of old results: the summary stays in force, and is not made twice.

_CLEARED = "[Old tool result content cleared]"


def with_drawn_ids(session: Session) -> Session:
    """The same session with ids of calls as providers draw them, which no other conversation has."""

    def renamed(message: Message) -> Message:
        text = re.sub(
            r"\bcall_\d+_\d+\b",
            lambda found: f"call_{hashlib.sha256(found[0].encode()).hexdigest()[:16]}",
            json.dumps(message),
        )
        changed: Message = json.loads(text)
        return changed

    turns = [
        replace(turn, assistant=renamed(turn.assistant), followers=tuple(map(renamed, turn.followers)))
        for turn in session.turns
    ]
    return replace(session, turns=tuple(turns))


_SESSION = with_drawn_ids(make_session(40, 7, "one_user", 500))


def with_results(session: Session, turns: int, text: str) -> Session:
    """The same session after its client has put a text in place of the results of its first turns."""

    def replaced(message: Message) -> Message:
        return {**message, "content": text} if message["role"] == "tool" else message

    changed = [
        replace(turn, followers=tuple(map(replaced, turn.followers))) for turn in session.turns[:turns]
    ]
    return replace(session, turns=(*changed, *session.turns[turns:]))


async def play_on(house: House, session: Session, first: int, last: int) -> Run:
    run = await house.play(session, Shape(), first, last)
    assert run.failed == [] and run.refusals == []
    await house.at_rest()
    return run


async def play_until_compacted(house: House) -> tuple[Run, int]:
    """The first request that went out with a pivot, and the next turn. No two summaries are alike."""
    toy = house.toy
    toy.summary = lambda _: Reply(text=f"Summary number {len(toy.summaries)} of {house.key}: we went on.")
    for turn in range(len(_SESSION)):
        run = await play_on(house, _SESSION, turn, turn + 1)
        if run.plans == ["pivot"]:
            return run, turn + 1
    raise AssertionError("never compacted")


def list_messages(run: Run) -> Iterator[list[Any]]:
    for seen in run.outgoing:
        messages: Any = seen.request["messages"]
        yield messages


def split_at_summary(messages: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Everything up to the summary, and the tail; the neutral user message between them left out."""
    end = 1 + next(at for at, message in enumerate(messages) if message["role"] == "assistant")
    tail = end + 1 if messages[end]["role"] == "user" else end
    return list(messages[:end]), list(messages[tail:])


def read_summary(run: Run) -> object:
    return split_at_summary(next(list_messages(run)))[0][-1]


def assert_same_summary(before: Run, after: Run, session: Session, first: int) -> None:
    """Each request after was sent as: the very messages up to the summary, then its own newest ones."""
    known, _ = split_at_summary(next(list_messages(before)))
    for at, messages in enumerate(list_messages(after)):
        sent, tail = split_at_summary(messages)
        assert sent == known
        assert tail == session.messages(first + at)[-len(tail) :]


@pytest.mark.parametrize("restarts", [(), (0,), (1,)], ids=["none", "at once", "later"])
async def test_a_client_that_clears_old_results_keeps_its_summary(
    restarts: Sequence[int], store_url: str
) -> None:
    async with ToyUpstream(window=WINDOW) as toy:
        settings = make_settings(toy, store=store_url)
        async with serve(settings) as product:
            house = House(toy, product, "sk-toy")
            before, turn = await play_until_compacted(house)
            made, session = len(toy.summaries), with_results(_SESSION, turn - 1, _CLEARED)
            runs = [
                await play_on(house, session, at, at + 1) for at in range(turn, turn + 3)[: _end(restarts)]
            ]
        async with serve(settings) as product:
            house, start = House(toy, product, "sk-toy"), turn + len(runs)
            runs += [await play_on(house, session, at, at + 1) for at in range(start, turn + 3)]
    for at, run in enumerate(runs):
        assert run.plans == ["pivot"]
        assert_same_summary(before, run, session, turn + at)
    assert len(toy.summaries) == made
    assert len({run.conversation for run in runs}) == 1
    assert restarts == (0,) or runs[0].conversation == before.conversation


def _end(restarts: Sequence[int]) -> int | None:
    return restarts[0] if restarts else None


async def test_a_client_that_clears_again_and_again_is_never_without_a_pivot(house: House) -> None:
    house.toy.counter = TokenCounter(1.0)
    _, start = await play_until_compacted(house)
    made = len(house.toy.summaries)
    for turn in range(start, len(_SESSION)):
        run = await play_on(house, with_results(_SESSION, turn // 5 * 5, _CLEARED), turn, turn + 1)
        assert run.plans == ["pivot"]
    assert len(house.toy.summaries) <= made + 1


@pytest.mark.parametrize("turns", [12, 6])
async def test_a_client_that_clears_before_any_summary_keeps_its_conversation(
    house: House, turns: int
) -> None:
    """As LangChain's ContextEditingMiddleware does, which leaves the newest three."""
    run = await play_on(house, _SESSION, 0, turns)
    conversations = {run.conversation}
    for turn in range(turns, turns + 4):
        run = await play_on(house, with_results(_SESSION, turn - 3, "[cleared]"), turn, turn + 1)
        conversations.add(run.conversation)
    assert run.plans == ["passthrough"] and len(conversations) == 1
    assert house.toy.summaries == []


@pytest.mark.parametrize("others", ["cleared", "kept"])
@pytest.mark.parametrize("edited", [1, 2, 40], ids=["the first", "two", "all"])
@pytest.mark.parametrize("text", ["An edited result.", f"{_CLEARED} by hand", ""])
async def test_results_that_became_another_text_never_get_the_old_summary(
    house: House, text: str, edited: int, others: str
) -> None:
    """Of the first turns; those of later ones are cleared, or as they were."""
    before, turn = await play_until_compacted(house)
    session = with_results(_SESSION, turn - 1 if others == "cleared" else 0, _CLEARED)
    session = with_results(session, min(edited, turn - (1 if others == "cleared" else 6)), text)
    after = await play_on(house, session, turn, turn + 3)
    assert all(read_summary(before) not in messages for messages in list_messages(after))
    assert before.conversation not in {answer.header("x-gateway-conversation") for answer in after.answers}


async def test_another_tenants_cleared_history_never_gets_the_summary(house: House) -> None:
    before, turn = await play_until_compacted(house)
    session = with_results(_SESSION, turn - 1, _CLEARED)
    other = await play_on(replace(house, key=f"{house.key}-other"), session, turn, turn + 1)
    own = await play_on(house, session, turn, turn + 1)
    assert read_summary(before) not in next(list_messages(other))
    assert read_summary(before) in next(list_messages(own))


async def test_what_a_client_has_dropped_stays_in_what_its_session_worked_on(house: House) -> None:
    run = await play(house, CASES[0], SHAPE)
    await house.at_rest()
    _, page = await house.admin(f"/conversations/{run.conversation}/summary")
    assert [each["message"] for each in page["messages"]] == list(range(0, 2 * TURNS, 2))
