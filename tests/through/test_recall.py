"""What the newest message names is found in the originals and stands before it, in all formats."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.toy.agent import Session, Shape, Turn, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import make_settings
from tests.toy.product import serve
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import Seen, ToyUpstream

_POLICY = "policies: {default: {recall: auto, summary: {method: digest}}}\n"
_OFF = "policies: {default: {summary: {method: digest}}}\n"
_TURNS = 16
_FOUND = "(Found in earlier messages"
_PIECES = "Parts of the earlier messages that may be needed next"


def find_fact(session: Session) -> str:
    """The oldest of a tool's results."""
    return next(fact.token for fact in session.facts if fact.kind == "tool")


def with_questions(session: Session, questions: Sequence[str]) -> Session:
    """After it has been summarized, the user asks."""
    asked = [
        Turn({"role": "assistant", "content": f"Understood {at}."}, ({"role": "user", "content": question},))
        for at, question in enumerate(questions)
    ]
    last = Turn({"role": "assistant", "content": "Understood."}, ())
    return replace(session, turns=(*session.turns[: _TURNS - 2], *asked, last))


async def ask_all(
    session: Session, dialect: Dialect, toy: ToyUpstream, settings: str, questions: Sequence[Sequence[str]]
) -> Run:
    """Up to the summary, and then the questions; between the lists of them the product restarts."""
    whole = with_questions(session, [question for some in questions for question in some])
    shape, first, runs = Shape(dialect=dialect), _TURNS - 1, list[Run]()
    for number, some in enumerate(questions):
        async with serve(settings) as product:
            if number == 0:
                before = Pace(first=_TURNS - 2, last=_TURNS - 1)
                assert (await run_session(whole, product.base_url, toy, shape, before)).failed == []
                await product.at_rest()
            for turn in range(first, first + len(some)):
                pace = Pace(first=turn, last=turn + 1)
                runs.append(await run_session(whole, product.base_url, toy, shape, pace))
                await product.at_rest()
            first += len(some)
    run = Run(
        answers=tuple(answer for run in runs for answer in run.answers),
        seen=tuple(seen for run in runs for seen in run.seen),
    )
    assert run.failed == [] and run.refusals == []
    return run


def read_array(seen: Seen) -> list[Any]:
    array = seen.request["messages" if "messages" in seen.request else "input"]
    assert isinstance(array, list)
    return array


@pytest.mark.system(11)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path.strip("/"))
async def test_what_the_user_names_is_found_and_stays_where_it_was_put(
    dialect: Dialect, tmp_path: Path
) -> None:
    session = make_session(_TURNS, 3)
    fact = find_fact(session)
    questions = [["Hello.", f"What was `{fact}`?", "And then?"], ["Go on.", "And more."]]
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path / 'store'}", more=_POLICY)
        run = await ask_all(session, dialect, toy, settings, questions)
    plain, named, *later = run.outgoing
    assert _FOUND not in json.dumps(read_array(plain))
    # Directly before the question: the pieces as a user message, and a reply, so that roles alternate.
    *_, found, noted, question = read_array(named)
    assert _FOUND in json.dumps(found) and fact in json.dumps(found) and "[message " in json.dumps(found)
    assert (found["role"], noted["role"], question["role"]) == ("user", "assistant", "user")
    assert fact not in json.dumps(read_array(plain)[:-1])
    # Sticky, also after a restart: each array begins with the one before it.
    for before, after in pairwise(run.outgoing):
        assert read_array(after)[: len(read_array(before)) - 1] == read_array(before)[:-1]
    assert all(json.dumps(read_array(each)).count(_FOUND) == 1 for each in later)
    # The client sees nothing of it.
    assert all(_FOUND.encode() not in answer.body for answer in run.answers)


async def test_pieces_stand_behind_the_summary_and_nothing_is_found_where_it_is_off(tmp_path: Path) -> None:
    session = make_session(_TURNS, 3)
    question = [[f"What was `{find_fact(session)}`?"]]
    arrays = []
    for name, policy in (("auto", _POLICY), ("off", _OFF)):
        async with ToyUpstream(window=16_000) as toy:
            settings = make_settings(toy, store=f"disk:{tmp_path / name}", more=policy)
            run = await ask_all(session, CHAT, toy, settings, question)
        arrays.append(json.dumps(read_array(run.outgoing[-1])))
    auto, off = arrays
    assert _PIECES in auto and _FOUND in auto
    assert _PIECES not in off and _FOUND not in off


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_another_conversations_originals_are_never_found(tmp_path: Path, is_restarted: bool) -> None:
    """Two of one tenant that begin with one task: the canary of one is asked for in the other."""
    mine, other = make_session(_TURNS, 3), make_session(_TURNS, 4)
    other = replace(other, leading=mine.leading, opening=mine.opening)
    canary, own = find_fact(mine), find_fact(other)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path / 'store'}", more=_POLICY)
        if is_restarted:
            await ask_all(mine, CHAT, toy, settings, [["Hello."]])
            run = await ask_all(other, CHAT, toy, settings, [[f"What was `{canary}`?", f"And `{own}`?"]])
        else:
            async with serve(settings) as product:
                await run_session(mine, product.base_url, toy, pace=Pace(first=_TURNS - 2))
                await product.at_rest()
            run = await ask_all(other, CHAT, toy, settings, [[f"What was `{canary}`?", f"And `{own}`?"]])
    stranger, known = (json.dumps(read_array(seen)) for seen in run.outgoing[-2:])
    assert _FOUND not in stranger and stranger.count(canary) == 1
    assert _FOUND in known
