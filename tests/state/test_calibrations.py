from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.store.memory import MemoryStore
from tests.builders.state import make_state, make_store

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


async def test_what_is_learned_while_the_store_is_asked_is_not_lost() -> None:
    class SlowStore(MemoryStore):
        async def read(self, key: str) -> bytes | None:
            found = await super().read(key)
            calibrations.save_learned("up", "model", _LEARNED)
            return found

    store = SlowStore()
    await store.open()
    calibrations = make_state(store).calibrations
    assert await calibrations.load_learned("t", "up", "model") == _LEARNED


async def test_the_keys_are_those_of_the_version_before() -> None:
    store = await make_store()
    calibrations = make_state(store).calibrations
    calibrations.save("t", _METER, Calibration(2.0, 1))
    calibrations.save_learned("up", "model", _LEARNED)
    assert [key for key, _ in await store.scan("")] == [
        "calibration:f308a95ca1216783302d256b35595c1a5278d6d057e7ba0e61085e79967f5d21",
        "learned:a158e660208e5b86bde0081d7b62ff132c2e35cb5906c56cd5db22fc24b5cd8c",
    ]
