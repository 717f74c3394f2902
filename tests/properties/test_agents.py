"""An agent that works, rewinds, forks, edits, trims, asks aside, is deleted, and whose gateway starts again.

Every message says a fact of its own, and so a wrong summary cannot hide: whatever is sent for a conversation
may only say what that conversation said.
"""

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
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
from tests.toy.summarising import find_facts
from tests.toy.upstream import Request, ToyUpstream

T = TypeVar("T")
WINDOW = 6_000
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


class Agent(RuleBasedStateMachine):
    dialect: ClassVar[Dialect] = CHAT
    branches = Bundle("branches")

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count(1)
        self._runner = asyncio.Runner()
        self._exits = AsyncExitStack()
        # Tenants for whom a summary was made.
        self.summarized: set[str] = set()
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _open(self) -> None:
        self.folder = self._exits.enter_context(tempfile.TemporaryDirectory())
        self.toy = await self._exits.enter_async_context(ToyUpstream(window=WINDOW))
        self.toy.reply = lambda _: Reply(text="Done.")
        self.toy.summary = _tell_all
        self.product = AsyncExitStack()
        await self._serve()

    async def _serve(self) -> None:
        text = make_settings(self.toy, store=f"disk:{self.folder}/state", more=ADMIN + _KEEP_RESULTS)
        self.house = House(self.toy, await self.product.enter_async_context(serve(text)), "sk-one")

    def teardown(self) -> None:
        self.run(self.product.aclose())
        self.run(self._exits.aclose())
        self._runner.close()

    # What the agent says

    def say(self, key: str, role: str, words: int = 4, **fields: object) -> Said:
        number = next(self._numbers)
        fact = f"FACT-{number:08d}"
        text = f"{fact} of {key}: {_WORDS * words}"
        return Said({"role": role, "content": text, **fields}, fact, f"{number:08x}")

    def make_turn(self, key: str, words: int, uses_tool: bool) -> tuple[Said, ...]:
        if not uses_tool:
            return (self.say(key, "assistant"), self.say(key, "user", words))
        call = f"call_{next(self._numbers)}"
        calls = [{"id": call, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
        asked = self.say(key, "assistant", 1, tool_calls=calls)
        return (asked, self.say(key, "tool", words, tool_call_id=call))

    @initialize(target=branches)
    def begin(self) -> Any:
        return self.send(Branch("sk-one", self.say("sk-one", "user")))

    @rule(target=branches)
    def begin_another(self) -> Any:
        return self.begin()

    @rule(target=branches, branch=branches, turns=st.integers(1, 6), tool=st.booleans())
    def work(self, branch: Branch, turns: int, tool: bool) -> Branch:
        for number in range(turns):
            turn = self.make_turn(branch.key, 14 if number % 2 else 22, tool)
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
        self.send(replace(branch, key="sk-two"))

    @rule(branch=branches)
    def delete(self, branch: Branch) -> None:
        """And the next request of it is served."""
        identity = self.exchange(branch).header("x-gateway-conversation")
        status, _ = self.run(self.house.admin(f"/v1/conversations/{identity}", "DELETE"))
        assert status == 200
        self.send(branch)

    @rule()
    def start_again(self) -> None:
        self.run(self.house.at_rest())
        self.run(self.product.aclose())
        self.run(self._serve())

    # What must hold

    def send(self, branch: Branch) -> Branch:
        self.exchange(branch)
        return branch

    def exchange(self, branch: Branch) -> Answer:
        start = len(self.toy.requests)
        answer = self.run(self._send(branch))
        assert answer.is_whole, answer.body
        arrived = self.toy.requests[start:]
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
        assert sent <= told, "something is lost"
        if "pivot" in (answer.header("x-gateway-plan") or ""):
            assert branch.key in self.summarized
        return answer

    async def _send(self, branch: Branch) -> Answer:
        said = branch.list_sent()
        talk = Talk(
            model="toy-1",
            leading=(_SYSTEM,),
            messages=[each.message for each in said],
            tools=(_TOOL,),
            mark=lambda index: said[index].mark if index < len(said) else "0",
        )
        body = self.dialect.envelope(talk, {self.dialect.output_key: 300})
        headers = self.dialect.headers(branch.key)
        answer = await replace(self.house, key=branch.key).post(self.dialect.path, body, **headers)
        await self.house.at_rest()
        return answer


def _tell_all(request: Request) -> Reply:
    """A summary that loses nothing."""
    return Reply(text="## Goal\nWork.\n## Next\nGo on. " + " ".join(find_facts(request)))


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_is_told_nothing_but_its_own_words(name: str) -> None:
    machine = type("Agent", (Agent,), {"dialect": FORMATS[name]})
    is_exhaustive = settings.get_current_profile_name() == EXHAUSTIVE
    # Making a failure smaller takes minutes: each step is a request or more.
    phases = tuple(Phase) if is_exhaustive else (Phase.explicit, Phase.generate)
    most = settings(max_examples=300 if is_exhaustive else 12, stateful_step_count=12, phases=phases)
    run_state_machine_as_test(machine, settings=most)
