"""Upstreams are asked for their models behind the back of a request: real sockets, the toy answers."""

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from pydantic import SecretStr

from gateway.limits.book import LimitsBook
from gateway.limits.discovery import Discovery
from gateway.limits.model_lists import ModelLists
from gateway.limits.model_table import ModelTable
from gateway.settings import ModelRule, UpstreamSettings, load_settings
from gateway.store.memory import MemoryStore
from gateway.upstream.internal_client import open_client
from gateway.wire.model_list import MOST_BYTES
from tests.builders.state import make_state
from tests.store.clock import Clock
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.running import wait_until
from tests.toy.upstream import Seen, ToyUpstream

LIST = ("GET", "/v1/models")
CALLER = [
    (b"Authorization", b"Bearer sk-caller"),
    (b"X-Org", b"acme"),
    (b"Content-Length", b"12"),
    (b"Content-Type", b"application/json"),
    (b"Accept-Encoding", b"gzip"),
    (b"Idempotency-Key", b"once"),
    (b"Connection", b"close, x-hop"),
    (b"X-Hop", b"1"),
    (b"X-Gateway-Session", b"s"),
]


def render(**windows: int) -> bytes:
    entries = [{"id": name, "max_model_len": window} for name, window in windows.items()]
    return json.dumps({"object": "list", "data": entries}).encode()


def answering(body: bytes, status: int = 200, **fields: object) -> RawAnswer:
    return RawAnswer(status=status, pieces=(body,), **fields)  # type: ignore[arg-type]


@dataclass
class Room:
    toy: ToyUpstream
    upstream: UpstreamSettings
    book: LimitsBook
    discovery: Discovery
    clock: Clock

    def notice(self, owner: str = "t", model: str = "m", key: bytes = b"sk-caller") -> None:
        headers = [(b"Authorization", b"Bearer " + key), *CALLER[1:]]
        self.discovery.notice(owner, self.upstream, model, headers)

    async def window(self, owner: str = "t", model: str = "m") -> int | None:
        return (await self.book.load(owner, self.upstream.name, model)).context

    async def settles(self) -> None:
        """Until every question is answered, or has failed."""
        await wait_until(lambda: not self.discovery.is_asking, 5.0)

    @property
    def asked(self) -> list[Seen]:
        return [seen for seen in self.toy.requests if seen.method == "GET"]


@asynccontextmanager
async def opening_room(**keys: object) -> AsyncIterator[Room]:
    """keys: of the upstream's settings."""
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = answering(render(m=8_192))
        plain = load_settings(None, {})
        upstream = replace(plain.upstreams["default"], base_url=toy.base_url, **keys)  # type: ignore[arg-type]
        rules = (ModelRule(match="set-*", context=50_000),)
        settings = replace(plain, upstreams={"default": upstream}, models=rules)
        store, clock = MemoryStore(), Clock()
        await store.open()
        book = LimitsBook(settings, ModelLists(), ModelTable({}), make_state(store).calibrations, clock)
        client = open_client()
        discovery = Discovery(book, client, clock)
        try:
            yield Room(toy, upstream, book, discovery, clock)
        finally:
            await discovery.close()
            await client.aclose()


async def test_the_first_request_goes_with_what_is_known_and_a_later_one_knows_the_window() -> None:
    async with opening_room() as room:
        room.notice()
        assert room.asked == []
        assert await room.window() is None
        await room.settles()
        assert await room.window() == 8_192


async def test_without_a_key_of_its_own_the_upstream_gets_the_callers_end_to_end_headers() -> None:
    async with opening_room() as room:
        room.notice()
        await room.settles()
        [seen] = room.asked
        headers = {name.lower(): value for name, value in seen.headers}
        assert (headers["authorization"], headers["x-org"]) == ("Bearer sk-caller", "acme")
        assert headers.keys().isdisjoint(
            {"content-type", "content-length", "idempotency-key", "x-hop", "x-gateway-session", "cookie"}
        )
        assert seen.body == b""


async def test_with_a_key_of_its_own_it_gets_nothing_of_any_caller_and_is_asked_once_for_all() -> None:
    async with opening_room(api_key=SecretStr("sk-own")) as room:
        for owner in ("a", "b", "a"):
            room.notice(owner)
            await room.settles()
        [seen] = room.asked
        headers = {name.lower(): value for name, value in seen.headers}
        assert headers["authorization"] == "Bearer sk-own"
        assert "x-org" not in headers
        assert [await room.window(owner) for owner in ("a", "b", "c")] == [8_192] * 3


async def test_what_one_callers_key_is_shown_does_not_decide_for_another() -> None:
    async with opening_room() as room:
        shown = {"Bearer sk-a": render(m=4_096), "Bearer sk-b": render(m=16_384)}
        room.toy.intercept = lambda seen: answering(shown[dict(seen.headers)["Authorization"]])
        room.notice("a", key=b"sk-a")
        room.notice("b", key=b"sk-b")
        await room.settles()
        assert [await room.window(owner) for owner in ("a", "b", "c")] == [4_096, 16_384, None]


async def test_it_is_asked_again_after_an_hour_and_not_before() -> None:
    async with opening_room() as room:
        for later, asked in ((0, 1), (3_500, 1), (200, 2), (10, 2)):
            room.clock.now += later
            room.toy.raw_answers[LIST] = answering(render(m=4_096 * (asked + 1)))
            room.notice()
            room.notice()
            await room.settles()
            assert len(room.asked) == asked
        assert await room.window() == 3 * 4_096


FAILURES = [
    answering(render(m=4_096), status=401),
    answering(render(m=4_096), status=500),
    answering(render(m=4_096), status=204, length=False),
    answering(b"", status=307, headers=(("Location", "/v1/elsewhere"),)),
    answering(render(m=4_096), delivery=Delivery(ending="abort", stop_after_bytes=10), length=False),
    answering(render(m=4_096), headers=(("Content-Encoding", "gzip"),)),
    answering(render(m=4_096), headers=(("Content-Encoding", "rot13"),)),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda answer: f"{answer.status}-{answer.headers}")
async def test_after_a_failure_it_is_left_alone_for_five_minutes_and_the_old_list_stays(
    failure: RawAnswer,
) -> None:
    async with opening_room() as room:
        room.notice()
        await room.settles()
        room.toy.raw_answers[LIST] = failure
        for later, asked in ((3_700, 2), (290, 2), (20, 3)):
            room.clock.now += later
            room.notice()
            await room.settles()
            assert [seen.path for seen in room.asked] == ["/v1/models"] * asked
            assert await room.window() == 8_192


async def test_an_upstream_that_is_not_there_costs_nothing() -> None:
    async with opening_room() as room:
        gone = replace(room.upstream, base_url="http://127.0.0.1:1/v1")
        room.discovery.notice("t", gone, "m", CALLER)
        await room.settles()
        assert await room.window() is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 50_000, b'{"data": 7}'], ids=lambda body: body[:9])
async def test_an_answer_that_is_no_list_is_an_answer(body: bytes) -> None:
    async with opening_room() as room:
        room.toy.raw_answers[LIST] = answering(body)
        room.notice()
        await room.settles()
        room.clock.now += 1_000
        room.notice()
        await room.settles()
        assert len(room.asked) == 1
        assert await room.window() is None


async def test_a_compressed_list_is_understood() -> None:
    async with opening_room() as room:
        room.toy.raw_answers[LIST] = answering(render(m=4_096), delivery=Delivery(gzip=True))
        room.notice()
        await room.settles()
        assert await room.window() == 4_096


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
async def test_no_more_than_a_model_list_is_read(is_packed: bool) -> None:
    async with opening_room() as room:
        body = render(m=4_096) + b" " * MOST_BYTES
        packed = (("Content-Encoding", "deflate"),)
        room.toy.raw_answers[LIST] = (
            answering(zlib.compress(body), headers=packed) if is_packed else answering(body)
        )
        room.notice()
        await room.settles()
        assert await room.window() is None


async def test_a_cookie_of_one_tenant_is_not_sent_for_another() -> None:
    async with opening_room() as room:
        room.toy.raw_answers[LIST] = answering(render(m=4_096), headers=(("Set-Cookie", "a=1; Path=/"),))
        for owner in ("a", "b"):
            room.notice(owner)
            await room.settles()
        assert len(room.asked) == 2
        assert all(name.lower() != "cookie" for seen in room.asked for name, _ in seen.headers)


async def test_where_the_window_is_configured_or_asking_is_off_nobody_is_asked() -> None:
    async with opening_room() as room:
        room.notice(model="set-1")
        room.discovery.notice("t", replace(room.upstream, discover=False), "m", CALLER)
        assert not room.discovery.is_asking
        room.notice(model="m")
        assert room.discovery.is_asking


async def test_a_crowd_of_new_callers_does_not_become_one_of_ours() -> None:
    async with opening_room() as room:
        room.toy.raw_answers[LIST] = answering(b"", delivery=Delivery(never=True))
        for number in range(200):
            room.notice(f"key:{number}")
        await wait_until(lambda: len(room.asked) == 32)
        await asyncio.sleep(0.05)
        assert len(room.asked) == 32


async def test_closing_ends_what_is_under_way() -> None:
    async with opening_room() as room:
        room.toy.raw_answers[LIST] = answering(b"", delivery=Delivery(never=True))
        room.notice()
        await wait_until(lambda: bool(room.asked))
        await room.discovery.close()
        assert not room.discovery.is_asking
        await wait_until(lambda: room.asked[0].disconnected)


async def test_one_line_says_what_was_found_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with opening_room() as room:
        room.toy.raw_answers[LIST] = answering(render(m=4_096, n=8_192))
        for owner in ("a", "b"):
            room.notice(owner)
            await room.settles()
        room.toy.raw_answers[LIST] = answering(b"", status=403)
        room.notice("c")
        await room.settles()
    assert caplog.text.count("limits of 2 models found at upstream default") == 1
    assert "status 403" in caplog.text
    assert "sk-caller" not in caplog.text


async def test_where_only_messages_are_spoken_it_is_asked_as_anthropic_wants_it() -> None:
    async with opening_room(api_key=SecretStr("sk-own"), formats=frozenset({"messages"})) as room:
        answer = {"data": [{"type": "model", "id": "m", "max_input_tokens": 200_000, "max_tokens": 64_000}]}
        room.toy.raw_answers[LIST] = answering(json.dumps(answer).encode())
        room.notice()
        await room.settles()
        [seen] = room.asked
        headers = {name.lower(): value for name, value in seen.headers}
        assert seen.path == "/v1/models?limit=1000"
        assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-own", "2023-06-01")
        assert "authorization" not in headers
        limits = await room.book.load("t", "default", "m")
        assert (limits.input, limits.output) == (200_000, 64_000)


async def test_where_a_caller_names_a_version_its_own_is_sent() -> None:
    async with opening_room(formats=frozenset({"messages"})) as room:
        headers = [(b"x-api-key", b"sk-caller"), (b"Anthropic-Version", b"2099-01-01")]
        room.discovery.notice("t", room.upstream, "m", headers)
        await room.settles()
        [seen] = room.asked
        versions = [value for name, value in seen.headers if name.lower() == "anthropic-version"]
        assert versions == ["2099-01-01"]
