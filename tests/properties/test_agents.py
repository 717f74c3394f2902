"""An agent that works, rewinds, forks, edits, trims, asks aside, is deleted, and whose gateway starts again.

Every message says a fact of its own, and so a wrong summary cannot hide: whatever is sent for a conversation
may only say what that conversation said.
"""

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.examples import EXHAUSTIVE
from tests.toy.chat import CHAT
from tests.toy.checks import check_privacy, check_usage
from tests.toy.dialect import Dialect, Message, Talk
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.messages import Messages
from tests.toy.product import serve
from tests.toy.reply import Reply
from tests.toy.responses import Responses
from tests.toy.running import Answer
from tests.toy.summarising import find_facts, read_question
from tests.toy.upstream import Request, Seen, ToyUpstream

T = TypeVar("T")
WINDOW = 4_000
# A summary, and what stands before or behind it.
_MOST_INSERTED = 3
FORMATS: dict[str, Dialect] = {"chat": CHAT, "responses": Responses(), "messages": Messages()}
_SYSTEM: Message = {"role": "system", "content": "You are a careful agent. " + "Mind the rules. " * 60}
_FUNCTION = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object"}}
_TOOL: Message = {"type": "function", "function": _FUNCTION}
# A cleared result would take its fact along.
_KEEP_RESULTS = "policies: {default: {compaction: {prune: false}}}\n"
_WORDS = "the lines of this file were read and nothing in them was a surprise to anybody who had seen it "


@dataclass(frozen=True)
class Said:
    """A message as it was first sent. mark: the basis of its ids, wherever it stands later."""

    message: Message
    fact: str
    mark: str


@dataclass(frozen=True)
class Branch:
    """turns: groups of a reply and what follows it. dropped: so many groups the client does not send."""

    key: str
    opening: Said
    turns: tuple[tuple[Said, ...], ...] = ()
    dropped: int = 0

    def list_sent(self) -> list[Said]:
        return [self.opening, *(said for turn in self.turns[self.dropped :] for said in turn)]

    def list_facts(self) -> set[str]:
        """All that it ever said, dropped turns included."""
        return {self.opening.fact} | {said.fact for turn in self.turns for said in turn}


class Stage:
    """A gateway and its upstream, for all examples of one format. Each has tenants of its own."""

    def __init__(self, folder: Path) -> None:
        self.numbers = count(1)
        self._folder = folder
        self._runner = asyncio.Runner()
        self._exits = AsyncExitStack()
        self._product = AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def open(self) -> None:
        self.toy = await self._exits.enter_async_context(ToyUpstream(window=WINDOW))
        self.toy.reply = lambda _: Reply(text="Done.")
        self.toy.summary = _tell_all
        await self._serve()

    async def _serve(self) -> None:
        text = make_settings(self.toy, store=f"disk:{self._folder}/state", more=ADMIN + _KEEP_RESULTS)
        self.house = House(self.toy, await self._product.enter_async_context(serve(text)), "sk-nobody")

    async def start_again(self) -> None:
        await self.house.at_rest()
        await self._product.aclose()
        await self._serve()

    def close(self) -> None:
        self.run(self._product.aclose())
        self.run(self._exits.aclose())
        self._runner.close()


@contextmanager
def staging() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as name:
        stage = Stage(Path(name))
        stage.run(stage.open())
        try:
            yield stage
        finally:
            stage.close()


class Agent(RuleBasedStateMachine):
    dialect: ClassVar[Dialect] = CHAT
    stage: ClassVar[Stage]
    branches = Bundle("branches")

    def __init__(self) -> None:
        super().__init__()
        number = next(self.stage.numbers)
        self.key, self.other_key = f"sk-one-{number}", f"sk-two-{number}"
        self.stage.toy.requests.clear()
        # Tenants for whom a summary was made.
        self.summarized: set[str] = set()
        # And those that got a digest, which loses words: a client that changes its past at every turn.
        self.digested: set[str] = set()

    # What the agent says

    def say(self, key: str, role: str, words: int = 4, **fields: object) -> Said:
        number = next(self.stage.numbers)
        fact = f"FACT-{number:08d}"
        text = f"{fact} of {key}: {_WORDS * words}"
        return Said({"role": role, "content": text, **fields}, fact, f"{number:08x}")

    def make_turn(self, key: str, words: int, uses_tool: bool) -> tuple[Said, ...]:
        if not uses_tool:
            return (self.say(key, "assistant"), self.say(key, "user", words))
        call = f"call_{next(self.stage.numbers)}"
        calls = [{"id": call, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
        asked = self.say(key, "assistant", 1, tool_calls=calls)
        return (asked, self.say(key, "tool", words, tool_call_id=call))

    @initialize(target=branches, turns=st.integers(4, 9), tool=st.booleans())
    def begin(self, turns: int, tool: bool) -> Branch:
        """A client may come with a long history."""
        history = tuple(self.make_turn(self.key, 20, tool) for _ in range(turns))
        return self.send(Branch(self.key, self.say(self.key, "user"), history))

    @rule(target=branches, tool=st.booleans())
    def begin_another(self, tool: bool) -> Any:
        return self.begin(2, tool)

    @rule(target=branches, branch=branches, turns=st.integers(2, 6), tool=st.booleans())
    def work(self, branch: Branch, turns: int, tool: bool) -> Branch:
        for number in range(turns):
            turn = self.make_turn(branch.key, 16 if number % 2 else 24, tool)
            branch = self.send(replace(branch, turns=(*branch.turns, turn)))
        return branch

    @rule(target=branches, branch=branches, back=st.integers(1, 6))
    def rewind(self, branch: Branch, back: int) -> Branch:
        turns = branch.turns[: max(0, len(branch.turns) - back)]
        return self.send(replace(branch, turns=turns, dropped=min(branch.dropped, len(turns))))

    @rule(target=branches, branch=branches, tool=st.booleans())
    def fork(self, branch: Branch, tool: bool) -> Any:
        """Two ways on from one place; both go on."""
        ways = [self.make_turn(branch.key, 20, tool) for _ in range(2)]
        return multiple(*(self.send(replace(branch, turns=(*branch.turns, way))) for way in ways))

    @rule(target=branches, branch=branches, place=st.integers(0, 30))
    def edit(self, branch: Branch, place: int) -> Branch:
        """A message of the past says something else."""
        if not branch.turns:
            return branch
        place %= len(branch.turns)
        turn = branch.turns[place]
        last = turn[-1]
        other = self.say(branch.key, str(last.message["role"]), 14)
        message = {**last.message, "content": other.message["content"]}
        changed = (*turn[:-1], replace(other, message=message, mark=last.mark))
        turns = (*branch.turns[:place], changed, *branch.turns[place + 1 :])
        return self.send(replace(branch, turns=turns))

    @rule(target=branches, branch=branches, kept=st.integers(1, 5))
    def trim(self, branch: Branch, kept: int) -> Branch:
        """The client drops its oldest turns by itself."""
        dropped = max(branch.dropped, len(branch.turns) - kept)
        return self.send(replace(branch, dropped=dropped))

    @rule(branch=branches)
    def ask_aside(self, branch: Branch) -> None:
        """For a title: another question about the opening alone."""
        aside = (self.say(branch.key, "assistant", 1), self.say(branch.key, "user", 1))
        self.send(replace(branch, turns=(aside,), dropped=0))

    @rule(branch=branches)
    def send_as_another(self, branch: Branch) -> None:
        """The same bytes, by another tenant."""
        self.send(replace(branch, key=self.other_key))

    @rule(branch=branches)
    def delete(self, branch: Branch) -> None:
        """And the next request of it is served."""
        identity = self.exchange(branch).header("x-gateway-conversation")
        status, _ = self.stage.run(self.stage.house.admin(f"/v1/conversations/{identity}", "DELETE"))
        assert status == 200
        self.send(branch)

    @rule()
    def start_again(self) -> None:
        self.stage.run(self.stage.start_again())

    # What must hold

    def send(self, branch: Branch) -> Branch:
        self.exchange(branch)
        return branch

    def exchange(self, branch: Branch) -> Answer:
        start = len(self.stage.toy.requests)
        answer = self.stage.run(self._send(branch))
        assert answer.is_whole, answer.body
        arrived = self.stage.toy.requests[start:]
        assert [seen.refusal for seen in arrived if seen.refusal] == []
        for seen in arrived:
            check_privacy(seen)
            if seen.is_summary:
                assert branch.key in str(seen.headers)
                self.summarized.add(branch.key)
        (seen,) = (seen for seen in arrived if not seen.is_summary)
        check_usage(answer.body, seen)
        told, sent = set(find_facts(seen.whole)), {said.fact for said in branch.list_sent()}
        assert told <= branch.list_facts(), "it says what this conversation never said"
        plan = answer.header("x-gateway-plan")
        if plan == "digest":
            self.digested.add(branch.key)
        assert sent <= told or branch.key in self.digested, f"something is lost by {plan}"
        self.check_order(branch, seen)
        assert plan != "pivot" or branch.key in self.summarized | self.digested
        return answer

    def check_order(self, branch: Branch, seen: Seen) -> None:
        """What is sent is the client's own items in order, and few others; the newest is the last."""
        own, sent = self.dialect.items(self.make_body(branch)), self.dialect.items(seen.whole)
        places = [own.index(item) for item in sent if item in own]
        assert places == sorted(set(places))
        assert places[-1] == len(own) - 1
        assert len(sent) - len(places) <= _MOST_INSERTED

    def make_body(self, branch: Branch) -> Request:
        said = branch.list_sent()
        talk = Talk(
            model="toy-1",
            leading=(_SYSTEM,),
            messages=[each.message for each in said],
            tools=(_TOOL,),
            mark=lambda index: said[index].mark if index < len(said) else "0",
        )
        return self.dialect.envelope(talk, {self.dialect.output_key: 300})

    async def _send(self, branch: Branch) -> Answer:
        body = self.make_body(branch)
        headers = self.dialect.headers(branch.key)
        answer = await replace(self.stage.house, key=branch.key).post(self.dialect.path, body, **headers)
        await self.stage.house.at_rest()
        return answer


def _tell_all(request: Request) -> Reply:
    """A summary that loses nothing, and tells nothing of the messages that stay."""
    question = read_question(request).partition("<kept-messages>")[0]
    facts = find_facts({"messages": [{"role": "user", "content": question}]})
    return Reply(text="## Goal\nWork.\n## Next\nGo on. " + " ".join(facts))


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_is_told_nothing_but_its_own_words(name: str) -> None:
    is_exhaustive = settings.get_current_profile_name() == EXHAUSTIVE
    # Making a failure smaller takes minutes: each step is a request or more.
    phases = tuple(Phase) if is_exhaustive else (Phase.explicit, Phase.generate)
    most = settings(max_examples=300 if is_exhaustive else 9, stateful_step_count=12, phases=phases)
    with staging() as stage:
        machine = type("Agent", (Agent,), {"dialect": FORMATS[name], "stage": stage})
        run_state_machine_as_test(machine, settings=most)
