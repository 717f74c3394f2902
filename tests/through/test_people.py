"""Two people behind one key stay two conversations, however much of what they say is the same."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import aiohttp
import pytest

from tests.covering import choose_rows
from tests.toy.admin_calls import get_json
from tests.toy.agent import Message
from tests.toy.delivery import Delivery
from tests.toy.dialect import Dialect, Talk
from tests.toy.dialects import DIALECTS
from tests.toy.house import ADMIN, make_settings
from tests.toy.material import make_word
from tests.toy.product import Product, serve
from tests.toy.reply import Reply
from tests.toy.running import ask
from tests.toy.upstream import Request, ToyUpstream

# Where the same words stand in the talk of the first one. The second one begins with them, but for those who
# have an opening of their own.
Place = Literal["end", "middle", "beginning", "both ends", "own opening", "own question"]
# Their first questions differ.
OPEN_APART: tuple[Place, ...] = ("end", "middle", "own opening", "own question")
PLACES: tuple[Place, ...] = (*OPEN_APART, "beginning", "both ends")
# In the messages that both send.
_SAME_BYTES = (600, 1_500, 2_800, 4_000)
_OWN_BYTES = (300, 3_000, 15_000)
# More than the window of the tests holds.
_LONG_BYTES = 90_000
_SYSTEM = {"role": "system", "content": "You are the help desk of a shop. Show the menu first."}
_FUNCTION = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object"}}
_TOOL = {"type": "function", "function": _FUNCTION}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What each of them sends, request by request.

    first: all of it is answered; what comes last is sent after everything else. second: the gateway sees no
    answer to the first request.
    """

    seed: int
    place: Place
    first: Sequence[Sequence[Message]]
    second: Sequence[Sequence[Message]]
    is_long: bool

    @property
    def key(self) -> str:
        return f"sk-{self.seed}"


def render(dialect: Dialect, messages: Sequence[Message]) -> dict[str, object]:
    """The request. Ids say nothing of whose they are."""
    talk = Talk(model="toy-1", leading=(_SYSTEM,), messages=messages, tools=(_TOOL,), mark=str)
    return dialect.envelope(talk, {})


@dataclass
class _Writer:
    """name: of the one who speaks; empty where both say the same."""

    rng: random.Random
    name: str = ""
    calls: int = field(default=0, init=False)

    def ask(self, size: int) -> Message:
        return {"role": "user", "content": self._write(size)}

    def answer(self, size: int) -> Message:
        return {"role": "assistant", "content": self._write(size)}

    def talk(self, size: int, most: int) -> list[Message]:
        """Questions with their answers, of at most so many bytes each, and so long together."""
        said: list[Message] = []
        while size >= 100:
            now = min(size, self.rng.randint(100, most))
            said += self._exchange(now)
            size -= now
        return said

    def _exchange(self, size: int) -> Iterator[Message]:
        """Maybe with a call."""
        asked = int(size * self.rng.uniform(0.1, 0.5))
        found = int((size - asked) * self.rng.choice((0, 0, 0.3, 0.9)))
        yield self.ask(asked)
        if found:
            self.calls += 1
            identity = f"call_{self.name}{self.calls}"
            function = {"name": "look_up", "arguments": "{}"}
            call = {"id": identity, "type": "function", "function": function}
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
            yield {"role": "tool", "tool_call_id": identity, "content": self._write(found)}
        yield self.answer(size - asked - found)

    def _write(self, size: int) -> str:
        text = self.name
        while len(text) < size:
            text += f" {make_word(self.rng)}"
        return text[: max(size, len(self.name))]


def draw_pair(seed: int, places: Sequence[Place] = PLACES) -> Pair:
    rng = random.Random(seed)
    both, one, other = _Writer(rng), _Writer(rng, f"first-{seed}:"), _Writer(rng, f"second-{seed}:")
    place = rng.choice(places)
    is_long = place in ("end", "own opening") and rng.random() < 0.4
    same = both.talk(rng.choice(_SAME_BYTES), rng.choice((150, 600, 4_000)))
    if place == "both ends":
        # An id of a call comes once only.
        same = [message for message in same if message["role"] != "tool" and "tool_calls" not in message]
    asked, answered = both.ask(40), both.answer(30)
    own = one.talk(_LONG_BYTES if is_long else rng.choice(_OWN_BYTES), 4_000)
    first = {
        "end": [*own, *same, asked],
        "middle": [*own, *same, *one.talk(900, 400), one.ask(100)],
        "beginning": [*same, *own, one.ask(100)],
        "both ends": [*same, *own, *same, asked],
        "own opening": [*own, *same, asked],
        "own question": [one.ask(40), *same[1:], asked],
    }[place]
    second = [*same, asked]
    if place == "own opening":
        second = [*other.talk(300, 300), *second]
    elif place == "own question":
        second = [other.ask(40), *same[1:], asked]
    before = [own[:-1]] if is_long else []
    last = answered if rng.random() < 0.5 else other.answer(60)
    seen = [*second, last, other.ask(200)]
    if rng.random() < 0.3:
        seen += [other.answer(100), other.ask(100)]
    return Pair(
        seed=seed,
        place=place,
        first=[*before, first, [*first, answered, one.ask(100)]],
        second=[second, seen, [*seen, other.answer(200), other.ask(200)]],
        is_long=is_long,
    )


_WINDOW = 16_000
_NAME = re.compile(r"(?:first|second)-\d+:")
_BYPASS = {"x-gateway-bypass": "1"}
# 10,000 pairs were apart on 2026-11-24, which takes six minutes on two cores.
_PAIRS, _TOGETHER = 2_000, 40
_GROUPS = [range(start, start + _TOGETHER) for start in range(0, _PAIRS, _TOGETHER)]
# In every other group the gateway is started anew before the second one comes. Of a short talk it then knows
# only the id, which is made of the first question.
_CASES = [(seeds, number % 2 == 1) for number, seeds in enumerate(_GROUPS)]


class Said(NamedTuple):
    """names: in all that went upstream for a request."""

    conversation: str | None
    plan: str | None
    names: set[str]


async def say(
    gateway: Product,
    toy: ToyUpstream,
    pair: Pair,
    messages: Sequence[Message],
    more: Mapping[str, str] | None = None,
    *,
    is_whole: bool = True,
) -> Said:
    toy.requests.clear()
    dialect = DIALECTS[pair.seed % len(DIALECTS)]
    headers = {"Content-Type": "application/json", **dialect.headers(pair.key), **(more or {})}
    async with aiohttp.ClientSession(headers=headers) as client:
        body = json.dumps(render(dialect, messages)).encode()
        answer = await ask(client, f"{gateway.base_url}{dialect.path}", body)
    await gateway.at_rest()
    assert answer.is_whole == is_whole, answer.body
    names = {name for seen in toy.requests for name in find_names(seen.body.decode())}
    return Said(answer.header("x-gateway-conversation"), answer.header("x-gateway-plan"), names)


def find_names(text: str) -> set[str]:
    return set(_NAME.findall(text))


def summarize(request: Request) -> Reply:
    """By whose talk it is."""
    return Reply(text=f"So far: {' '.join(sorted(find_names(json.dumps(request))))}.")


async def say_first(gateway: Product, toy: ToyUpstream, pair: Pair) -> Said:
    """All but the last request of the first one."""
    said = [await say(gateway, toy, pair, messages) for messages in pair.first[:-1]]
    assert said[-1].plan == ("pivot" if pair.is_long else "passthrough")
    return said[-1]


async def say_second(
    gateway: Product, toy: ToyUpstream, pair: Pair, first: Said, *, is_restarted: bool
) -> list[str]:
    """Both go on. Returns what is wrong about it."""
    if pair.seed % 2:
        await say(gateway, toy, pair, pair.second[0], _BYPASS)
    second = [await say(gateway, toy, pair, messages) for messages in pair.second[1:]]
    later = await say(gateway, toy, pair, pair.first[-1])
    wrong = {
        "the second one has the id of the first": first.conversation
        in {each.conversation for each in second},
        "the second one does not go on": len({each.conversation for each in second}) > 1,
        "the second one was changed": {each.plan for each in second} != {"passthrough"},
        "the second one got words of the first": any("first" in "".join(each.names) for each in second),
        "the first one has another id": not is_restarted and later.conversation != first.conversation,
        "the first one lost its summary": pair.is_long and later.plan != "pivot",
        "the first one got words of the second": "second" in "".join(later.names),
    }
    return [f"{pair.seed} {pair.place}: {what}" for what, is_so in wrong.items() if is_so]


@pytest.mark.parametrize(("seeds", "is_restarted"), choose_rows(_CASES, [1]))
async def test_pairs_that_say_much_in_the_same_words_are_apart(
    seeds: range, is_restarted: bool, tmp_path: Path
) -> None:
    toy = ToyUpstream(window=_WINDOW)
    pairs = [draw_pair(seed, OPEN_APART if is_restarted else PLACES) for seed in seeds]
    toy.summary = summarize
    async with toy, AsyncExitStack() as exits:
        settings = make_settings(toy, store=f"disk:{tmp_path}")
        gateway = await exits.enter_async_context(serve(settings))
        first = [await say_first(gateway, toy, pair) for pair in pairs]
        if is_restarted:
            await exits.aclose()
            gateway = await exits.enter_async_context(serve(settings))
        wrong = [
            what
            for pair, said in zip(pairs, first, strict=True)
            for what in await say_second(gateway, toy, pair, said, is_restarted=is_restarted)
        ]
    assert wrong == []


def make_support_pair() -> Pair:
    """A long talk that ends with the menu that another one begins with."""
    return next(pair for pair in map(partial(draw_pair, places=("end",)), range(9)) if pair.is_long)


@pytest.mark.parametrize("answer", ["bypassed", "broken off", "never sent"])
async def test_a_new_talk_that_begins_with_the_menu_of_an_old_one_gets_a_row_and_a_search_of_its_own(
    answer: str,
) -> None:
    pair = make_support_pair()
    toy = ToyUpstream(window=_WINDOW)
    toy.summary = summarize
    async with toy, serve(make_settings(toy, more=ADMIN)) as gateway:
        first = await say_first(gateway, toy, pair)
        if answer == "bypassed":
            await say(gateway, toy, pair, pair.second[0], _BYPASS)
        elif answer == "broken off":
            toy.delivery = Delivery(stop_after_bytes=10, ending="abort")
            await say(gateway, toy, pair, pair.second[0], is_whole=False)
            toy.delivery = Delivery()
        second = [await say(gateway, toy, pair, messages) for messages in pair.second[1:]]
        rows = (await get_json(gateway, "/v1/conversations"))["conversations"]
        assert {row["id"]: row["requests"] for row in rows}[first.conversation] == len(pair.first) - 1
        assert "first" not in "".join(name for each in second for name in each.names)
        own, others = [
            await get_json(gateway, f"/v1/conversations/{said.conversation}/search?q=first-{pair.seed}")
            for said in (first, second[-1])
        ]
        assert own["found"] and others["found"] == []


async def test_one_name_for_a_session_says_that_its_requests_belong_together() -> None:
    pair = make_support_pair()
    toy = ToyUpstream(window=_WINDOW)
    toy.summary = summarize
    named = {"x-gateway-session": "one"}
    async with toy, serve(make_settings(toy)) as gateway:
        first = [await say(gateway, toy, pair, messages, named) for messages in pair.first[:-1]]
        second = await say(gateway, toy, pair, pair.second[1], named)
        other = await say(gateway, toy, pair, pair.second[2], {"x-gateway-session": "another"})
    assert second.conversation == first[-1].conversation != other.conversation
