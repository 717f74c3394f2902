"""Callers who guess: whatever they ask `/mcp`, no canary of another tenant comes back."""

import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from tests.toy.agent import Session, find_tokens, make_session
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_SEARCH, _READ, _LIST = "search_history", "read_message", "list_files"
_VERSIONS = ("2025-06-18", "2026-07-28")
_META = "io.modelcontextprotocol"
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

    tenant: str
    tool: str
    arguments: dict[str, object]

    @property
    def key(self) -> str:
        return f"sk-{self.tenant}"


@dataclass(frozen=True)
class Case:
    """Three tenants with conversations whose facts, the canaries, are in originals alone."""

    product: Product
    sessions: dict[str, Session]
    conversations: dict[str, str]

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
            tool = rng.choice((_SEARCH, _SEARCH, _SEARCH, _READ, _LIST))
            more: dict[str, dict[str, object]] = {
                _SEARCH: {"query": query},
                _READ: {"position": rng.randint(0, 90), "start": rng.choice((0, 0, 5, 10**6))},
                _LIST: {},
            }
            yield Asked(rng.choice(_NAMES), tool, {"conversation": identity, **more[tool]})

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
        others = [name for name in _NAMES if name != asked.tenant]
        return [canary for name in others for canary in self.canaries(name) if canary in text]


def _find_words(session: Session) -> list[str]:
    return sorted(set(_WORD.findall(json.dumps(session.messages(len(session) - 1)))))


@asynccontextmanager
async def filled() -> AsyncIterator[Case]:
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=_SETTINGS)) as product,
    ):
        sessions = {name: make_session(30, 60 + number) for number, name in enumerate(_NAMES)}
        runs = {
            name: await run_session(session, product.base_url, toy, pace=Pace(key=f"sk-{name}"))
            for name, session in sessions.items()
        }
        await product.at_rest()
        conversations = {name: run.conversation for name, run in runs.items()}
        yield Case(product, sessions, conversations)


async def call(product: Product, client: aiohttp.ClientSession, asked: Asked, version: str) -> str:
    params: dict[str, object] = {"name": asked.tool, "arguments": asked.arguments}
    headers = {
        "Authorization": f"Bearer {asked.key}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
    }
    # The modern generation repeats in headers what a proxy may route by.
    if version == _VERSIONS[1]:
        params["_meta"] = {f"{_META}/protocolVersion": version, f"{_META}/clientCapabilities": {}}
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": asked.tool}
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    async with client.post(f"{product.root_url}/mcp", data=body, headers=headers) as response:
        assert response.status == 200
        return await response.text()


async def check_drawn(number: int) -> None:
    """Own canaries are found now and then, so that the search is one."""
    leaks, own = list[tuple[Asked, list[str]]](), 0
    async with filled() as case, aiohttp.ClientSession() as client:
        for count, asked in zip(range(number), case.draw(number), strict=False):
            text = await call(case.product, client, asked, _VERSIONS[count % 2])
            found = case.find_leaks(asked, text)
            leaks += [(asked, found)] if found else []
            own += any(canary in text for canary in case.canaries(asked.tenant))
    assert leaks == []
    assert own > number // 20


async def test_drawn_calls_find_nothing_of_another_tenant() -> None:
    await check_drawn(300)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
async def test_ten_thousand_drawn_calls_find_nothing_of_another_tenant() -> None:
    await check_drawn(10_000)
