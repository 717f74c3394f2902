"""A count is answered for what would really be sent, and leaves no trace."""

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.house import make_settings
from tests.toy.messages import Messages
from tests.toy.product import serve
from tests.toy.running import Answer, Run, ask, run_session
from tests.toy.upstream import ToyUpstream

_SHAPE = Shape(dialect=Messages(), max_tokens=1_000)
_HEADERS = _SHAPE.dialect.headers("sk-toy")


class Room:
    def __init__(self, toy: ToyUpstream, base_url: str, client: aiohttp.ClientSession) -> None:
        self.toy = toy
        self.base_url = base_url
        self._client = client

    async def play(self, session: Session) -> Run:
        return await run_session(session, self.base_url, self.toy, _SHAPE)

    async def count(self, body: bytes) -> Answer:
        return await ask(self._client, f"{self.base_url}/messages/count_tokens", body)


@asynccontextmanager
async def opening_room(headers: Mapping[str, str] | None = None) -> AsyncIterator[Room]:
    toy = ToyUpstream(window=16_000, bias=1.3)
    async with (
        toy,
        serve(make_settings(toy)) as gateway,
        aiohttp.ClientSession(headers=_HEADERS | dict(headers or {})) as client,
    ):
        yield Room(toy, gateway.base_url, client)


@pytest.fixture(scope="module")
def session() -> Session:
    return make_session(30, 30, "one_user", 500)


async def test_a_count_holds_what_would_be_sent_and_not_what_was_received(session: Session) -> None:
    async with opening_room() as room:
        run = await room.play(session)
        assert run.failed == [] and run.summaries
        before, whole = len(room.toy.requests), session.request(len(session) - 1, _SHAPE)
        answer = await room.count(whole)
        counted = room.toy.requests[-1]
    assert answer.status == 200
    assert len(room.toy.requests) == before + 1
    assert counted.request == run.outgoing[-1].request
    assert len(counted.body) < len(whole) / 2


async def test_a_pivot_from_before_a_restart_is_counted_after_it(session: Session, store_url: str) -> None:
    toy = ToyUpstream(window=16_000, bias=1.3)
    async with toy, aiohttp.ClientSession(headers=_HEADERS) as client:
        settings = make_settings(toy, store=store_url)
        async with serve(settings) as gateway:
            run = await run_session(session, gateway.base_url, toy, _SHAPE)
        async with serve(settings) as gateway:
            room = Room(toy, gateway.base_url, client)
            await room.count(session.request(len(session) - 1, _SHAPE))
    assert run.summaries
    assert toy.requests[-1].request == run.outgoing[-1].request


async def test_without_an_active_pivot_the_body_goes_on_as_it_came(session: Session) -> None:
    """Also one that is far too large for the window: nothing is compacted for a count."""
    whole = session.request(len(session) - 1, _SHAPE)
    async with opening_room() as room:
        for body in (whole, b"{}", b"no JSON", b'{"model":"m"}'):
            await room.count(body)
            assert room.toy.requests[-1].body == body
        assert len(room.toy.requests) == 4


async def test_a_pure_relay_counts_what_it_received(session: Session) -> None:
    async with opening_room({"x-gateway-bypass": "1"}) as room:
        await room.play(session)
        whole = session.request(len(session) - 1, _SHAPE)
        await room.count(whole)
        assert room.toy.requests[-1].body == whole


async def test_a_count_is_not_a_turn_of_the_conversation(session: Session) -> None:
    """What the user has typed so far is counted; then another message is sent."""
    first = json.loads(session.request(5, _SHAPE))
    typed = {**first, "messages": [*first["messages"][:-1], {"role": "user", "content": "Perhaps"}]}
    async with opening_room() as room, aiohttp.ClientSession(headers=_HEADERS) as client:
        ids = []
        for turn in (4, 5):
            await room.count(json.dumps(typed).encode())
            url = f"{room.base_url}/messages"
            answer = await ask(client, url, session.request(turn, _SHAPE))
            ids.append(answer.header("x-gateway-conversation"))
    assert ids[0] is not None and ids[0] == ids[1]


async def test_a_compressed_body_that_is_rewritten_leaves_plain(session: Session) -> None:
    whole = session.request(len(session) - 1, _SHAPE)
    async with opening_room({"Content-Encoding": "gzip"}) as room:
        run = await room.play(session)
        await room.count(gzip.compress(whole))
        counted = room.toy.requests[-1]
    assert counted.request == run.outgoing[-1].request
    assert "content-encoding" not in {name.lower() for name, _ in counted.headers}
