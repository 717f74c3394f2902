"""Callers who guess: whatever they ask `/mcp`, no canary of another tenant comes back."""

import json
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from gateway.mcp.tools import LIST, READ, SEARCH
from gateway.tenants import Tenant, list_tenants
from tests.builders.mcp import HANDSHAKE, MODERN, make_headers, render_call
from tests.toy.agent import Session, find_tokens, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_NAMES = ("red", "blue", "green")
_SETTINGS = (
    "tenants:\n"
    + "".join(f"  - {{name: {name}, keys: [sk-{name}]}}\n" for name in _NAMES)
    + "policies: {default: {summary: {method: digest, max_tokens: 256}}}\n"
)
_WORD = re.compile(r"[\w./-]{4,}")


@dataclass(frozen=True)
class Asked:
    """A call that one tenant makes."""

    tenant: Tenant
    tool: str
    arguments: dict[str, object]

    @property
    def key(self) -> str:
        return f"sk-{self.tenant.display_name}"


@dataclass(frozen=True)
class Case:
    """Three tenants with conversations whose facts, the canaries, are in originals alone."""

    gateway: RunningGateway
    sessions: dict[str, Session]
    conversations: dict[str, str]
    tenants: Sequence[Tenant]

    def canaries(self, name: str) -> set[str]:
        return set(find_tokens(self.sessions[name].facts, "user", "assistant", "tool"))

    def draw(self, seed: int) -> Iterator[Asked]:
        """Calls without an end."""
        rng = random.Random(seed)
        words = {name: _find_words(session) for name, session in self.sessions.items()}
        while True:
            owner = rng.choice(_NAMES)
            identity = self._change(rng, self.conversations[owner])
            query = self._change_query(rng, rng.sample(words[owner], rng.randint(1, 4)), owner)
            tool = rng.choice((SEARCH, SEARCH, SEARCH, READ, LIST))
            more: dict[str, dict[str, object]] = {
                SEARCH: {"query": query},
                READ: {"position": rng.randint(0, 90), "start": rng.choice((0, 0, 5, 10**6))},
                LIST: {},
            }
            yield Asked(rng.choice(self.tenants), tool, {"conversation": identity, **more[tool]})

    def _change(self, rng: random.Random, identity: str) -> str:
        other = rng.choice([*self.conversations.values()])
        changed = (
            f"{identity}:",
            f"{identity[:-1]}*",
            f"{other}/../{identity}",
            f"{identity} OR 1=1",
            "%",
            "",
        )
        return rng.choice((identity,) * 12 + changed)

    def _change_query(self, rng: random.Random, words: list[str], owner: str) -> str:
        canary = rng.choice(sorted(self.canaries(owner)))
        return rng.choice((" ".join(words), canary, canary[:7], f'"{canary}"', f"{canary}* OR FACT*", "FACT"))

    def find_leaks(self, asked: Asked, text: str) -> list[str]:
        """Canaries of others. What the caller wrote itself is none."""
        others = [name for name in _NAMES if name != asked.tenant.display_name]
        return [canary for name in others for canary in self.canaries(name) if canary in text]


def _find_words(session: Session) -> list[str]:
    return sorted(set(_WORD.findall(json.dumps(session.messages(len(session) - 1)))))


@asynccontextmanager
async def filled() -> AsyncIterator[Case]:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_SETTINGS)) as gateway,
    ):
        sessions = {name: make_session(30, 60 + number) for number, name in enumerate(_NAMES)}
        runs = {
            name: await run_session(session, gateway.base_url, toy, pace=Pace(key=f"sk-{name}"))
            for name, session in sessions.items()
        }
        await gateway.settle()
        conversations = {name: run.conversation for name, run in runs.items()}
        settings = gateway.app.generations.settings
        yield Case(gateway, sessions, conversations, list_tenants(settings))


async def ask_in_process(case: Case, asked: Asked) -> str:
    endpoint = case.gateway.parts.current.generation.mcp
    assert endpoint is not None
    return (await endpoint.tools.call(asked.tenant, asked.tool, asked.arguments)).text


async def ask_over_socket(case: Case, client: aiohttp.ClientSession, asked: Asked, version: str) -> str:
    body = render_call(asked.tool, version, **asked.arguments)
    headers = {**make_headers(body, version), "Authorization": f"Bearer {asked.key}"}
    async with client.post(f"{case.gateway.root_url}/mcp", data=body, headers=headers) as response:
        return await response.text()


async def check_drawn(number: int, over_socket: int) -> None:
    """Own canaries are found now and then, so that the search is one."""
    leaks, own = list[tuple[Asked, list[str]]](), 0
    async with filled() as case, aiohttp.ClientSession() as client:
        for count, asked in zip(range(number), case.draw(number), strict=False):
            if count < over_socket:
                text = await ask_over_socket(case, client, asked, MODERN if count % 2 else HANDSHAKE)
            else:
                text = await ask_in_process(case, asked)
            found = case.find_leaks(asked, text)
            leaks += [(asked, found)] if found else []
            own += any(canary in text for canary in case.canaries(asked.tenant.display_name))
    assert leaks == []
    assert own > number // 20


async def test_drawn_calls_find_nothing_of_another_tenant() -> None:
    await check_drawn(400, 60)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
async def test_ten_thousand_drawn_calls_find_nothing_of_another_tenant() -> None:
    await check_drawn(10_000, 1_000)
