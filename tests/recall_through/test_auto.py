"""What the newest message names is found in the originals and stands before it, in all formats."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.recalling import ScriptClient, ScriptedModel
from tests.toy.running import Pace, ask, run_session
from tests.toy.upstream import Seen, ToyUpstream

_POLICY = "policies: {default: {recall: auto, summary: {method: digest}}}\n"
_OFF = "policies: {default: {summary: {method: digest}}}\n"
_TURNS = 16
_FOUND = "(Found in earlier messages"
_PIECES = "Parts of the earlier messages that may be needed next"


@dataclass
class Asked:
    """seen: what upstream got of the questions. items: the client's history at the end."""

    seen: list[Seen]
    items: list[Any]


def find_fact(session: Session) -> str:
    """The oldest of a tool's results."""
    return next(fact.token for fact in session.facts if fact.kind == "tool")


async def ask_all(
    session: Session, dialect: Dialect, toy: ToyUpstream, settings: str, questions: list[list[str]]
) -> Asked:
    """Up to the summary, and then the questions; between the lists of them the gateway restarts."""
    head = session.envelope(len(session) - 1, Shape(dialect=dialect))
    client = ScriptClient(dialect=dialect, head=json.loads(json.dumps(head)))
    seen: list[Seen] = []
    for number, some in enumerate(questions):
        async with running_gateway(settings) as gateway:
            if number == 0:
                pace = Pace(first=_TURNS - 2, last=_TURNS - 1)
                run = await run_session(session, gateway.base_url, toy, Shape(dialect=dialect), pace)
                assert run.failed == []
                await gateway.settle()
                toy.reply = ScriptedModel(())
            begun = len(toy.chats)
            for question in some:
                await ask_one(gateway, client, question)
            seen += toy.chats[begun:]
    assert [each.refusal for each in seen if each.refusal] == []
    return Asked(seen, client.items)


async def ask_one(gateway: RunningGateway, client: ScriptClient, question: str) -> None:
    client.say(question)
    headers = {"Content-Type": "application/json", **client.dialect.headers("sk-toy")}
    async with aiohttp.ClientSession(headers=headers) as connection:
        answer = await ask(connection, f"{gateway.base_url}{client.dialect.path}", client.body)
    assert answer.is_whole, (answer.status, answer.body[-300:])
    client.take(answer.body)
    await gateway.settle()


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
        asked = await ask_all(session, dialect, toy, settings, questions)
    plain, named, *later = asked.seen
    assert _FOUND not in json.dumps(read_array(plain))
    # Directly before the question: the pieces as a user message, and a reply, so that roles alternate.
    *_, found, noted, question = read_array(named)
    assert _FOUND in json.dumps(found) and fact in json.dumps(found) and "[message " in json.dumps(found)
    assert (found["role"], noted["role"], question["role"]) == ("user", "assistant", "user")
    assert fact not in json.dumps(read_array(plain)[:-1])
    # Sticky, also after a restart: each array begins with the one before it.
    for before, after in pairwise(asked.seen):
        assert read_array(after)[: len(read_array(before)) - 1] == read_array(before)[:-1]
    assert all(json.dumps(read_array(each)).count(_FOUND) == 1 for each in later)
    # The client sees nothing of it.
    assert _FOUND not in json.dumps(asked.items)


async def test_pieces_stand_behind_the_summary_and_nothing_is_found_where_it_is_off(tmp_path: Path) -> None:
    session = make_session(_TURNS, 3)
    question = [[f"What was `{find_fact(session)}`?"]]
    arrays = []
    for name, policy in (("auto", _POLICY), ("off", _OFF)):
        async with ToyUpstream(window=16_000) as toy:
            settings = make_settings(toy, store=f"disk:{tmp_path / name}", more=policy)
            asked = await ask_all(session, CHAT, toy, settings, question)
        arrays.append(json.dumps(read_array(asked.seen[-1])))
    auto, off = arrays
    assert _PIECES in auto and _FOUND in auto
    assert _PIECES not in off and _FOUND not in off


async def test_another_conversations_originals_are_never_found(tmp_path: Path) -> None:
    """Two of one tenant: the canary of one is asked for in the other."""
    mine, other = make_session(_TURNS, 3), make_session(_TURNS, 4)
    canary = find_fact(mine)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path / 'store'}", more=_POLICY)
        await ask_all(mine, CHAT, toy, settings, [["Hello."]])
        asked = await ask_all(other, CHAT, toy, settings, [[f"What was `{canary}`?"]])
    text = json.dumps(read_array(asked.seen[-1]))
    assert _FOUND not in text and text.count(canary) == 1
