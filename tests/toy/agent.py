"""A scripted coding agent that resends its whole history with every request. Values only, no socket.

The history holds the scripted replies, not what the toy answered. Let the toy answer with `Session.reply`,
so that usage and history agree.
"""

import json
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from tests.toy.chat import CHAT
from tests.toy.counting import count_text
from tests.toy.dialect import Dialect, Since, Talk
from tests.toy.material import KINDS, make_fact, make_prose, make_tool_text, make_word
from tests.toy.reply import Reply, read_reply

Message = Mapping[str, object]
# one_user: tool calls after one task. many_users: the user speaks every seventh turn. talk: no tool calls.
Style = Literal["one_user", "many_users", "talk"]
# What a client sends of a history: the opening and all turns so far, without the leading block.
Trim = Callable[[list[Message]], list[Message]]
_TOOLS = ("read_file", "write_file", "search", "run_tests", "list_files", "git_diff", "fetch", "ask_index")
_SYSTEM_TOKENS = 800
_OPENING_TOKENS = 150
# How often facts are planted: sparsely, so that a summary of 1,500 tokens can hold all of a long session.
_ASSISTANT_FACT_EVERY = 6
_TOOL_FACT_EVERY = 5
_USER_TURN_EVERY = 7


@dataclass(frozen=True)
class Fact:
    token: str
    kind: Literal["user", "assistant", "tool"]
    turn: int  # -1: the opening


@dataclass(frozen=True)
class Turn:
    """One reply of the model and all that the client adds before its next request."""

    assistant: Message
    followers: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the client writes its requests; indent None: one line. max_tokens_name None: the dialect's own."""

    dialect: Dialect = CHAT
    max_tokens: int | None = None
    max_tokens_name: str | None = None
    stream: bool = False
    include_usage: bool = False
    separators: tuple[str, str] = (",", ":")
    indent: int | None = None
    ascii: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """The fields that follow messages and tools."""
        found: dict[str, object] = {"stream": True} if self.stream else {}
        if self.stream and self.include_usage:
            found["stream_options"] = {"include_usage": True}
        if self.max_tokens is not None:
            found[self.max_tokens_name or self.dialect.output_key] = self.max_tokens
        return found | dict(self.extra)


PLAIN = Shape()


@dataclass(frozen=True, kw_only=True)
class Session:
    """Request t holds leading, opening and the first t turns; len(session) requests in all."""

    name: str
    leading: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...]
    opening: tuple[Message, ...]
    turns: tuple[Turn, ...]
    facts: tuple[Fact, ...] = ()
    model: str = "toy-model"
    # None: the client sends its whole history.
    trim: Trim | None = None

    def __len__(self) -> int:
        return len(self.turns)

    def messages(self, turn: int) -> list[Message]:
        return [*self.leading, *self.said(turn)]

    def said(self, turn: int) -> list[Message]:
        """The opening and the turns before this one, as far as the client sends them."""
        whole = self._whole(turn)
        return whole if self.trim is None else self.trim(whole)

    def _whole(self, turn: int) -> list[Message]:
        history = [m for done in self.turns[:turn] for m in (done.assistant, *done.followers)]
        return [*self.opening, *history]

    def envelope(self, turn: int, shape: Shape, since: Since | None = None) -> dict[str, object]:
        """since: history that the client need not send, if its dialect can refer to it."""
        said = self.said(turn)
        # A message keeps the ids that it came with, whatever is dropped before it.
        places = {id(message): place for place, message in enumerate(self._whole(turn))}
        talk = Talk(
            model=self.model,
            leading=self.leading,
            messages=said,
            tools=self.tools,
            mark=lambda index: self._mark(places.get(id(said[index]), index)),
            thinks=any("reasoning_content" in done.assistant for done in self.turns),
            known=len(self.said(since.turn)) + 1 if since else 0,
            response_id=since.response_id if since else None,
        )
        return shape.dialect.envelope(talk, shape.fields())

    def request(self, turn: int, shape: Shape = PLAIN, since: Since | None = None) -> bytes:
        """Body bytes; those of earlier messages are the same in every later request of the same shape."""
        value = self.envelope(turn, shape, since)
        ascii_only, separators = shape.ascii, shape.separators
        return json.dumps(value, ensure_ascii=ascii_only, separators=separators, indent=shape.indent).encode()

    def reply(self, turn: int) -> Reply:
        """The reply that the toy should give to request `turn`."""
        return read_reply(self.turns[turn].assistant, self._mark(len(self._whole(turn))))

    def _mark(self, place: int) -> str:
        """The basis of item ids, so that the toy's items and those of the history have the same ids."""
        return f"{zlib.crc32(self.name.encode()):08x}{place:05d}"


def with_thinking(session: Session, tokens: int = 60) -> Session:
    """The same session of a model that reasons before every reply."""
    rng = random.Random(session.name)
    turns = [
        replace(turn, assistant={**turn.assistant, "reasoning_content": make_prose(rng, tokens)})
        for turn in session.turns
    ]
    return replace(session, turns=tuple(turns))


@lru_cache(maxsize=8)
def make_session(
    turns: int,
    seed: int,
    style: Style = "one_user",
    turn_tokens: int = 750,
    *,
    facts: Literal["some", "all"] = "some",
) -> Session:
    """A session of so many requests, each adding about `turn_tokens` (bias 1.0) to the next.

    facts: planted in some of the messages, or in every one of them. Equal sessions are one object: drawing a
    long one takes a second.
    """
    writer = _Writer(random.Random(seed), style, turn_tokens, everywhere=facts == "all")
    return writer.write(f"{style}-{turns}-{seed}", turns)


def make_tools() -> tuple[Mapping[str, object], ...]:
    """Eight tools of a coding agent, about 90 tokens each."""
    return tuple(_tool(name) for name in _TOOLS)


def _tool(name: str) -> Mapping[str, object]:
    words = name.replace("_", " ")
    properties = {
        "path": {"type": "string", "description": f"Absolute path that {words} works on."},
        "pattern": {"type": "string", "description": "Regular expression, optional."},
        "limit": {"type": "integer", "description": "Most lines to return.", "default": 200},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    function = {"name": name, "description": f"{words}.", "parameters": parameters}
    return {"type": "function", "function": function}


class _Writer:
    """Draws one session; holds the random source and the facts planted so far."""

    def __init__(self, rng: random.Random, style: Style, turn_tokens: int, *, everywhere: bool) -> None:
        self.rng, self.style, self.turn_tokens = rng, style, turn_tokens
        self.everywhere = everywhere
        self.facts: list[Fact] = []

    def write(self, name: str, count: int) -> Session:
        system = f"You are a careful coding agent. {make_prose(self.rng, _SYSTEM_TOKENS)}"
        wishes = make_prose(self.rng, _OPENING_TOKENS)
        task = f"Task: port the storage layer. {wishes} Remember {self.plant('user', -1)}."
        return Session(
            name=name,
            leading=({"role": "system", "content": system},),
            tools=make_tools(),
            opening=({"role": "user", "content": task},),
            turns=tuple(map(self.turn, range(count))),
            facts=tuple(self.facts),
        )

    def plant(self, kind: Literal["user", "assistant", "tool"], turn: int) -> str:
        token = make_fact(self.rng)
        self.facts.append(Fact(token, kind, turn))
        return token

    def turn(self, turn: int) -> Turn:
        if self.style == "talk":
            return self.user_turn(turn)
        if self.style == "many_users" and turn % _USER_TURN_EVERY == _USER_TURN_EVERY - 1:
            return self.user_turn(turn)
        return self.tool_turn(turn)

    def user_turn(self, turn: int) -> Turn:
        """The agent reports, the user asks for more."""
        done, next_step = (make_prose(self.rng, self.turn_tokens // 2) for _ in range(2))
        report = f"Done so far. {done} Settled: {self.plant('assistant', turn)}."
        wish = f"Good. {next_step} Keep {self.plant('user', turn)} in mind."
        return Turn({"role": "assistant", "content": report}, ({"role": "user", "content": wish},))

    def tool_turn(self, turn: int) -> Turn:
        text = make_prose(self.rng, 20) if self.rng.random() < 0.5 else None
        if self.everywhere or turn % _ASSISTANT_FACT_EVERY == 2:
            text = f"{text or 'Noted.'} Decided: {self.plant('assistant', turn)}."
        calls = [self.call(f"call_{turn}_{index}") for index in range(self.rng.randint(1, 3))]
        assistant = {"role": "assistant", "content": text, "tool_calls": calls}
        spent = count_text(json.dumps(calls)) + count_text(text or "")
        size = max(40, int((self.turn_tokens - spent) * self.rng.uniform(0.6, 1.4) / len(calls)))
        results = tuple(self.result(turn, index, call["id"], size) for index, call in enumerate(calls))
        return Turn(assistant, results)

    def call(self, call_id: str) -> dict[str, object]:
        path = f"/src/{make_word(self.rng)}/{make_word(self.rng)}.py"
        arguments = json.dumps({"path": path, "limit": self.rng.randrange(20, 400)})
        function = {"name": self.rng.choice(_TOOLS), "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    def result(self, turn: int, index: int, call_id: object, tokens: int) -> Message:
        text = make_tool_text(self.rng, self.rng.choice(KINDS), tokens)
        if self.everywhere or (index == 0 and turn % _TOOL_FACT_EVERY == 1):
            text = f"{self.plant('tool', turn)}\n{text}"
        return {"role": "tool", "tool_call_id": call_id, "content": text}


def find_tokens(facts: Sequence[Fact], *kinds: str) -> list[str]:
    return [fact.token for fact in facts if fact.kind in kinds]
