"""Upstreams are asked for their lists of models over real sockets; the toy upstream responds."""

import json
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from pydantic import SecretStr

from gateway.limits.book import LimitsBook, ServedModel
from gateway.limits.discovery import Discovery
from gateway.limits.model_lists import ModelLists
from gateway.limits.model_table import ModelTable
from gateway.settings import ModelRule, TenantSettings, UpstreamSettings, load_settings
from gateway.store.memory import MemoryStore
from gateway.upstream.internal_client import open_client
from gateway.wire.model_list import MAX_BYTES
from tests.builders.settings import make_tenant
from tests.builders.state import make_state
from tests.store.clock import Clock
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.running import wait_until
from tests.toy.upstream import Seen, ToyUpstream

LIST = ("GET", "/v1/models")
CLIENT = [
    (b"Authorization", b"Bearer sk-client"),
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
class Setting:
    toy: ToyUpstream
    upstream: UpstreamSettings
    book: LimitsBook
    discovery: Discovery
    clock: Clock

    def notice(self, owner: str = "t", model: str = "m", key: bytes = b"sk-client") -> None:
        headers = [(b"Authorization", b"Bearer " + key), *CLIENT[1:]]
        self.discovery.notice(owner, self.upstream, model, headers)

    async def window(self, owner: str = "t", model: str = "m") -> int | None:
        return (await self.book.load(ServedModel(owner, self.upstream.name, model))).context

    async def settle(self) -> None:
        """Until every request has its response, or has failed."""
        await self.discovery.finish()

    @property
    def asked(self) -> list[Seen]:
        return [seen for seen in self.toy.requests if seen.method == "GET"]


@asynccontextmanager
async def opened(tenants: tuple[TenantSettings, ...] = (), **keys: object) -> AsyncIterator[Setting]:
    """keys: of the upstream's settings."""
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = answering(render(m=8_192))
        plain = load_settings(None, {})
        upstream = replace(plain.upstreams["default"], base_url=toy.base_url, **keys)  # type: ignore[arg-type]
        rules = (ModelRule(match="set-*", context=50_000),)
        settings = replace(plain, upstreams={"default": upstream}, models=rules, tenants=tenants)
        store, clock = MemoryStore(), Clock()
        await store.open()
        book = LimitsBook(settings, ModelLists(), ModelTable({}), make_state(store).calibrations, clock)
        client = open_client()
        discovery = Discovery(book, client, clock)
        try:
            yield Setting(toy, upstream, book, discovery, clock)
        finally:
            await discovery.close()
            await client.aclose()


async def test_the_first_request_does_not_wait_for_the_list_and_a_later_one_knows_the_window() -> None:
    async with opened() as setting:
        setting.notice()
        assert setting.asked == []
        assert await setting.window() is None
        await setting.settle()
        assert await setting.window() == 8_192


async def test_without_a_configured_key_the_upstream_gets_the_clients_end_to_end_headers() -> None:
    async with opened() as setting:
        setting.notice()
        await setting.settle()
        [seen] = setting.asked
        headers = {name.lower(): value for name, value in seen.headers}
        assert (headers["authorization"], headers["x-org"]) == ("Bearer sk-client", "acme")
        assert headers.keys().isdisjoint(
            {"content-type", "content-length", "idempotency-key", "x-hop", "x-gateway-session", "cookie"}
        )
        assert seen.body == b""


async def test_with_a_configured_key_it_gets_nothing_from_clients_and_is_asked_once_for_all() -> None:
    async with opened(api_key=SecretStr("sk-own")) as setting:
        for owner in ("a", "b", "a"):
            setting.notice(owner)
            await setting.settle()
        [seen] = setting.asked
        headers = {name.lower(): value for name, value in seen.headers}
        assert headers["authorization"] == "Bearer sk-own"
        assert "x-org" not in headers
        assert [await setting.window(owner) for owner in ("a", "b", "c")] == [8_192] * 3


async def test_the_list_that_one_clients_key_is_shown_does_not_hold_for_another() -> None:
    async with opened() as setting:
        shown = {"Bearer sk-a": render(m=4_096), "Bearer sk-b": render(m=16_384)}
        setting.toy.intercept = lambda seen: answering(shown[dict(seen.headers)["Authorization"]])
        setting.notice("a", key=b"sk-a")
        setting.notice("b", key=b"sk-b")
        await setting.settle()
        assert [await setting.window(owner) for owner in ("a", "b", "c")] == [4_096, 16_384, None]


async def test_with_a_tenants_own_key_the_list_is_asked_for_and_kept_for_this_tenant_alone() -> None:
    tenant = make_tenant(upstream="default", api_key=SecretStr("sk-a"))
    async with opened((tenant,), api_key=SecretStr("sk-all")) as setting:
        shown = {"Bearer sk-a": render(m=4_096), "Bearer sk-all": render(m=16_384)}
        setting.toy.intercept = lambda seen: answering(shown[dict(seen.headers)["Authorization"]])
        own = replace(setting.upstream, api_key=SecretStr("sk-a"), key_owner="tenant:a")
        setting.discovery.notice("tenant:a", own, "m", CLIENT)
        setting.notice("tenant:b")
        await setting.settle()
        assert [await setting.window(owner) for owner in ("tenant:a", "tenant:b")] == [4_096, 16_384]


async def test_an_upstream_is_asked_again_after_an_hour_and_not_before() -> None:
    async with opened() as setting:
        for later, asked in ((0, 1), (3_500, 1), (200, 2), (10, 2)):
            setting.clock.now += later
            setting.toy.raw_answers[LIST] = answering(render(m=4_096 * (asked + 1)))
            setting.notice()
            setting.notice()
            await setting.settle()
            assert len(setting.asked) == asked
        assert await setting.window() == 3 * 4_096


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
async def test_after_a_failure_it_is_asked_again_in_five_minutes_and_the_old_list_stays(
    failure: RawAnswer,
) -> None:
    async with opened() as setting:
        setting.notice()
        await setting.settle()
        setting.toy.raw_answers[LIST] = failure
        for later, asked in ((3_700, 2), (290, 2), (20, 3)):
            setting.clock.now += later
            setting.notice()
            await setting.settle()
            assert [seen.path for seen in setting.asked] == ["/v1/models"] * asked
            assert await setting.window() == 8_192


async def test_an_unreachable_upstream_does_no_harm() -> None:
    async with opened() as setting:
        gone = replace(setting.upstream, base_url="http://127.0.0.1:1/v1")
        setting.discovery.notice("t", gone, "m", CLIENT)
        await setting.settle()
        assert await setting.window() is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 50_000, b'{"data": 7}'], ids=lambda body: body[:9])
async def test_a_response_that_is_not_a_list_counts_as_an_empty_one(body: bytes) -> None:
    async with opened() as setting:
        setting.toy.raw_answers[LIST] = answering(body)
        setting.notice()
        await setting.settle()
        setting.clock.now += 1_000
        setting.notice()
        await setting.settle()
        assert len(setting.asked) == 1
        assert await setting.window() is None


async def test_a_compressed_list_is_read() -> None:
    async with opened() as setting:
        setting.toy.raw_answers[LIST] = answering(render(m=4_096), delivery=Delivery(gzip=True))
        setting.notice()
        await setting.settle()
        assert await setting.window() == 4_096


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
async def test_a_response_that_is_too_long_for_a_list_is_not_read_to_its_end(is_packed: bool) -> None:
    async with opened() as setting:
        body = render(m=4_096) + b" " * MAX_BYTES
        packed = (("Content-Encoding", "deflate"),)
        setting.toy.raw_answers[LIST] = (
            answering(zlib.compress(body), headers=packed) if is_packed else answering(body)
        )
        setting.notice()
        await setting.settle()
        assert await setting.window() is None


async def test_a_cookie_of_one_tenant_is_not_sent_for_another() -> None:
    async with opened() as setting:
        setting.toy.raw_answers[LIST] = answering(render(m=4_096), headers=(("Set-Cookie", "a=1; Path=/"),))
        for owner in ("a", "b"):
            setting.notice(owner)
            await setting.settle()
        assert len(setting.asked) == 2
        assert all(name.lower() != "cookie" for seen in setting.asked for name, _ in seen.headers)


async def test_the_upstream_is_not_asked_if_the_window_is_configured_or_asking_is_off() -> None:
    async with opened() as setting:
        setting.notice(model="set-1")
        setting.discovery.notice("t", replace(setting.upstream, discover=False), "m", CLIENT)
        await setting.settle()
        assert setting.asked == []
        setting.notice(model="m")
        await setting.settle()
        assert len(setting.asked) == 1


async def test_many_new_clients_at_once_cause_a_bounded_number_of_requests() -> None:
    async with opened() as setting:
        setting.toy.raw_answers[LIST] = answering(b"", delivery=Delivery(never=True))
        for number in range(200):
            setting.notice(f"key:{number}")
        await wait_until(lambda: len(setting.asked) >= 32)
        assert len(setting.asked) == 32


async def test_closing_cancels_requests_that_are_under_way() -> None:
    async with opened() as setting:
        setting.toy.raw_answers[LIST] = answering(b"", delivery=Delivery(never=True))
        setting.notice()
        await wait_until(lambda: bool(setting.asked))
        await setting.discovery.close()
        await wait_until(lambda: setting.asked[0].disconnected)


async def test_the_log_says_how_many_models_were_found_and_names_no_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened() as setting:
        setting.toy.raw_answers[LIST] = answering(render(m=4_096, n=8_192))
        for owner in ("a", "b"):
            setting.notice(owner)
            await setting.settle()
        setting.toy.raw_answers[LIST] = answering(b"", status=403)
        setting.notice("c")
        await setting.settle()
    assert caplog.text.count("limits of 2 models found at upstream default") == 1
    assert "status 403" in caplog.text
    assert "sk-client" not in caplog.text


async def test_an_upstream_with_the_messages_format_only_is_asked_in_anthropics_way() -> None:
    async with opened(api_key=SecretStr("sk-own"), formats=frozenset({"messages"})) as setting:
        answer = {"data": [{"type": "model", "id": "m", "max_input_tokens": 200_000, "max_tokens": 64_000}]}
        setting.toy.raw_answers[LIST] = answering(json.dumps(answer).encode())
        setting.notice()
        await setting.settle()
        [seen] = setting.asked
        headers = {name.lower(): value for name, value in seen.headers}
        assert seen.path == "/v1/models?limit=1000"
        assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-own", "2023-06-01")
        assert "authorization" not in headers
        limits = await setting.book.load(ServedModel("t", "default", "m"))
        assert (limits.input, limits.output) == (200_000, 64_000)


async def test_a_version_that_the_client_names_is_sent() -> None:
    async with opened(formats=frozenset({"messages"})) as setting:
        headers = [(b"x-api-key", b"sk-client"), (b"Anthropic-Version", b"2099-01-01")]
        setting.discovery.notice("t", setting.upstream, "m", headers)
        await setting.settle()
        [seen] = setting.asked
        versions = [value for name, value in seen.headers if name.lower() == "anthropic-version"]
        assert versions == ["2099-01-01"]
