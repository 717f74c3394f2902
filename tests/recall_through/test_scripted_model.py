"""A model searches its history at every awkward moment. The client's conversation is what it would be if the
model had known everything, and the arrays that the upstream receives are valid and only grow.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.wire.formats.chat.request import parse_body
from gateway.wire.recall import RECALL_TOOL
from tests.covering import cover
from tests.toy.agent import Session, Shape, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import Messages
from tests.toy.recalling import (
    ScriptClient,
    ScriptedModel,
    ShownReply,
    join_replies,
    make_call,
    make_recall,
    tell,
)
from tests.toy.reply import Reply, ToolCall
from tests.toy.responses import Responses
from tests.toy.running import Answer, Pace, ask, run_session
from tests.toy.upstream import Seen, ToyUpstream

_POLICY = "policies: {default: {recall: tool, summary: {method: digest}}}\n"
# The last but one is above the threshold, so that a summary is in use from there on.
_TURNS = 16
_LATER = 10


@dataclass(frozen=True)
class Script:
    """lines: replies of one turn, and of the turn after the client's results. asks_again: the last reply
    calls the client's tools, so that another request follows. knows: the model finds the fact.
    """

    lines: Callable[[str], list[Reply]]
    asks_again: bool = False
    knows: bool = True


def _searching(**fields: Any) -> Callable[[str], list[Reply]]:
    return lambda query: [Reply(**{"text": None, **fields, "tool_calls": (make_recall(1, query),)})]


def _beside(*before: int, after: Sequence[int] = ()) -> Callable[[str], list[Reply]]:
    def make(query: str) -> list[Reply]:
        calls = (*map(make_call, before), make_recall(1, query), *map(make_call, after))
        return [Reply(text="Looking.", tool_calls=calls)]

    return make


def _unreadable(_: str) -> list[Reply]:
    call = ToolCall(id="call_recall_1", name=RECALL_TOOL, arguments='{"query":')
    return [Reply(text=None, tool_calls=(call,))]


def _cut_off(query: str) -> list[Reply]:
    return [Reply(text="Well,", tool_calls=(make_recall(1, query),), finish_reason="length")]


SCRIPTS = {
    "first": Script(_searching()),
    "after text": Script(_searching(text="Let me look.")),
    "after thinking": Script(_searching(thinking="It was said before.")),
    "after both": Script(_searching(thinking="It was said before.", text="Let me look.")),
    "twice at once": Script(
        lambda query: [Reply(text=None, tool_calls=(make_recall(1, query), make_recall(2, "nothing")))]
    ),
    "in a row": Script(
        lambda query: [
            Reply(text="One.", tool_calls=(make_recall(1, "nothing"),)),
            Reply(text="Two.", tool_calls=(make_recall(2, query),)),
        ]
    ),
    "in a loop": Script(
        lambda query: [
            Reply(text=f"Search {number}.", tool_calls=(make_recall(number, query),))
            for number in range(1, 6)
        ]
    ),
    "before a call": Script(_beside(after=[1]), asks_again=True),
    "between calls": Script(_beside(1, after=[2]), asks_again=True),
    "behind calls": Script(_beside(1, 2), asks_again=True),
    "first alone, then beside a call": Script(
        lambda query: [
            Reply(text="Hm.", tool_calls=(make_recall(1, "nothing"),)),
            Reply(text=None, tool_calls=(make_call(1), make_recall(2, query))),
        ],
        asks_again=True,
    ),
    "thinking before both": Script(
        lambda query: [
            Reply(text="Hm.", thinking="One.", tool_calls=(make_recall(1, "nothing"),)),
            Reply(text=None, thinking="Two.", tool_calls=(make_call(1), make_recall(2, query), make_call(2))),
        ],
        asks_again=True,
    ),
    "thinking in a row": Script(
        lambda query: [
            Reply(text=None, thinking="One.", tool_calls=(make_recall(1, "nothing"),)),
            Reply(text=None, thinking="Two.", tool_calls=(make_recall(2, query),)),
        ]
    ),
    "thinking once": Script(
        lambda query: [
            Reply(text=None, thinking="One.", tool_calls=(make_recall(1, query),)),
            Reply(text="Now.", tool_calls=(make_call(1),)),
        ],
        asks_again=True,
    ),
    "unreadable": Script(_unreadable, knows=False),
    "cut off": Script(_cut_off, knows=False),
}


# With other habits of clients: no marks for the cache, texts as strings, items without ids or types.
_DIALECTS: list[Dialect] = [*DIALECTS, Messages(marks=False, plain=True), Responses(ids=False, typed=False)]


@dataclass(frozen=True)
class Case:
    name: str
    dialect: Dialect
    is_streaming: bool
    asks_usage: bool
    restarts: bool

    @property
    def id(self) -> str:
        flags = [name for name in ("is_streaming", "asks_usage", "restarts") if getattr(self, name)]
        habits = [] if self.dialect in DIALECTS else ["other-habits"]
        return "-".join([self.name, self.dialect.path.strip("/"), *habits, *flags])


def _list_cases() -> list[Case]:
    return [
        Case(name, dialect, is_streaming, asks_usage, restarts)
        for name in SCRIPTS
        for dialect in _DIALECTS
        for is_streaming in (False, True)
        for asks_usage in ((False, True) if is_streaming and dialect is CHAT else (False,))
        for restarts in (False, True)
    ]


def _read_row(case: Case) -> tuple[str, str, bool, bool, bool]:
    is_usual = case.dialect in DIALECTS
    return case.name, case.dialect.path, is_usual, case.is_streaming, case.restarts


def _make_client(session: Session, case: Case) -> ScriptClient:
    """With the history of the session."""
    head = session.envelope(len(session) - 1, Shape(dialect=case.dialect))
    fields = {"stream_options": {"include_usage": True}} if case.asks_usage else {}
    return ScriptClient(
        dialect=case.dialect,
        head=json.loads(json.dumps(head)),
        is_streaming=case.is_streaming,
        fields=fields,
    )


async def _exchange(base_url: str, client: ScriptClient) -> Answer:
    headers = {"Content-Type": "application/json", **client.dialect.headers("sk-toy")}
    async with aiohttp.ClientSession(headers=headers) as connection:
        answer = await ask(connection, f"{base_url}{client.dialect.path}", client.body)
    assert answer.is_whole, (answer.status, answer.body[-400:])
    return answer


async def _ask_scripted(base_url: str, client: ScriptClient) -> list[ShownReply]:
    """A question, and requests until the model calls nothing any more."""
    client.say("What was it?")
    shown = [client.take((await _exchange(base_url, client)).body)]
    while shown[-1].calls:
        client.answer(shown[-1])
        shown.append(client.take((await _exchange(base_url, client)).body))
    return shown


async def _go_on(base_url: str, client: ScriptClient) -> list[ShownReply]:
    shown = []
    for number in range(_LATER):
        client.say(f"Step {number}.")
        shown.append(client.take((await _exchange(base_url, client)).body))
    return shown


def _expect(script: Script, fact: str, case: Case) -> list[ShownReply]:
    """A message of chat has no places for what was said before a search, unless it is streamed."""
    replies = script.lines("q")
    shows_all = case.is_streaming or case.dialect is not CHAT
    last = Reply(text=f"It is {fact}." if script.knows else "I do not know.")
    is_cut = replies[-1].finish == "length"
    if script.asks_again:
        turns = [replies if shows_all else replies[-1:], [last]]
    elif is_cut:
        turns = [replies]
    else:
        turns = [[*replies, last] if shows_all else [last]]
    return [join_replies(turn) for turn in turns] + [ShownReply("Understood.")] * _LATER


def _find_fact(session: Session) -> str:
    """An old one, of a tool's result: only the originals have it."""
    return next(fact.token for fact in session.facts if fact.kind == "tool")


def _read_array(seen: Seen) -> list[Any]:
    array = seen.request["messages" if "messages" in seen.request else "input"]
    assert isinstance(array, list)
    return array


def _read_bytes(seen: Seen) -> bytes:
    """Of all messages. In chat the spaces between messages are the client's, too."""
    body = parse_body(seen.body)
    return body.data[body.places[0].start : body.places[len(body.places) - 1].end]


def _check_upstream(requests: Sequence[Seen]) -> None:
    """Every array is valid and begins with the one before it; the tools are the same."""
    assert [seen.refusal for seen in requests if seen.refusal] == []
    tools = [json.dumps(seen.request["tools"]) for seen in requests]
    # In a loop, the last request of the turn goes without the tool.
    assert all(RECALL_TOOL in each for each in (tools[0], tools[-1]))
    assert len(set(tools)) <= 2
    for before, after in pairwise(requests):
        begun = _read_array(before)
        assert _read_array(after)[: len(begun)] == begun
        assert before.dialect is not CHAT or _read_bytes(after).startswith(_read_bytes(before))


async def _play(case: Case, session: Session, toy: ToyUpstream, settings: str) -> list[ShownReply]:
    """The session up to its summary, the scripted turn, and what comes after it, perhaps after a restart."""
    client, model = _make_client(session, case), toy.reply
    async with running_gateway(settings) as gateway:
        pace = Pace(first=_TURNS - 2, last=_TURNS - 1)
        run = await run_session(session, gateway.base_url, toy, Shape(dialect=case.dialect), pace)
        assert run.failed == []
        await gateway.settle()
        toy.reply = model
        toy.requests.clear()
        shown = await _ask_scripted(gateway.base_url, client)
        if not case.restarts:
            return shown + await _go_on(gateway.base_url, client)
        await gateway.settle()
    async with running_gateway(settings) as gateway:
        return shown + await _go_on(gateway.base_url, client)


@pytest.mark.parametrize("case", cover(_list_cases(), _read_row), ids=lambda case: case.id)
async def test_the_client_sees_a_model_that_knew_everything(case: Case, tmp_path: Path) -> None:
    session = make_session(_TURNS, 3)
    script, fact = SCRIPTS[case.name], _find_fact(session)
    replies = script.lines(fact)
    if any(reply.thinking for reply in replies):
        session = with_thinking(session)
    is_cut = replies[-1].finish == "length"
    model = ScriptedModel(replies if is_cut else [*replies, tell(fact)])
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = model
        settings = make_settings(toy, store=f"disk:{tmp_path / 'store'}", more=_POLICY)
        shown = await _play(case, session, toy, settings)
    assert model.left == 0
    assert shown == _expect(script, fact, case)
    _check_upstream(toy.requests)


def _rewrite(message: dict[str, Any]) -> dict[str, Any]:
    """As clients do: texts without spaces around them, arguments with other spaces, no thinking."""
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": call["function"]["arguments"].replace(" ", "")},
        }
        for call in message.get("tool_calls", ())
    ]
    text = (message["content"] or "").strip()
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


async def test_searches_of_several_turns_stay_where_they_were_for_a_client_that_rewrites_replies() -> None:
    session = make_session(_TURNS, 3)
    fact = _find_fact(session)
    model = ScriptedModel(
        [
            Reply(text="First ", thinking="Hm.", tool_calls=(make_recall(1, fact),)),
            tell(fact),
            Reply(text=" Second", tool_calls=(make_recall(2, fact), make_call(1), make_recall(3, "nothing"))),
            Reply(text=None, tool_calls=(make_recall(4, "nothing"),)),
            Reply(text=None, tool_calls=(make_call(2),)),
            tell(fact),
        ]
    )
    case = Case("rewritten", CHAT, is_streaming=True, asks_usage=False, restarts=False)
    client = replace(_make_client(session, case), rewrite=_rewrite)
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_POLICY)) as gateway,
    ):
        pace = Pace(first=_TURNS - 2, last=_TURNS - 1)
        await run_session(session, gateway.base_url, toy, Shape(), pace)
        await gateway.settle()
        toy.reply = model
        toy.requests.clear()
        shown = [
            *await _ask_scripted(gateway.base_url, client),
            *await _ask_scripted(gateway.base_url, client),
        ]
        await _go_on(gateway.base_url, client)
    answer = f"Itis{fact}."
    assert [(reply.text, len(reply.calls)) for reply in shown] == [
        (f"First{answer}", 0),
        ("Second", 1),
        ("", 1),
        (answer, 0),
    ]
    _check_upstream(toy.requests)
    sent = toy.requests[-1].body
    assert [sent.count(b'"tool_call_id":"call_recall_%d"' % number) for number in range(1, 5)] == [1] * 4
