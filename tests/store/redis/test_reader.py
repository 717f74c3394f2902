"""Reads: one round trip, this process's own writes in front, and never a value of another key."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.record import render_record
from gateway.store.redis.store import RedisStore
from tests.examples import examples
from tests.store.redis.servers import key, opened, proxied, two_processes
from tests.toy.redis_server import RedisServer, requires_redis
from tests.toy.slow_proxy import SlowProxy

pytestmark = requires_redis


async def test_groups_of_any_size_cost_one_round_trip_and_only_what_is_found_travels() -> None:
    async with two_processes() as setting:
        for number in (70, 80, 90):
            await setting.far.write_durably(key("head", number), bytes(5_000), keep_seconds=60)
        await setting.near.read(key("head", 0))
        setting.proxy.count()
        heads, pivots = [[key(kind, number) for number in range(100)] for kind in ("head", "pivot")]
        found = await setting.near.read_groups([heads, pivots, heads[75:], []])
        assert [each and each[0] for each in found] == [heads[70], None, heads[80], None]
        traffic = setting.proxy.count()
        assert traffic.turns == 1 and traffic.to_client_bytes < 2 * 5_200


async def test_own_writes_are_in_front_of_what_the_server_has() -> None:
    async with two_processes() as setting:
        keys = [key("head", number) for number in range(4)]
        await setting.far.write_durably(keys[1], b"far", keep_seconds=60)
        await setting.far.write_durably(keys[3], b"last", keep_seconds=60)
        setting.near.write(keys[2], b"near", keep_seconds=60)
        assert await setting.near.read_first(keys) == (keys[1], b"far")
        setting.near.delete(keys[1])
        assert await setting.near.read_first(keys) == (keys[2], b"near")
        setting.near.delete(keys[2])
        assert await setting.near.read_first(keys) == (keys[3], b"last")


async def test_while_the_server_is_away_own_writes_are_all_there_is() -> None:
    async with two_processes() as setting:
        await setting.far.write_durably(key("head", 1), b"far", keep_seconds=60)
        await setting.proxy.refuse()
        setting.near.write(key("head", 2), b"near", keep_seconds=60)
        keys = [key("head", 1), key("head", 2)]
        assert await setting.near.read_first(keys) == (keys[1], b"near")
        assert await setting.near.read(keys[0]) is None


async def test_damaged_and_foreign_values_count_as_absent(caplog: pytest.LogCaptureFixture) -> None:
    async with two_processes() as setting:
        keys = [key("head", number) for number in range(5)]
        record = render_record(keys[4], b"good")
        await setting.server.run_all(
            [
                ("LPUSH", f"gateway1:{keys[0]}", "x"),
                ("SET", f"gateway1:{keys[1]}", "damaged"),
                ("SET", f"gateway1:{keys[2]}", record),  # of another key
                ("SET", f"gateway1:{keys[4]}", record),
            ]
        )
        assert await setting.near.read_first(keys) == (keys[4], b"good")
        assert [await setting.near.read(each) for each in keys[:4]] == [None] * 4
        assert await setting.near.take(keys[0]) is None
    assert len(caplog.records) == 1 and "counts as absent" in caplog.text


async def test_very_many_keys_are_asked_for_in_parts() -> None:
    async with two_processes() as setting:
        keys = [key("head", number) for number in range(1_200)]
        await setting.far.write_durably(keys[-1], b"last", keep_seconds=60)
        assert await setting.near.read_first(keys) == (keys[-1], b"last")
        assert await setting.near.read_first(keys[:-1]) is None


async def test_a_list_is_read_without_looking_at_all_keys() -> None:
    async with two_processes() as setting:
        for number in (3, 1, 2):
            setting.far.write(key("taken", f"one:{number}"), b"%d" % number, keep_seconds=60)
        await setting.far.write_durably(key("taken", "other:1"), b"x", keep_seconds=60)
        setting.near.write(key("taken", "one:4"), b"4", keep_seconds=60)
        setting.far.delete(key("taken", "one:2"))
        await setting.far.write_durably(key("head", 1), b"x", keep_seconds=60)
        found = await setting.near.scan(key("taken", "one:"))
        assert found == [(key("taken", f"one:{number}"), b"%d" % number) for number in (1, 3, 4)]
        assert "scan" not in await setting.server.count_calls()


async def test_any_other_prefix_is_found_too() -> None:
    async with two_processes() as setting:
        for number in range(3):
            await setting.far.write_durably(f"odd[{number}]", b"x", keep_seconds=60)
        assert [found for found, _ in await setting.near.scan("odd[1")] == ["odd[1]"]
        assert len(await setting.near.scan("")) == 3


# Keys of two tenants with equal names: the value says whose it is.
_NAMES = [(owner, number) for owner in ("one", "two") for number in range(6)]
_STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, len(_NAMES) - 1), min_size=1, max_size=4),
        st.sampled_from(["read", "cancel at once", "cancel later", "write", "cut", "stall"]),
    ),
    min_size=1,
    max_size=30,
)


@examples(8, exhaustive=100)
@given(steps=_STEPS, seed=st.integers(0, 1 << 16))
def test_no_value_is_ever_returned_for_a_wrong_key(steps: list[tuple[list[int], str]], seed: int) -> None:
    asyncio.run(_interleave(steps, random.Random(seed)))


async def _interleave(steps: list[tuple[list[int], str]], drawn: random.Random) -> None:
    async with proxied(100) as (server, proxy, address), opened(RedisStore(address)) as store:
        for owner, number in _NAMES[::2]:
            await store.write_durably(*_record(owner, number), keep_seconds=60)
        readers = [asyncio.create_task(_step(store, proxy, *step, drawn)) for step in steps]
        await asyncio.gather(*readers)
        await _check_whole(server, store, proxy)


def _record(owner: str, number: int) -> tuple[str, bytes]:
    return key("head", number, owner), f"{owner} {number}".encode()


async def _step(
    store: RedisStore, proxy: SlowProxy, places: Sequence[int], verb: str, drawn: random.Random
) -> None:
    await asyncio.sleep(drawn.random() / 100)
    records = dict(_record(*_NAMES[place]) for place in places)
    match verb:
        case "write":
            for name, value in records.items():
                store.write(name, value, keep_seconds=60)
        case "cut":
            await proxy.cut()
        case "stall":
            proxy.stall()
            await asyncio.sleep(0.01)
            proxy.delay_seconds = 0
        case _:
            reading = asyncio.create_task(store.read_groups([[name] for name in records]))
            if verb != "read":
                await asyncio.sleep(0 if verb == "cancel at once" else drawn.random() / 500)
                reading.cancel()
            (found,) = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(found, list):
                assert all(each is None or records[each[0]] == each[1] for each in found)


async def _check_whole(server: RedisServer, store: RedisStore, proxy: SlowProxy) -> None:
    """Once the server is back, every record that was written is there, under its own key."""
    proxy.delay_seconds = 0
    first = _record(*_NAMES[0])
    async with asyncio.timeout(30):
        while await store.read(first[0]) != first[1]:
            await asyncio.sleep(0.01)
    for owner, number in _NAMES[::2]:
        name, value = _record(owner, number)
        assert await store.read(name) in (value, None)


async def test_a_reply_that_comes_too_late_reaches_nobody() -> None:
    async with two_processes(timeout_ms=100) as setting:
        one, two = _record("one", 1), _record("two", 1)
        await setting.far.write_durably(*one, keep_seconds=60)
        await setting.far.write_durably(*two, keep_seconds=60)
        setting.proxy.delay_seconds = 0.3
        assert await setting.near.read(one[0]) is None
        setting.proxy.delay_seconds = 0
        found: list[bytes | None] = []

        async def look() -> None:
            while not found or found[-1] is None:
                found.append(await setting.near.read(two[0]))
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), 30)
        assert set(found) == {None, two[1]} or found == [two[1]]


async def test_what_a_store_without_its_server_was_given_reaches_others_later() -> None:
    async with two_processes() as setting:
        await setting.proxy.refuse()
        setting.near.write(key("head", 1), b"early", keep_seconds=60)
        assert await setting.near.read(key("head", 1)) == b"early"
        assert await setting.far.read(key("head", 1)) is None
        await setting.proxy.start()
        async with asyncio.timeout(30):
            while await setting.far.read(key("head", 1)) != b"early":
                await asyncio.sleep(0.01)
