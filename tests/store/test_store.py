"""The contract: what all stores do alike, the toy of a shared store among them."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store import Store, StoreError, open_bounded_store, open_store
from gateway.store.disk import DiskStore
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from tests.examples import examples
from tests.store.clock import Clock
from tests.store.served.serving import ServedInMemory
from tests.toy.redis_server import requires_redis
from tests.toy.shared_store import ToyServer

# Time is in the hands of the tests. Expiry on a server is tested with the server.
LOCAL_KINDS = ("disk", "memory", "shared", "served")
KINDS = (*LOCAL_KINDS, pytest.param("redis", marks=requires_redis))


def make_store(kind: str, directory: Path, clock: Clock) -> Store:
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "served":
        return ServedInMemory(clock)
    if kind == "shared":
        return ToyServer(clock).connect()
    return DiskStore(directory / "store", linger_seconds=0.01, clock=clock)


@contextlib.asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=KINDS)
def closed_store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Store:
    if request.param == "redis":
        return open_store(request.getfixturevalue("empty_redis").patient_url)
    return make_store(request.param, tmp_path, clock)


@pytest.fixture
async def store(closed_store: Store) -> AsyncIterator[Store]:
    async with opened(closed_store) as store:
        yield store


async def flush(store: Store) -> None:
    await store.write_durably("flush:1", b"", keep_seconds=1e6)


async def test_a_record_is_read_at_once_and_after_the_flush(store: Store) -> None:
    store.write("head:1", b"\x00\xffone", keep_seconds=60)
    assert await store.read("head:1") == b"\x00\xffone"
    await flush(store)
    assert await store.read("head:1") == b"\x00\xffone"
    assert await store.read("head:2") is None


@pytest.mark.parametrize("size", [0, 1, 5_000, (1 << 20) - 36, 1 << 20, 3 << 20])
async def test_values_of_every_size_come_back_whole(store: Store, size: int) -> None:
    value = random.Random(size).randbytes(size)
    await store.write_durably("head:big", value, keep_seconds=60)
    assert await store.read("head:big") == value
    await store.write_durably("head:big", b"small", keep_seconds=60)
    assert await store.read("head:big") == b"small"


async def test_the_record_of_the_first_key_that_exists_is_read(store: Store) -> None:
    for number in (3, 5, 7):
        store.write(f"head:{number}", b"%d" % number, keep_seconds=60)
    await flush(store)
    store.write("head:6", b"6", keep_seconds=60)
    store.delete("head:5")
    assert await store.read_first(["head:9", "head:7", "head:3"]) == ("head:7", b"7")
    assert await store.read_first(["head:5", "head:6", "head:7"]) == ("head:6", b"6")
    assert await store.read_first(["head:5", "head:3", "head:6"]) == ("head:3", b"3")
    assert await store.read_first([f"none:{number}" for number in range(1_000)]) is None
    assert await store.read_first([]) is None


@pytest.mark.parametrize("closed_store", LOCAL_KINDS, indirect=True)
async def test_an_expired_record_is_absent(store: Store, clock: Clock) -> None:
    await store.write_durably("head:short", b"1", keep_seconds=10)
    await store.write_durably("head:long", b"2", keep_seconds=100)
    store.write("head:never", b"3", keep_seconds=0)
    clock.now += 9
    assert await store.read("head:short") == b"1"
    clock.now += 2
    assert await store.read("head:short") is None
    assert await store.read_first(["head:never", "head:short", "head:long"]) == ("head:long", b"2")
    assert await store.scan("head:") == [("head:long", b"2")]


@pytest.mark.parametrize("closed_store", LOCAL_KINDS, indirect=True)
async def test_an_expired_rewrite_hides_the_older_record(store: Store, clock: Clock) -> None:
    await store.write_durably("head:1", b"old", keep_seconds=1_000)
    store.write("head:1", b"new", keep_seconds=1)
    # Where the clock is another process's, it has the record by now.
    assert await store.read("head:1") == b"new"
    clock.now += 2
    assert await store.read("head:1") is None
    await flush(store)
    assert await store.read("head:1") is None


async def test_a_scan_finds_exactly_the_prefix(store: Store) -> None:
    for key in ("a:1", "b:1", "b:2", "b:~", "c:1", "b", "B:1"):
        store.write(key, key.encode(), keep_seconds=60)
    await flush(store)
    store.write("b:3", b"b:3", keep_seconds=60)
    store.delete("b:1")
    assert await store.scan("b:") == [(key, key.encode()) for key in ("b:2", "b:3", "b:~")]
    assert await store.scan("d") == []


async def test_writes_and_deletes_of_one_key_keep_their_order(store: Store) -> None:
    store.write("head:1", b"1", keep_seconds=60)
    store.delete("head:1")
    assert await store.read("head:1") is None
    store.delete("head:2")
    store.write("head:2", b"2", keep_seconds=60)
    await flush(store)
    assert await store.read("head:1") is None
    assert await store.read("head:2") == b"2"


async def test_a_closed_store_ignores_writes_and_refuses_durable_ones(store: Store) -> None:
    await store.close()
    store.write("head:1", b"1", keep_seconds=60)
    store.delete("head:1")
    assert await store.read("head:1") is None
    assert await store.scan("") == []
    with pytest.raises(StoreError):
        await store.write_durably("head:1", b"1", keep_seconds=60)
    await store.close()


@pytest.mark.parametrize("key", ["", "head:ä", "head:\n", "head:\ud800"])
async def test_a_key_is_printable_ascii(store: Store, key: str) -> None:
    with pytest.raises(ValueError):
        store.write(key, b"1", keep_seconds=60)


async def test_many_durable_writes_at_once_all_return(store: Store) -> None:
    keys = [f"pivot:{number % 50}" for number in range(200)]
    await asyncio.gather(*(store.write_durably(key, key.encode(), keep_seconds=60) for key in keys))
    assert len(await store.scan("pivot:")) == 50


_KEYS = st.sampled_from(["a:1", "a:2", "b:1", "b:2"])
# The disk takes the time from its own clock once more. With halves of seconds here and whole ones that pass,
# a pause of the machine between the two does not change which records have expired.
_SECONDS = st.sampled_from([1.5, 10.5, 100.5])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _KEYS, st.binary(max_size=8), _SECONDS),
        st.tuples(st.just("durable"), _KEYS, st.binary(max_size=8), _SECONDS),
        st.tuples(st.just("delete"), _KEYS, st.just(b""), st.just(0)),
        st.tuples(st.just("later"), st.just(""), st.just(b""), st.sampled_from([1, 5, 50])),
        st.tuples(st.just("flush"), st.just(""), st.just(b""), st.just(0)),
    ),
    max_size=15,
)


@pytest.mark.parametrize("kind", LOCAL_KINDS)
@examples(20, exhaustive=60)
@given(steps=_STEPS, asked=st.permutations(["a:1", "a:2", "b:1", "b:2"]))
def test_a_store_is_a_dictionary_with_expiry(
    kind: str, steps: list[tuple[str, str, bytes, float]], asked: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_compare_with_dictionary(kind, Path(directory), steps, asked))


async def _compare_with_dictionary(
    kind: str, directory: Path, steps: list[tuple[str, str, bytes, float]], asked: list[str]
) -> None:
    clock = Clock()
    model: dict[str, tuple[bytes, float]] = {}
    async with opened(make_store(kind, directory, clock)) as store:
        for verb, key, value, seconds in steps:
            clock.now += 0.001
            match verb:
                case "write":
                    store.write(key, value, keep_seconds=seconds)
                    model[key] = value, clock.now + seconds
                case "durable":
                    await store.write_durably(key, value, keep_seconds=seconds)
                    model[key] = value, clock.now + seconds
                case "delete":
                    store.delete(key)
                    model.pop(key, None)
                case "later":
                    clock.now += seconds
                case "flush":
                    await flush(store)
            alive = {key: value for key, (value, until) in model.items() if until > clock.now}
            first = next(((key, alive[key]) for key in asked if key in alive), None)
            assert await store.read_first(asked) == first
        assert await store.scan("a:") == sorted(item for item in alive_items(model, clock) if item[0] < "b")


def alive_items(model: dict[str, tuple[bytes, float]], clock: Clock) -> list[tuple[str, bytes]]:
    return [(key, value) for key, (value, until) in model.items() if until > clock.now]


def test_a_url_names_the_kind_of_store(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    assert isinstance(open_store(f"disk:{tmp_path}/x"), DiskStore)


async def test_a_bounded_store_is_in_the_same_place_and_separate(tmp_path: Path) -> None:
    url = f"disk:{tmp_path}/state"
    async with opened(open_store(url)) as state, opened(open_bounded_store(url, "more", 1 << 20)) as more:
        assert isinstance(more, DiskStore) and (tmp_path / "state" / "more" / "cache.db").exists()
        await state.write_durably("head:1", b"state", keep_seconds=60)
        await more.write_durably("head:1", b"more", keep_seconds=60)
        assert [await state.read("head:1"), await more.read("head:1")] == [b"state", b"more"]


async def test_in_memory_a_bounded_store_drops_the_oldest(tmp_path: Path) -> None:
    async with opened(open_bounded_store("memory:", "more", 10_000)) as store:
        for number in range(20):
            store.write(f"head:{number:02}", bytes(1_000), keep_seconds=60)
        assert [key for key, _ in await store.scan("")] == [f"head:{number}" for number in range(13, 20)]


@pytest.mark.parametrize("url", ["", "disk:", "disk", "memory:x", "file:/x", "/tmp/x"])
def test_an_unknown_url_lists_the_forms(url: str) -> None:
    with pytest.raises(StoreError, match=r"disk:PATH or memory:"):
        open_store(url)


async def test_groups_are_looked_up_together(store: Store) -> None:
    store.write("head:1", b"one", keep_seconds=60)
    store.write("pivot:2", b"two", keep_seconds=60)
    groups = [["head:2", "head:1"], ["pivot:1"], ["pivot:1", "pivot:2"], []]
    assert await store.read_groups(groups) == [("head:1", b"one"), None, ("pivot:2", b"two"), None]


async def test_what_is_written_first_stays_where_a_new_record_is_wanted(store: Store) -> None:
    assert await store.write_new("pivot:1", b"first", keep_seconds=60) == b"first"
    assert await store.write_new("pivot:1", b"second", keep_seconds=60) == b"first"
    assert await store.read("pivot:1") == b"first"


async def test_a_record_is_taken_once(store: Store) -> None:
    store.write("marker:1", b"m", keep_seconds=60)
    assert await store.take("marker:1") == b"m"
    assert await store.take("marker:1") is None
    assert await store.read("marker:1") is None


async def test_a_purge_takes_the_records_of_one_tag(store: Store) -> None:
    one, other = make_tag("one"), make_tag("other")
    for tag in (one, other):
        for kind in ("head", "pivot", "turn"):
            store.write(make_key(tag, kind, "00"), b"x", keep_seconds=60)
    await flush(store)
    store.write(make_key(one, "head", "01"), b"x", keep_seconds=60)
    assert await store.purge(one) == 4
    assert [key for key, _ in await store.scan("") if one in key] == []
    assert len([key for key, _ in await store.scan("") if other in key]) == 3
