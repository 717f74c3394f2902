"""Two people who talk to one application behind one key, and say much in the same words. Drawn from a seed.

Values only. Messages are those of chat; what only one of the two says begins with a name.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.toy.agent import Message
from tests.toy.dialect import Dialect, Talk
from tests.toy.material import make_word

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
