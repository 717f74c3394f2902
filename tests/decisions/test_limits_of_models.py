"""Where the window of a model comes from, and for which tenant."""

import json
import logging
from dataclasses import replace

import pytest
from pydantic import SecretStr

from gateway.bounds.background import BackgroundTasks
from gateway.core.limits.model_limits import Limits
from gateway.http.client import Client
from gateway.limits.book import LimitsBook, ModelLists, ModelTable, ServedModel
from gateway.limits.discovery import Discovery
from gateway.settings import ModelRule, Settings, UpstreamSettings, load_settings
from gateway.store.interface import Store
from gateway.tenants import make_tenant_id
from tests.builders.settings import make_tenant
from tests.builders.state import make_state, make_store
from tests.store.clock import Clock
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.upstream import Seen, ToyUpstream

DAY = 86_400.0
TABLE = ModelTable(
    {"known": Limits(context=128_000, output=16_384), "claude-sonnet-4-5": Limits(context=200_000)}
)
UPSTREAM = load_settings(None, {}).upstreams["default"]
FORWARDING = replace(UPSTREAM, name="up", max_body_bytes=5_000_000, max_images=8)
WITH_KEY = replace(UPSTREAM, name="keyed", api_key=SecretStr("k"))
QUIET = replace(UPSTREAM, name="quiet", discover=False)
SETTINGS = replace(
    load_settings(None, {}),
    upstreams={each.name: each for each in (FORWARDING, WITH_KEY, QUIET)},
    models=(ModelRule(match="set-*", context=50_000),),
)


async def make_book(
    store: Store | None = None, clock: Clock | None = None, settings: Settings = SETTINGS
) -> LimitsBook:
    store = store if store is not None else await make_store()
    calibrations = make_state(store, keep_seconds=60 * DAY).calibrations
    return LimitsBook(settings, ModelLists(), TABLE, calibrations, clock or Clock())


async def test_configuration_stands_before_list_proof_and_table() -> None:
    book = await make_book()
    book.keep_list("t", "up", {"set-1": Limits(context=9_000), "known": Limits(context=64_000)})
    book.learn(ServedModel("t", "up", "set-1"), Limits(context=8_000))
    assert (await book.load(ServedModel("t", "up", "set-1"))).context == 50_000
    listed = await book.load(ServedModel("t", "up", "known"))
    assert (listed.context, listed.output) == (64_000, 16_384)


async def test_a_proof_below_the_listed_limit_holds_and_never_raises_a_configured_one() -> None:
    book = await make_book()
    book.keep_list("t", "up", {"m": Limits(context=128_000)})
    book.learn(ServedModel("t", "up", "m"), Limits(context=65_536))
    book.learn(ServedModel("t", "up", "set-1"), Limits(context=900_000))
    assert (await book.load(ServedModel("t", "up", "m"))).context == 65_536
    assert (await book.load(ServedModel("t", "up", "set-1"))).context == 50_000


async def test_limits_are_looked_up_again_after_a_while() -> None:
    clock = Clock()
    book = await make_book(clock=clock)
    book.learn(ServedModel("t", "up", "m"), Limits(context=8_000))
    await book.load(ServedModel("t", "up", "m"))
    clock.now += 6.9 * DAY
    assert (await book.load(ServedModel("t", "up", "m"))).context == 8_000
    clock.now += 0.2 * DAY
    assert (await book.load(ServedModel("t", "up", "m"))).context is None


async def test_limits_that_one_tenant_learns_or_is_shown_do_not_hold_for_another() -> None:
    book = await make_book()
    book.learn(ServedModel("a", "up", "m"), Limits(context=8_000))
    book.learn_unknown(ServedModel("a", "up", "n"), 50_000)
    book.keep_list("a", "up", {"listed": Limits(context=9_000)})
    for model in ("m", "n", "listed"):
        assert (await book.load(ServedModel("a", "up", model))).context is not None
        assert (await book.load(ServedModel("b", "up", model))).context is None
        assert (await book.load(ServedModel("a", "quiet", model))).context is None


async def test_a_list_shown_to_a_tenants_own_key_holds_for_this_tenant_alone() -> None:
    settings = replace(SETTINGS, tenants=(make_tenant(upstream="keyed", api_key=SecretStr("own")),))
    book = await make_book(settings=settings)
    book.keep_list(make_tenant_id("a"), "keyed", {"m": Limits(context=64_000)})
    assert (await book.load(ServedModel(make_tenant_id("a"), "keyed", "m"))).context == 64_000
    assert (await book.load(ServedModel("t", "keyed", "m"))).context is None


async def test_a_tenants_own_rule_comes_before_those_for_all() -> None:
    rules = (ModelRule(match="set-1", context=9_000), ModelRule(match="set-*", policy="default"))
    settings = replace(SETTINGS, tenants=(make_tenant(upstream="up", models=rules),))
    book = await make_book(settings=settings)
    own = make_tenant_id("a")
    assert (await book.load(ServedModel(own, "up", "set-1"))).context == 9_000
    assert (await book.load(ServedModel(own, "up", "set-2"))).context == 50_000
    assert (await book.load(ServedModel("t", "up", "set-1"))).context == 50_000
    assert book.is_configured(own, "up", "set-1")


async def test_learned_limits_survive_a_restart() -> None:
    store = await make_store()
    before = await make_book(store)
    before.learn(ServedModel("t", "up", "m"), Limits(context=8_000))
    before.learn_unknown(ServedModel("t", "up", "n"), 50_000)
    after = await make_book(store)
    assert (await after.load(ServedModel("t", "up", "m"))).context == 8_000
    assert (await after.load(ServedModel("t", "up", "n"))).context == 45_000
    assert (await after.load(ServedModel("u", "up", "m"))).context is None


async def test_the_long_window_has_limits_and_proofs_of_its_own() -> None:
    book, sonnet = await make_book(), "claude-sonnet-4-5"
    book.learn(ServedModel("t", "up", sonnet), Limits(context=200_000))
    assert (await book.load(ServedModel("t", "up", sonnet, has_long_window=True))).context == 1_000_000
    assert (await book.load(ServedModel("t", "up", sonnet))).context == 200_000
    book.learn(ServedModel("t", "up", sonnet, has_long_window=True), Limits(context=150_000))
    assert (await book.load(ServedModel("t", "up", sonnet, has_long_window=True))).context == 150_000
    assert (await book.load(ServedModel("t", "up", sonnet))).context == 200_000


@pytest.mark.parametrize("upstream", [FORWARDING, QUIET], ids=lambda upstream: upstream.name)
async def test_unknown_limits_are_logged_once_when_no_list_is_expected_any_more(
    upstream: UpstreamSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock()
    book = await make_book(clock=clock)
    await book.load(ServedModel("t", upstream.name, "unknown"))
    assert ("no limits known" in caplog.text) is not upstream.discover
    book.keep_no_list("t", upstream.name)
    for _ in range(3):
        clock.now += DAY
        for model in ("unknown", "known"):
            await book.load(ServedModel("t", upstream.name, model))
    assert caplog.text.count("no limits known for model 'unknown'") == 1
    assert caplog.text.count("no limits known") == 1


async def test_a_rule_that_fits_but_for_its_case_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = (ModelRule(match="qwen*", context=50_000), ModelRule(match="gpt.*", context=50_000))
    book = await make_book(settings=replace(SETTINGS, models=rules))
    for model in ("Qwen3", "Qwen3", "gpt-x", "qwen2", "other"):
        for owner in ("a", "b"):
            await book.load(ServedModel(owner, "quiet", model))
    named = [record.getMessage() for record in caplog.records if "the rule with match" in record.getMessage()]
    assert ["'qwen*'" in line and "'Qwen3'" in line for line in named] == [True, False]
    assert ["'gpt.*'" in line and "'gpt-x'" in line for line in named] == [False, True]


# The table


_TABLE = ModelTable.load()
_GPT_4O = Limits(context=128_000, output=16_384)
_GPT_5 = Limits(context=400_000, input=272_000, output=128_000)
_SONNET_4 = Limits(context=200_000, output=64_000)


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        ("gpt-4o", _GPT_4O),
        ("openai/gpt-4o", _GPT_4O),
        ("some-router/openai/gpt-4o", _GPT_4O),
        ("openai.gpt-4o", _GPT_4O),
        ("gpt-5-mini", _GPT_5),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", _SONNET_4),
        ("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0", _SONNET_4),
        ("models/gemini-2.5-pro", Limits(context=1_048_576, output=65_535)),
    ],
)
def test_a_model_is_known_by_its_name_with_and_without_prefixes(model: str, limits: Limits) -> None:
    assert _TABLE.find(model) == limits


def test_the_longest_name_that_is_in_the_table_wins() -> None:
    table = ModelTable({"x/m": Limits(context=1), "m": Limits(context=2), "anthropic.m": Limits(context=3)})
    assert table.find("y/x/m") == Limits(context=1)
    assert table.find("y/m") == Limits(context=2)
    assert table.find("eu.anthropic.m") == Limits(context=3)
    assert table.find("meta.m") == Limits(context=2)


# What an upstream is asked for


HOP_BY_HOP = {"content-type", "content-length", "idempotency-key", "x-hop", "x-gateway-session", "cookie"}


def client_headers(key: str) -> list[tuple[bytes, bytes]]:
    own = [(b"Authorization", b"Bearer " + key.encode()), (b"X-Org", b"acme"), (b"Content-Length", b"12")]
    dropped = [(b"Content-Type", b"application/json"), (b"Idempotency-Key", b"once"), (b"X-Hop", b"1")]
    return [*own, *dropped, (b"Connection", b"close, x-hop"), (b"X-Gateway-Session", b"s")]


@pytest.mark.parametrize("own_key", [None, "sk-own"])
async def test_an_upstream_gets_the_headers_of_a_client_only_where_its_key_is_the_clients(
    own_key: str | None,
) -> None:
    """And the list that one client's key is shown holds for nobody else."""
    windows = {"Bearer sk-a": 4_096, "Bearer sk-b": 16_384, "Bearer sk-own": 9_000}

    def answer(seen: Seen) -> RawAnswer:
        window = windows[dict(seen.headers)["Authorization"]]
        listed = {"data": [{"id": "m", "max_model_len": window}]}
        return RawAnswer(pieces=(json.dumps(listed).encode(),), headers=(("Set-Cookie", "a=1; Path=/"),))

    async with ToyUpstream() as toy:
        toy.intercept = answer
        key = SecretStr(own_key) if own_key is not None else None
        upstream = replace(UPSTREAM, base_url=toy.base_url, api_key=key)
        book = await make_book(settings=replace(SETTINGS, upstreams={"default": upstream}))
        async with Client() as client:
            discovery = Discovery(book, client, tasks := BackgroundTasks("asking"), Clock())
            for owner in ("a", "b"):
                discovery.notice(owner, upstream, "m", client_headers(f"sk-{owner}"))
                await tasks.finish()
            await tasks.close()
        found = [(await book.load(ServedModel(owner, "default", "m"))).context for owner in ("a", "b", "c")]
        sent = [{name.lower(): value for name, value in seen.headers} for seen in toy.requests]
    assert found == ([4_096, 16_384, None] if own_key is None else [9_000] * 3)
    assert [each.get("x-org") for each in sent] == (["acme"] * 2 if own_key is None else [None])
    assert all(HOP_BY_HOP.isdisjoint(each) for each in sent)


@pytest.mark.parametrize(
    "failure",
    [
        RawAnswer(status=401, pieces=(b"{}",)),
        RawAnswer(status=500, pieces=(b'{"data": [{"id": "m", "max_model_len": 5}]}',)),
        RawAnswer(pieces=(b'{"data": []}',), length=False, delivery=Delivery(ending="abort")),
    ],
    ids=["401", "500", "broken off"],
)
async def test_it_is_asked_again_after_an_hour_and_after_a_failure_in_five_minutes(
    failure: RawAnswer,
) -> None:
    """The list that it gave before holds meanwhile."""
    listed = b'{"data": [{"id": "m", "max_model_len": %d}]}'
    waits = ((0, 4_096, 1), (3_500, 8_192, 1), (200, 8_192, 2), (3_610, 0, 3), (290, 0, 3), (20, 9_000, 4))
    found = []
    async with ToyUpstream() as toy, Client() as client:
        upstream, clock = replace(UPSTREAM, base_url=toy.base_url), Clock()
        book = await make_book(clock=clock, settings=replace(SETTINGS, upstreams={"default": upstream}))
        discovery = Discovery(book, client, tasks := BackgroundTasks("asking"), clock)
        for later, window, asked in waits:
            clock.now += later
            answer = RawAnswer(pieces=(listed % window,)) if window else failure
            toy.raw_answers["GET", "/v1/models"] = answer
            for _ in range(2):
                discovery.notice("t", upstream, "m", client_headers("sk-a"))
                await tasks.finish()
            assert len(toy.requests) == asked
            found.append((await book.load(ServedModel("t", "default", "m"))).context)
        await tasks.close()
    assert found == [4_096, 4_096, 8_192, 8_192, 8_192, 9_000]
