"""Clients with the official Python SDK search what a real gateway has summarized.

docs/mcp.md
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import httpx2 as httpx
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.toy.agent import Session, find_tokens, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.replicas import running_replicas
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

Mode = Literal["legacy", "auto", "2026-07-28"]
_MODES = pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
LOSSY = "policies: {default: {summary: {method: digest, max_tokens: 256}}}\n"
_KEPT_UNDER = re.compile(r"searched under the conversation id (\w+)\.")


@dataclass(frozen=True)
class Talk:
    """A session that was played through a gateway."""

    session: Session
    run: Run

    @property
    def conversation(self) -> str:
        """The id in the first line of the newest summary, as the model sees it."""
        return str(_KEPT_UNDER.findall(json.dumps(self.run.outgoing[-1].request))[-1])

    @property
    def hidden(self) -> list[str]:
        """Facts that the model no longer sees."""
        sent = json.dumps(self.run.outgoing[-1].request)
        return [
            token
            for token in find_tokens(self.session.facts, "user", "assistant", "tool")
            if token not in sent
        ]


async def play(gateway: RunningGateway, toy: ToyUpstream, seed: int, key: str) -> Talk:
    session = make_session(40, seed)
    run = await run_session(session, gateway.base_url, toy, pace=Pace(key=key))
    assert run.failed == []
    await gateway.settle()
    return Talk(session, run)


@asynccontextmanager
async def connecting(gateway: RunningGateway, key: str, mode: Mode = "auto") -> AsyncIterator[Client]:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        transport = streamable_http_client(f"{gateway.root_url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def read(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def search(client: Client, conversation: str, query: str) -> CallToolResult:
    return await client.call_tool("search_history", {"conversation": conversation, "query": query})


@_MODES
async def test_a_client_finds_and_reads_what_the_summary_has_lost(mode: Mode) -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")
        assert len(talk.hidden) > 3
        async with connecting(gateway, "sk-toy", mode) as client:
            tools = await client.list_tools()
            found = [read(await search(client, talk.conversation, token)) for token in talk.hidden]
            position = int(found[0].partition("[message ")[2].partition(",")[0])
            whole = await client.call_tool(
                "read_message", {"conversation": talk.conversation, "position": position}
            )
    assert [tool.name for tool in tools.tools] == ["search_history", "read_message", "list_files"]
    assert [token for token, text in zip(talk.hidden, found, strict=True) if token not in text] == []
    assert talk.hidden[0] in read(whole)


@_MODES
async def test_the_files_of_the_summarized_part_are_listed(mode: Mode) -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")
        async with connecting(gateway, "sk-toy", mode) as client:
            files = await client.call_tool("list_files", {"conversation": talk.conversation})
    paths = [line.partition(" (")[0] for line in read(files).splitlines()]
    calls = json.dumps([message for turn in talk.session.turns for message in [dict(turn.assistant)]])
    assert paths and all(path in calls for path in paths)


async def test_nothing_of_another_tenant_is_found() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_TENANTS + LOSSY)) as gateway,
    ):
        red, blue = await play(gateway, toy, 3, "sk-red"), await play(gateway, toy, 4, "sk-blue")
        async with connecting(gateway, "sk-blue") as client:
            others = [await search(client, red.conversation, token) for token in red.hidden]
            none = await search(client, "0" * 16, red.hidden[0])
            own = [await search(client, blue.conversation, token) for token in red.hidden]
    assert all(other == none for other in others) and none.is_error
    assert not [text for text in map(read, own) for token in red.hidden if token in text]


async def test_any_replica_answers_for_what_another_one_has_summarized() -> None:
    async with ToyUpstream(window=16_000) as toy, running_replicas(toy, 2) as replicas:
        first, second = replicas.gateways
        talk = await play(first, toy, 3, "sk-toy")
        token = find_tokens(talk.session.facts, "tool")[0]
        async with connecting(second, "sk-toy") as client:
            assert token in read(await search(client, talk.conversation, token))


async def test_clients_at_once_and_one_that_leaves_do_not_disturb_each_other() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")

        async def ask(token: str) -> str:
            async with connecting(gateway, "sk-toy") as client:
                return read(await search(client, talk.conversation, token))

        leaving = [asyncio.create_task(ask(token)) for token in talk.hidden]
        staying = [asyncio.create_task(ask(token)) for token in talk.hidden]
        await asyncio.wait(staying[:1])
        for task in leaving:
            task.cancel()
        texts = await asyncio.gather(*staying)
        await asyncio.gather(*leaving, return_exceptions=True)
        assert gateway.parts.foundation.budget.used_bytes == 0
    assert [token for token, text in zip(talk.hidden, texts, strict=True) if token not in text] == []


async def test_the_log_has_no_query_and_nothing_found(caplog: pytest.LogCaptureFixture) -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=LOSSY)) as gateway:
        talk = await play(gateway, toy, 3, "sk-toy")
        with caplog.at_level(logging.DEBUG, logger="gateway"):
            async with connecting(gateway, "sk-toy") as client:
                await search(client, talk.conversation, talk.hidden[0])
    assert "call tool=search_history" in caplog.text
    assert talk.hidden[0] not in "".join(record.getMessage() for record in caplog.records)
