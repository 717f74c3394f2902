"""A client that speaks Anthropic Messages gets keep-alives, errors and summaries in that format."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import pytest

from gateway.wire.formats.messages import MESSAGES
from tests.toy.agent import Message, Session, Shape, make_session
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.gateway import running_gateway
from tests.toy.messages import Messages
from tests.toy.reply import Reply
from tests.toy.running import Answer, ask
from tests.toy.upstream import ToyUpstream

# About 10,000 tokens, of which 8,000 fit: the first request needs a summary.
WINDOW = 8_000
TURN = 10
SHAPE = Shape(dialect=Messages(), max_tokens=1_000)
SESSION = make_session(TURN + 1, 7)
SLOW = Delivery(before_headers_seconds=1.0)
BETA = "context-1m-2025-08-07"


@dataclass(frozen=True)
class Room:
    toy: ToyUpstream
    base_url: str

    async def ask(
        self, *, stream: bool, session: Session = SESSION, headers: Mapping[str, str] | None = None
    ) -> Answer:
        body = session.request(TURN, replace(SHAPE, stream=stream))
        given = SHAPE.dialect.headers("sk-toy") | dict(headers or {})
        async with aiohttp.ClientSession(headers=given) as client:
            return await ask(client, f"{self.base_url}/messages", body)


@asynccontextmanager
async def opening_room(more: str = "", upstreams: str = "") -> AsyncIterator[Room]:
    async with ToyUpstream(window=WINDOW) as toy:
        toy.reply = lambda _: Reply(text="This is the answer. " * 20)
        yaml = (
            f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
            f"{upstreams.format(url=toy.base_url)}"
            f'models:\n  - {{match: "*sonnet*", context: {WINDOW}}}\n  - {{match: "*", context: {WINDOW}}}\n'
            f"keepalive: {{after_seconds: 0.15, every_seconds: 0.15}}\n{more}"
        )
        async with running_gateway(yaml) as gateway:
            yield Room(toy, gateway.base_url)


async def test_a_stream_waits_with_pings_and_then_has_its_answer() -> None:
    async with opening_room() as room:
        room.toy.summary_delivery = SLOW
        answer = await room.ask(stream=True)
    pings = answer.body.count(MESSAGES.keepalive)
    assert pings >= 2
    assert answer.body.startswith(MESSAGES.keepalive * pings + b"event: message_start\n")
    assert answer.is_whole


async def test_a_whole_answer_waits_with_spaces() -> None:
    async with opening_room() as room:
        room.toy.summary_delivery = SLOW
        answer = await room.ask(stream=False)
    assert answer.body.startswith(b"  ") and answer.is_whole


async def test_a_failure_behind_a_ping_is_an_error_event_of_upstreams_own() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with opening_room() as room:
        room.toy.summary_delivery = SLOW
        room.toy.failures.append(RawAnswer(status=529, pieces=(json.dumps(error).encode(),)))
        answer = await room.ask(stream=True)
    event = answer.body.split(MESSAGES.keepalive)[-1]
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.partition(b"data: ")[2]) == error


async def test_a_summary_is_asked_for_with_the_clients_headers_and_introduction() -> None:
    greeting: list[Message] = [{"role": "system", "content": "You are the toy's own client."}]
    session = replace(SESSION, leading=(*greeting, *SESSION.leading), model="claude-sonnet-4-5")
    async with opening_room() as room:
        answer = await room.ask(stream=False, session=session, headers={"anthropic-beta": f"x,{BETA}"})
        summary = room.toy.summaries[0]
    assert answer.is_whole
    assert summary.path == "/v1/messages"
    headers = {name.lower(): value for name, value in summary.headers}
    assert headers["anthropic-beta"] == f"x,{BETA}"
    assert headers["anthropic-version"] == "2023-06-01"
    system = summary.request["system"]
    assert isinstance(system, list)
    assert [block["text"] for block in system][:1] == [greeting[0]["content"]]
    assert len(system) == 2


@pytest.mark.parametrize(
    ("formats", "path"), [("messages", "/v1/messages"), ("chat", "/v1/chat/completions")]
)
async def test_a_summary_at_another_upstream_uses_its_format_and_headers(formats: str, path: str) -> None:
    policy = "policies: {default: {summary: {upstream: other}}}\n"
    other = (
        f'  other: {{{{base_url: "{{url}}", formats: [{formats}], discover: false, api_key: "sk-other"}}}}\n'
    )
    async with opening_room(policy, other) as room:
        answer = await room.ask(stream=False, headers={"anthropic-beta": "x"})
        summary = room.toy.summaries[0]
    assert answer.is_whole and room.toy.summaries[0].refusal is None
    assert summary.path == path
    headers = {name.lower() for name, _ in summary.headers}
    assert ("anthropic-version" in headers) == (formats == "messages")
    assert "anthropic-beta" not in headers
