"""Every source of limits, for several tenants, and after a restart."""

import logging
from dataclasses import replace

import pytest
from pydantic import SecretStr

from gateway.core.limits.model_limits import Limits
from gateway.limits.book import LimitsBook, ServedModel
from gateway.limits.model_lists import ModelLists
from gateway.limits.model_table import ModelTable
from gateway.settings import ModelRule, Settings, UpstreamSettings, load_settings
from gateway.store.memory import MemoryStore
from gateway.tenants import make_tenant_id
from tests.builders.settings import make_tenant
from tests.builders.state import make_state
from tests.store.clock import Clock

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
    store: MemoryStore | None = None, clock: Clock | None = None, settings: Settings = SETTINGS
) -> LimitsBook:
    if store is None:
        store = MemoryStore()
        await store.open()
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


async def test_loaded_limits_are_kept_until_something_new_is_learned_or_listed() -> None:
    book = await make_book()
    loaded = await book.load(ServedModel("t", "up", "known"))
    assert await book.load(ServedModel("t", "up", "known")) is loaded
    book.learn(ServedModel("t", "up", "known"), Limits(context=100_000))
    assert (await book.load(ServedModel("t", "up", "known"))).context == 100_000
    book.learn_unknown(ServedModel("t", "up", "other"), 50_000)
    assert (await book.load(ServedModel("t", "up", "other"))).context == 45_000
    book.keep_list("t", "up", {"known": Limits(context=90_000)})
    assert (await book.load(ServedModel("t", "up", "known"))).context == 90_000


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


async def test_a_list_shown_to_the_gateways_own_key_holds_for_all_tenants() -> None:
    book = await make_book()
    book.keep_list("", "keyed", {"m": Limits(context=9_000)})
    assert (await book.load(ServedModel("a", "keyed", "m"))).context == 9_000
    assert (await book.load(ServedModel("b", "keyed", "m"))).context == 9_000


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
    store = MemoryStore()
    await store.open()
    before = await make_book(store)
    before.learn(ServedModel("t", "up", "m"), Limits(context=8_000))
    before.learn_unknown(ServedModel("t", "up", "n"), 50_000)
    after = await make_book(store)
    assert (await after.load(ServedModel("t", "up", "m"))).context == 8_000
    assert (await after.load(ServedModel("t", "up", "n"))).context == 45_000
    assert (await after.load(ServedModel("u", "up", "m"))).context is None


async def test_limits_are_found_in_memory_until_the_sources_are_due_again() -> None:
    clock = Clock()
    book = await make_book(clock=clock)
    served = ServedModel("t", "up", "known")
    assert book.find(served) is None
    loaded = await book.load(served)
    clock.now += 299
    assert book.find(served) == loaded
    clock.now += 2
    assert book.find(served) is None


async def test_numbers_take_the_place_of_a_guess() -> None:
    book = await make_book()
    book.learn_unknown(ServedModel("t", "up", "m"), 50_000)
    book.learn(ServedModel("t", "up", "m"), Limits(context=64_000))
    assert (await book.load(ServedModel("t", "up", "m"))).context == 64_000


async def test_the_long_window_has_limits_and_proofs_of_its_own() -> None:
    book, sonnet = await make_book(), "claude-sonnet-4-5"
    book.learn(ServedModel("t", "up", sonnet), Limits(context=200_000))
    assert (await book.load(ServedModel("t", "up", sonnet, has_long_window=True))).context == 1_000_000
    assert (await book.load(ServedModel("t", "up", sonnet))).context == 200_000
    book.learn(ServedModel("t", "up", sonnet, has_long_window=True), Limits(context=150_000))
    assert (await book.load(ServedModel("t", "up", sonnet, has_long_window=True))).context == 150_000
    assert (await book.load(ServedModel("t", "up", sonnet))).context == 200_000


async def test_bytes_and_images_that_an_upstream_accepts_are_part_of_the_limits() -> None:
    book = await make_book()
    limits = await book.load(ServedModel("t", "up", "known"))
    assert (limits.body_bytes, limits.images) == (5_000_000, 8)
    limits = await book.load(ServedModel("t", "keyed", "known"))
    assert (limits.body_bytes, limits.images) == (None, None)


async def test_nothing_is_learned_about_a_name_that_is_too_long() -> None:
    book, name = await make_book(), "m" * 257
    book.learn(ServedModel("t", "up", name), Limits(context=8_000))
    book.learn_unknown(ServedModel("t", "up", name), 50_000)
    assert (await book.load(ServedModel("t", "up", name))).context is None


async def test_many_names_do_not_displace_what_holds() -> None:
    book = await make_book()
    for number in range(5_000):
        await book.load(ServedModel("t", "up", f"set-{number}"))
    assert (await book.load(ServedModel("t", "up", "set-0"))).context == 50_000


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
        await book.load(ServedModel("t", upstream.name, "unknown"))
        await book.load(ServedModel("t", upstream.name, "known"))
    assert caplog.text.count("no limits known for model 'unknown'") == 1
    assert caplog.text.count("no limits known") == 1


async def test_an_upstream_that_fails_once_keeps_its_list() -> None:
    book = await make_book()
    book.keep_list("t", "up", {"m": Limits(context=9_000)})
    book.keep_no_list("t", "up")
    assert (await book.load(ServedModel("t", "up", "m"))).context == 9_000


async def test_whether_the_window_is_configured() -> None:
    book = await make_book(
        settings=replace(
            SETTINGS,
            models=(
                ModelRule(match="here", upstream="up", context=8_000),
                ModelRule(match="output-only", output=8_000),
            ),
        )
    )
    assert book.is_configured("t", "up", "here")
    assert not book.is_configured("t", "quiet", "here")
    assert not book.is_configured("t", "up", "output-only")
    assert not book.is_configured("t", "up", "other")


async def test_a_rule_that_fits_but_for_its_case_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = (ModelRule(match="qwen*", context=50_000), ModelRule(match="gpt.*", context=50_000))
    book = await make_book(settings=replace(SETTINGS, models=rules))
    for model in ("Qwen3", "Qwen3", "gpt-x", "qwen2", "other"):
        for owner in ("a", "b"):
            await book.load(ServedModel(owner, "quiet", model))
    named = [record.getMessage() for record in caplog.records if "the rule with match" in record.getMessage()]
    assert len(named) == 2
    assert "'qwen*'" in named[0] and "'Qwen3'" in named[0] and "case counts" in named[0]
    assert "'gpt.*'" in named[1] and "'gpt-x'" in named[1]


async def test_made_up_models_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    book = await make_book()
    for number in range(600):
        await book.load(ServedModel("t", "quiet", f"made-up-{number}"))
    assert len(caplog.records) == 500


async def test_the_source_of_a_window_is_named() -> None:
    book = await make_book()
    book.keep_list("t", "up", {"listed": Limits(context=9_000)})
    book.learn(ServedModel("t", "up", "proven"), Limits(context=8_000))
    sources = {
        model: book.name_source(ServedModel("t", "up", model))
        for model in ("set-1", "listed", "proven", "known", "unknown")
    }
    assert list(sources.values()) == ["configured", "upstream", "learned", "table", "unknown"]
    assert (
        book.name_source(ServedModel("t", "up", "claude-sonnet-4-5", has_long_window=True)) == "beta header"
    )
