"""Conversations that go on and on, each turn through a gateway drawn by chance, while something happens."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from tests.toy.agent import Session, Shape, make_session
from tests.toy.running import Answer, ask

WINDOW = 16_000
_SHAPE = Shape(max_tokens=1_000, stream=True)
_TURNS, _TURN_TOKENS = 40, 700
_CONVERSATIONS = 4
# Between two turns, as an agent has its tools: otherwise the machine is only busy with the load.
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Asked:
    """One request. phase: what was going on when it began."""

    phase: str
    answer: Answer


@dataclass
class Load:
    """Addresses are base URLs. phase: a name for what is going on now."""

    addresses: Sequence[str]
    phase: str = "before"
    asked: list[Asked] = field(default_factory=list)
    is_over: bool = False

    @property
    def failed(self) -> list[tuple[str, int, bytes]]:
        """Phase, status and end of every answer that is not whole."""
        return [
            (each.phase, each.answer.status, (each.answer.broken or "").encode() + each.answer.body[-300:])
            for each in self.asked
            if not each.answer.is_whole
        ]

    def count(self, phase: str) -> int:
        return sum(each.phase == phase for each in self.asked)

    def describe(self, phase: str) -> str:
        """Requests, their median and the 99th of a hundred, in milliseconds."""
        taken = sorted(each.answer.seconds * 1_000 for each in self.asked if each.phase == phase)
        return f"{len(taken):5} {taken[len(taken) // 2]:6.0f} {taken[len(taken) * 99 // 100]:6.0f}"

    async def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Returns after so many further requests of this phase."""
        wanted = self.count(self.phase) + count
        async with asyncio.timeout(seconds):
            while self.count(self.phase) < wanted:
                await asyncio.sleep(0.01)

    async def run(self, number: int) -> None:
        """One conversation after the other, until the load is over."""
        rng = random.Random(number)
        headers = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as client:
            seed = number
            while not self.is_over:
                await self._play(client, make_session(_TURNS, seed, "one_user", _TURN_TOKENS), rng)
                seed += _CONVERSATIONS

    async def _play(self, client: aiohttp.ClientSession, session: Session, rng: random.Random) -> None:
        for turn in range(_TURNS):
            if self.is_over:
                return
            url, phase = f"{rng.choice(self.addresses)}/chat/completions", self.phase
            self.asked.append(Asked(phase, await _ask(client, url, session.request(turn, _SHAPE))))
            await asyncio.sleep(_PAUSE_SECONDS)


async def _ask(client: aiohttp.ClientSession, url: str, body: bytes) -> Answer:
    try:
        return await ask(client, url, body)
    except aiohttp.ClientError as error:
        return Answer(status=0, headers=(), body=b"", seconds=0.0, broken=repr(error))


@asynccontextmanager
async def running_load(addresses: Sequence[str]) -> AsyncIterator[Load]:
    load = Load(addresses)
    async with asyncio.TaskGroup() as group:
        for number in range(_CONVERSATIONS):
            group.create_task(load.run(number))
        try:
            yield load
        finally:
            load.is_over = True
