import asyncio

from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.state import State
from gateway.store.keys import make_tag
from tests.builders.state import make_state, make_store, stored_key
from tests.toy.shared_store import ToyServer

_METER = Meter("up", "model", "tiktoken")
_LEARNED = Learned(owner="t", proven=Limits(context=8_000), created_seconds=1.0)


async def test_calibrations_are_kept_for_each_tenant_upstream_model_and_estimator() -> None:
    store = await make_store()
    known = Calibration(2.5, 3, (2.5, 2.4, 2.6))
    make_state(store).calibrations.save("t", _METER, known)
    after = make_state(store).calibrations
    assert after.find("t", _METER) == Calibration()
    assert await after.load("t", _METER) == known
    assert after.find("t", _METER) == known
    others = [
        ("u", _METER),
        ("t", Meter("upm", "odel", "tiktoken")),
        ("t", Meter("up", "other", "tiktoken")),
        ("t", Meter("up", "model", "chars")),
    ]
    for owner, other in others:
        assert await after.load(owner, other) == Calibration()
        assert after.find(owner, other) == Calibration()


async def test_what_refusals_taught_survives_a_restart_and_belongs_to_its_tenant() -> None:
    store = await make_store()
    make_state(store).calibrations.save_learned("up", "model", _LEARNED)
    after = make_state(store).calibrations
    assert after.find_learned("t", "up", "model") == Learned(owner="t")
    assert await after.load_learned("t", "up", "model") == _LEARNED
    assert after.find_learned("t", "up", "model") == _LEARNED
    for owner, upstream, model in [("u", "up", "model"), ("t", "upm", "odel"), ("t", "up", "m")]:
        assert await after.load_learned(owner, upstream, model) == Learned(owner=owner)


async def test_the_keys_are_those_of_the_version_before() -> None:
    store = await make_store()
    calibrations = make_state(store).calibrations
    calibrations.save("t", _METER, Calibration(2.0, 1))
    calibrations.save_learned("up", "model", _LEARNED)
    assert [key for key, _ in await store.scan("")] == [
        stored_key("calibration", "f308a95ca1216783302d256b35595c1a5278d6d057e7ba0e61085e79967f5d21"),
        stored_key("learned", "a158e660208e5b86bde0081d7b62ff132c2e35cb5906c56cd5db22fc24b5cd8c"),
    ]


async def open_states(count: int) -> list[State]:
    """Of several processes."""
    server, states = ToyServer(), []
    for _ in range(count):
        store = server.connect()
        await store.open()
        states.append(make_state(store))
    return states


async def test_what_one_process_has_begun_to_calibrate_the_others_go_on_with() -> None:
    here, there = await open_states(2)
    assert await there.calibrations.load("t", _METER) == Calibration()
    first = Calibration().with_sample(1_500, 1_000)
    here.calibrations.save("t", _METER, first)
    await asyncio.sleep(0)
    assert there.calibrations.find("t", _METER) == Calibration()
    assert await there.calibrations.load("t", _METER) == first
    assert await there.calibrations.load("u", _METER) == Calibration()


async def test_of_two_calibrations_the_one_of_more_samples_counts() -> None:
    here, there = await open_states(2)
    one = Calibration().with_sample(1_500, 1_000)
    two = Calibration().with_sample(2_000, 1_000).with_sample(2_000, 1_000)
    there.calibrations.save("t", _METER, two)
    here.calibrations.save("t", _METER, one)
    await asyncio.sleep(0)
    assert await there.calibrations.load("t", _METER) == two
    assert await here.calibrations.load("t", _METER) in (one, two)


async def test_a_limit_that_one_process_has_learned_holds_for_the_others_of_this_tenant() -> None:
    here, there = await open_states(2)
    assert await there.calibrations.load_learned("t", "up", "m") == Learned(owner="t")
    known = Learned(owner="t").with_proof(Limits(context=9_000), 5.0)
    before = there.calibrations.learned_elsewhere
    here.calibrations.save_learned("up", "m", known)
    await asyncio.sleep(0)
    assert there.calibrations.learned_elsewhere == before + 1
    assert await there.calibrations.load_learned("t", "up", "m") == known
    assert await there.calibrations.load_learned("u", "up", "m") == Learned(owner="u")


async def test_what_is_learned_here_while_the_store_is_asked_is_not_overwritten() -> None:
    (state,) = await open_states(1)
    loading = asyncio.create_task(state.calibrations.load_learned("t", "up", "m"))
    await asyncio.sleep(0)
    known = Learned(owner="t").with_proof(Limits(context=9_000), 5.0)
    state.calibrations.save_learned("up", "m", known)
    assert await loading == known


async def test_a_tenants_calibrations_are_forgotten() -> None:
    (state,) = await open_states(1)
    state.calibrations.save("t", _METER, Calibration().with_sample(1_500, 1_000))
    state.calibrations.forget(make_tag("u"))
    assert state.calibrations.find("t", _METER).samples == 1
    state.calibrations.forget(make_tag("t"))
    assert state.calibrations.find("t", _METER) == Calibration()
