"""Redis that is slow, stalled, cut off, full, emptied or odd: nothing is wrong, and little is lost.

`near` comes through a proxy, `far` does not.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.store.backends import Held, Key, User, head, seal
from tests.store.redis.servers import two_processes
from tests.toy.redis_server import RedisServer, requires_redis
from tests.toy.running import wait_until
from tests.toy.slow_proxy import SlowProxy

pytestmark = requires_redis
PIVOT = Key("pivot", "1")


@dataclass(frozen=True)
class Place:
    server: RedisServer
    proxy: SlowProxy
    near: User
    far: User


@asynccontextmanager
async def opened(timeout_ms: int = 10_000) -> AsyncIterator[Place]:
    """Patient, so that a busy machine is not taken for a slow server."""
    async with two_processes(timeout_ms) as setting:
        yield Place(setting.server, setting.proxy, User(setting.near), User(setting.far))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


async def until_read(user: User, key: Key, value: bytes | None) -> None:
    async def is_read() -> bool:
        return await user.read(key) == value

    await until(is_read)


# Records


async def test_whatever_is_looked_up_in_one_moment_costs_one_round_trip_and_only_what_is_found_travels() -> (
    None
):
    async with opened() as place:
        for number in (70, 80, 90):
            await place.far.put_durable(head(number), bytes(5_000))
        await place.near.read(head(0))
        place.proxy.count()
        heads, pivots = [[Key(kind, str(number)) for number in range(100)] for kind in ("head", "pivot")]
        looking = asyncio.create_task(place.near.get_groups([heads, pivots, heads[75:], []]))
        await asyncio.gather(*map(place.near.read, pivots[:9]))
        found = await looking
        assert [each and each[0] for each in found] == [heads[70], None, heads[80], None]
        traffic = place.proxy.count()
        assert traffic.turns == 1 and traffic.to_client_bytes < 2 * 5_400


async def test_own_writes_stand_before_what_the_server_has() -> None:
    async with opened() as place:
        keys = [head(number) for number in range(4)]
        await place.far.put_durable(keys[1], b"far")
        await place.far.put_durable(keys[3], b"last")
        place.near.put(keys[2], b"near")
        assert await place.near.get(*keys) == (keys[1], b"far")
        place.near.drop(keys[1])
        assert await place.near.get(*keys) == (keys[2], b"near")
        place.near.drop(keys[2])
        assert await place.near.get(*keys) == (keys[3], b"last")


async def test_damaged_and_foreign_values_count_as_absent(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as place:
        keys = [head(number) for number in range(5)]
        planted: list[tuple[str | bytes, ...]] = [
            ("LPUSH", f"gateway1:{keys[0].stored}", "x"),
            ("SET", f"gateway1:{keys[1].stored}", "damaged"),
            ("SET", f"gateway1:{keys[2].stored}", seal(keys[4], b"good")),
            ("SET", f"gateway1:{keys[4].stored}", seal(keys[4], b"good")),
            ("SET", f"gateway2:{keys[3].stored}", "of another version"),
        ]
        await place.server.run_all(planted)
        assert await place.near.get(*keys) == (keys[4], b"good")
        assert [await place.near.read(each) for each in keys[:4]] == [None] * 4
        assert await place.near.take(keys[0]) is None
        for key in keys[:2]:
            assert await place.near.put_new(key, b"ours") == b"ours"
            await until_read(place.far, key, b"ours")
        assert await place.server.run("GET", f"gateway2:{keys[3].stored}") == b"of another version"
    # One line of each process.
    assert len(caplog.records) == 2 and caplog.text.count("counts as absent") == 2


# Keys of two tenants with equal names: the value says whose it is.
_KEYS = [head(number, owner) for owner in ("one", "two") for number in range(6)]
_STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, len(_KEYS) - 1), min_size=1, max_size=4),
        st.sampled_from(["read", "cancel at once", "cancel later", "write", "cut", "stall"]),
    ),
    min_size=1,
    max_size=30,
)


def value_of(key: Key) -> bytes:
    return f"{key.owner} {key.name}".encode()


@examples(5, exhaustive=100)
@given(steps=_STEPS, seed=st.integers(0, 1 << 16))
def test_no_value_is_ever_returned_for_a_wrong_key(steps: list[tuple[list[int], str]], seed: int) -> None:
    asyncio.run(_interleave(steps, random.Random(seed)))


async def _interleave(steps: list[tuple[list[int], str]], drawn: random.Random) -> None:
    async with opened(100) as place:
        for key in _KEYS[::2]:
            await place.far.put_durable(key, value_of(key))
        await asyncio.gather(
            *(_step(place, [_KEYS[at] for at in places], verb, drawn) for places, verb in steps)
        )
        place.proxy.delay_seconds = 0
        await until_read(place.near, _KEYS[0], value_of(_KEYS[0]))
        for key in _KEYS[::2]:
            assert await place.near.read(key) in (value_of(key), None)


async def _step(place: Place, keys: Sequence[Key], verb: str, drawn: random.Random) -> None:
    await asyncio.sleep(drawn.random() / 100)
    match verb:
        case "write":
            for key in keys:
                place.near.put(key, value_of(key))
        case "cut":
            await place.proxy.cut()
        case "stall":
            place.proxy.stall()
            await asyncio.sleep(0.01)
            place.proxy.delay_seconds = 0
        case _:
            reading = asyncio.create_task(place.near.get_groups([[key] for key in keys]))
            if verb != "read":
                await asyncio.sleep(0 if verb == "cancel at once" else drawn.random() / 500)
                reading.cancel()
            (found,) = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(found, list):
                assert all(each is None or each[1] == value_of(each[0]) for each in found)


async def test_what_a_purged_tenant_leaves_on_the_server_is_nothing() -> None:
    async with opened() as place:
        for owner in ("one", "two"):
            await place.near.put_durable(head(1, owner))
            await place.near.put_durable(Key("taken", "c:1", owner))
            await place.near.claim("1", owner=owner)
        before = await place.server.list_keys()
        place.near.put(head(2, "one"))
        assert await place.near.delete("one") == 3
        tag = head(1, "one").stored.partition("{")[2].partition("}")[0]
        assert await place.server.list_keys() == [name for name in before if tag not in name]


# Away


async def test_a_server_that_is_away_costs_one_wait_and_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with opened(100) as place:
        await place.far.put_durable(head(1), b"far")
        place.proxy.stall()
        await asyncio.gather(*(place.near.read(head(number)) for number in range(30)))
        for number in range(30):
            assert await place.near.read(head(number)) is None
            await place.near.put_durable(Key("pivot", str(number)))
        assert await place.near.get(head(1), Key("pivot", "3")) == (Key("pivot", "3"), b"x")
        place.proxy.delay_seconds = 0
        await wait_until(lambda: "is back" in caplog.text)
        await until_read(place.far, Key("pivot", "29"), b"x")
    words = [record.getMessage().partition("/0 ")[2] for record in caplog.records]
    assert words[0] == "is away (it does not answer in time): state is in memory until it is back"
    assert words[1].startswith("is back after") and len(words) == 2


async def test_what_was_written_while_it_was_away_reaches_others_later_and_what_is_new_replaces_nothing() -> (
    None
):
    async with opened() as place:
        await place.proxy.refuse()
        place.near.put(head(1), b"early")
        assert await place.near.put_new(PIVOT, b"alone") == b"alone"
        assert await place.near.put_new(PIVOT, b"again") == b"alone"
        assert await place.far.read(head(1)) is None
        await place.far.put_durable(PIVOT, b"together")
        await place.proxy.start()
        await until_read(place.far, head(1), b"early")
        await until_read(place.near, PIVOT, b"together")
        assert await place.far.read(PIVOT) == b"together"


async def test_a_record_that_waits_here_is_taken_once_even_without_the_server() -> None:
    async with opened() as place:
        await place.proxy.refuse()
        place.near.put(Key("marker", "1"), b"m")
        assert [await place.near.take(Key("marker", "1")) for _ in range(2)] == [b"m", None]
        place.near.put(head(1), b"behind it")
        await place.proxy.start()
        await until_read(place.far, head(1), b"behind it")
        assert await place.far.read(Key("marker", "1")) is None


async def test_a_server_that_came_back_empty_is_noticed_and_gets_what_is_written_again() -> None:
    async with opened() as place:
        await place.near.put_durable(head(1), b"old")
        near, far = place.near.missed, place.far.missed
        await place.server.run("FLUSHALL")
        await wait_until(lambda: place.near.missed > near and place.far.missed > far)
        place.near.put(head(1), b"again")
        await until_read(place.far, head(1), b"again")
        near = place.near.missed
        await place.server.restart_empty()
        await wait_until(lambda: place.near.missed > near)
        place.near.put(head(1), b"once more")
        await until_read(place.far, head(1), b"once more")


async def test_a_full_server_costs_one_line_and_gets_everything_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with opened() as place:
        await place.far.put_durable(head(1), b"1")
        await place.server.run("CONFIG", "SET", "maxmemory", "1")
        for number in range(10):
            await place.near.put_durable(Key("pivot", str(number)))
        place.near.drop(Key("pivot", "0"))
        assert await place.near.read(head(1)) == b"1" and await place.far.read(PIVOT) is None
        await place.server.run("CONFIG", "SET", "maxmemory", "0")
        await until_read(place.far, Key("pivot", "9"), b"x")
        assert await place.far.read(Key("pivot", "0")) is None
    assert [record.getMessage().partition("/0 ")[2] for record in caplog.records] == [
        "takes no writes (its memory is full): records wait in memory",
        "takes writes again",
    ]


async def test_what_never_reached_the_server_is_counted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as place:
        await place.proxy.refuse()
        place.near.put(head(1))
        place.near.put(head(2))
        await asyncio.wait_for(place.near.store.close(), 30)
    assert ": 2 records could not be written" in caplog.text


# Leases


async def test_a_lease_that_another_had_meanwhile_never_writes_again() -> None:
    """All of a tenant share the counter of fences, and an older lease must not move it back."""
    async with opened() as place:
        older, lost = await place.near.hold_lease("3"), await place.near.hold_lease("0")
        await place.server.run("DEL", f"gateway1:{lost.key}")
        newer = await place.far.hold_lease("0")
        assert not await place.near.put_under(lost, PIVOT, b"late")
        assert await place.far.put_under(newer, PIVOT, b"good")
        await place.far.release(newer)

        async def is_free() -> bool:
            return not await place.server.run("EXISTS", f"gateway1:{lost.key}")

        await until(is_free)
        assert await place.near.renew(older)
        assert not await place.near.renew(lost)
        assert not await place.near.put_under(lost, PIVOT, b"late")
        assert await place.near.read(PIVOT) == b"good"


async def test_a_lease_outlives_a_server_that_lost_everything() -> None:
    async with opened() as place:
        lease = await place.near.hold_lease("1")
        await place.server.run("FLUSHALL")
        assert await place.near.renew(lease)
        assert isinstance(await place.far.claim("1"), Held)
        assert await place.near.put_under(lease, PIVOT, b"good")


async def test_without_the_server_a_process_goes_on_alone_and_overwrites_nothing_later() -> None:
    async with opened() as place:
        await place.far.hold_lease("1")
        held = await place.near.find_holder("1")
        waiting = asyncio.create_task(place.near.until_free(held))
        await place.proxy.refuse()
        await asyncio.wait_for(waiting, 30)
        lease = await place.near.hold_lease("1")
        assert lease.fence == 0 and await place.near.renew(lease)
        for key in (PIVOT, Key("pivot", "2")):
            assert await place.near.put_under(lease, key, b"alone")
            assert await place.near.read(key) == b"alone"
        await place.far.put_durable(PIVOT, b"together")
        await place.proxy.start()
        await until_read(place.near, PIVOT, b"together")
        await place.near.release(lease)
        assert await place.far.read(PIVOT) == b"together"
        await until_read(place.far, Key("pivot", "2"), b"alone")


async def test_a_write_in_the_middle_of_which_the_server_is_lost_is_kept() -> None:
    async with opened(100) as place:
        lease = await place.near.hold_lease("1")
        place.proxy.stall()
        assert await place.near.put_under(lease, PIVOT, b"kept")
        assert await place.near.read(PIVOT) == b"kept"
        place.proxy.delay_seconds = 0
        await until_read(place.far, PIVOT, b"kept")


# News


async def test_a_lost_connection_may_have_lost_news_and_they_go_on_after_it() -> None:
    async with opened() as place:
        before, far = place.near.missed, place.far.missed
        await place.proxy.refuse()
        await place.near.put_durable(PIVOT, b"made alone")
        place.near.publish("pivot")
        await place.proxy.start()
        await wait_until(lambda: place.near.missed > before and place.far.missed > far)
        await until_read(place.far, PIVOT, b"made alone")
        async with asyncio.timeout(30):
            while not place.near.heard:
                place.far.publish("pivot")
                await asyncio.sleep(0.01)
