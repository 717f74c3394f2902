"""The contract of records: what every store does alike, for one process and for several.

The same sentences hold in memory, on disk, for workers of one folder, and on Redis.
"""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.store.backends import SHARED, TIMED, Backend, Key, StoreError, User, head
from tests.toy.running import wait_until

shared = pytest.mark.parametrize("place", SHARED, indirect=True)
timed = pytest.mark.parametrize("place", TIMED, indirect=True)


async def flush(user: User) -> None:
    await user.put_durable(Key("flush", "1"), b"", 1e6)


async def test_a_record_is_read_at_once_and_after_it_was_written(user: User) -> None:
    user.put(head(1), b"\x00\xffone")
    assert await user.read(head(1)) == b"\x00\xffone"
    await flush(user)
    assert await user.read(head(1)) == b"\x00\xffone"
    assert await user.read(head(2)) is None


@pytest.mark.parametrize("size", [0, 1, 5_000, (1 << 20) - 36, 1 << 20, 3 << 20])
async def test_values_of_every_size_come_back_whole(user: User, size: int) -> None:
    value = random.Random(size).randbytes(size)
    await user.put_durable(head("big"), value)
    assert await user.read(head("big")) == value
    await user.put_durable(head("big"), b"small")
    assert await user.read(head("big")) == b"small"


async def test_the_first_key_that_has_a_record_is_found(user: User) -> None:
    for number in (3, 5, 7):
        user.put(head(number), b"%d" % number)
    await flush(user)
    user.put(head(6), b"6")
    user.drop(head(5))
    assert await user.get(head(9), head(7), head(3)) == (head(7), b"7")
    assert await user.get(head(5), head(6), head(7)) == (head(6), b"6")
    assert await user.get(head(5), head(3), head(6)) == (head(3), b"3")
    assert await user.get(*(Key("none", str(number)) for number in range(1_200))) is None
    assert await user.get(*(Key("none", str(number)) for number in range(1_200)), head(3)) is not None
    assert await user.get() is None


async def test_several_look_ups_are_answered_together_and_each_by_itself(user: User) -> None:
    user.put(head(1), b"one")
    user.put(Key("pivot", "2"), b"two")
    groups = [[head(2), head(1)], [Key("pivot", "1")], [Key("pivot", "1"), Key("pivot", "2")], []]
    assert await user.get_groups(groups) == [(head(1), b"one"), None, (Key("pivot", "2"), b"two"), None]


async def test_a_record_of_one_tenant_or_kind_is_none_of_another(user: User) -> None:
    await user.put_durable(head(1), b"mine")
    await user.put_durable(head(1, "other"), b"theirs")
    assert await user.read(head(1)) == b"mine"
    assert await user.read(head(1, "other")) == b"theirs"
    for foreign in (head(1, "tenan"), head(1, "tenant1"), Key("pivot", "1"), head(11)):
        assert await user.read(foreign) is None
    assert await user.list_all("head") == [("1", b"mine")]


@timed
async def test_an_expired_record_is_absent(backend: Backend, user: User) -> None:
    await user.put_durable(head("short"), b"1", 10)
    await user.put_durable(head("long"), b"2", 100)
    user.put(head("never"), b"3", 0)
    backend.clock.now += 9
    assert await user.read(head("short")) == b"1"
    backend.clock.now += 2
    assert await user.read(head("short")) is None
    assert await user.take(head("short")) is None
    assert await user.get(head("never"), head("short"), head("long")) == (head("long"), b"2")
    assert await user.list_all("head") == [("long", b"2")]


@timed
async def test_an_expired_rewrite_hides_the_older_record(backend: Backend, user: User) -> None:
    await user.put_durable(head(1), b"old", 1_000)
    user.put(head(1), b"new", 1)
    # Where the clock is another process's, it has the record by now.
    assert await user.read(head(1)) == b"new"
    backend.clock.now += 2
    assert await user.read(head(1)) is None
    await flush(user)
    assert await user.read(head(1)) is None


async def test_a_list_has_exactly_the_records_of_its_kind_and_tenant(user: User) -> None:
    for kind, name in (("a", "1"), ("b", "1"), ("b", "2"), ("b", "~"), ("c", "1"), ("B", "1"), ("bb", "1")):
        user.put(Key(kind, name), name.encode())
    user.put(Key("b", "9", "other"))
    await flush(user)
    user.put(Key("b", "3"), b"3")
    user.drop(Key("b", "1"))
    assert await user.list_all("b") == [(name, name.encode()) for name in ("2", "3", "~")]
    assert await user.list_all("d") == []


async def test_a_list_of_one_conversation_has_its_records_alone(user: User) -> None:
    for name in ("c:1", "c:2", "c:3", "d:1", "cc:1"):
        await user.put_durable(Key("taken", name), name.encode())
    user.drop(Key("taken", "c:2"))
    user.put(Key("taken", "c:4"), b"queued")
    assert await user.list_all("taken", group="c") == [("1", b"c:1"), ("3", b"c:3"), ("4", b"queued")]
    assert await user.list_all("taken", "other", group="c") == []


async def test_writes_and_deletes_of_one_key_keep_their_order(user: User) -> None:
    user.put(head(1), b"1")
    user.drop(head(1))
    assert await user.read(head(1)) is None
    user.drop(head(2))
    user.put(head(2), b"2")
    await flush(user)
    assert [await user.read(head(number)) for number in (1, 2)] == [None, b"2"]


@pytest.mark.parametrize("place", ["memory", "disk", *SHARED[1:]], indirect=True)
async def test_a_write_behind_a_durable_one_is_the_later_one(user: User) -> None:
    waiting = asyncio.create_task(user.put_durable(head(1), b"durable"))
    await asyncio.sleep(0)
    user.put(head(1), b"later")
    await waiting
    await flush(user)
    assert await user.read(head(1)) == b"later"


async def test_a_closed_store_ignores_writes_and_refuses_durable_ones(user: User) -> None:
    await user.put_durable(head(1), b"1")
    await user.store.close()
    user.put(head(1), b"2")
    user.drop(head(1))
    assert await user.read(head(1)) is None and await user.list_all("head") == []
    with pytest.raises(StoreError):
        await user.put_durable(head(1), b"2")
    await user.store.close()


@pytest.mark.parametrize("name", ["ä", "\n", "\ud800"])
async def test_a_name_is_printable_ascii(user: User, name: str) -> None:
    with pytest.raises(ValueError):
        user.put(head(name))


async def test_many_durable_writes_at_once_all_return(user: User) -> None:
    names = [str(number % 50) for number in range(200)]
    await asyncio.gather(*(user.put_durable(Key("pivot", name), name.encode()) for name in names))
    assert len(await user.list_all("pivot")) == 50


async def test_what_is_written_first_stays_where_a_new_record_is_wanted(user: User) -> None:
    assert await user.put_new(Key("pivot", "1"), b"first") == b"first"
    assert await user.put_new(Key("pivot", "1"), b"second") == b"first"
    assert await user.read(Key("pivot", "1")) == b"first"


async def test_a_record_is_taken_once(user: User) -> None:
    user.put(Key("marker", "1"), b"m")
    assert await user.take(Key("marker", "1")) == b"m"
    assert await user.take(Key("marker", "1")) is None
    assert await user.read(Key("marker", "1")) is None


async def test_deleting_a_tenant_takes_its_records_also_queued_ones_and_no_others(user: User) -> None:
    for owner in ("one", "other"):
        for kind in ("head", "pivot", "turn"):
            user.put(Key(kind, "00", owner))
    await flush(user)
    user.put(head("01", "one"))
    assert await user.delete("one") == 4
    await flush(user)
    left = [
        await user.list_all(kind, owner) for owner in ("one", "other") for kind in ("head", "pivot", "turn")
    ]
    assert left == [[]] * 3 + [[("00", b"x")]] * 3
    assert await user.delete("one") == 0


async def test_a_tenant_that_was_deleted_may_begin_anew(user: User) -> None:
    await user.put_durable(head(1), b"old")
    await user.delete()
    await user.put_durable(head(1), b"new")
    assert await user.read(head(1)) == b"new"


# Several processes


@pytest.mark.parametrize("place", ["disk", *SHARED], indirect=True)
async def test_what_one_process_has_written_durably_another_reads(backend: Backend) -> None:
    one, other = await backend.connect_two()
    for value in (b"", b"\x00\xff", bytes(3 << 20)):
        await one.put_durable(head(1), value)
        assert await other.read(head(1)) == value
    other.drop(head(1))
    await flush(other)
    assert await one.read(head(1)) is None


@pytest.mark.parametrize("place", ["disk", *SHARED], indirect=True)
async def test_writes_of_two_processes_at_once_are_all_kept(backend: Backend) -> None:
    users = await backend.connect_two()
    jobs = [
        user.put_durable(Key("pivot", f"{number}.{at}"), b"x" * number)
        for number in range(100)
        for at, user in enumerate(users)
    ]
    await asyncio.gather(*jobs)
    assert [len(await user.list_all("pivot")) for user in users] == [200, 200]


@shared
async def test_of_many_that_take_a_record_one_gets_it(backend: Backend) -> None:
    users = await backend.connect_two()
    await users[0].put_durable(Key("marker", "1"), b"m")
    taken = await asyncio.gather(*(user.take(Key("marker", "1")) for user in users * 20))
    assert [each for each in taken if each is not None] == [b"m"]


@shared
async def test_of_many_new_records_the_first_one_counts_for_all(backend: Backend) -> None:
    users = await backend.connect_two()
    key = Key("pivot", "1")
    writes = [user.put_new(key, b"%d" % number) for number, user in enumerate(users * 20)]
    found = set(await asyncio.gather(*writes))
    assert len(found) == 1 and {await user.read(key) for user in users} == found


@shared
async def test_news_reach_all_others_behind_what_they_are_about(backend: Backend) -> None:
    one, other, third = [await backend.connect() for _ in range(3)]
    key = Key("pivot", "1")
    seen: list[asyncio.Task[bytes | None]] = []
    for user in (other, third):
        user.store.news.subscribe(lambda *_, user=user: seen.append(asyncio.ensure_future(user.read(key))))
    one.put(key, b"made")
    one.publish("pivot 0a 1b")
    await wait_until(lambda: len(seen) == 2)
    assert await asyncio.gather(*seen) == [b"made", b"made"]
    assert (one.heard, other.heard, third.heard) == ([], ["pivot 0a 1b"], ["pivot 0a 1b"])
    assert {user.missed for user in (one, other, third)} == {one.missed}


# The whole as a dictionary

_NAMES = st.sampled_from(["1", "2", "3", "4"])
# The disk takes the time from its own clock once more. With halves of seconds here and whole ones that pass,
# a pause of the machine between the two does not change which records have expired.
_SECONDS = st.sampled_from([1.5, 10.5, 100.5])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _NAMES, st.binary(max_size=8), _SECONDS),
        st.tuples(st.just("durable"), _NAMES, st.binary(max_size=8), _SECONDS),
        st.tuples(st.just("delete"), _NAMES, st.just(b""), st.just(0)),
        st.tuples(st.just("later"), st.just(""), st.just(b""), st.sampled_from([1, 5, 50])),
        st.tuples(st.just("flush"), st.just(""), st.just(b""), st.just(0)),
    ),
    max_size=15,
)


@pytest.mark.parametrize("kind", TIMED)
@examples(12, exhaustive=60)
@given(steps=_STEPS, asked=st.permutations(["1", "2", "3", "4"]))
def test_a_store_is_a_dictionary_with_expiry(
    kind: str, steps: list[tuple[str, str, bytes, float]], asked: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_compare_with_dictionary(Backend(kind, Path(directory)), steps, asked))


async def _compare_with_dictionary(
    backend: Backend, steps: list[tuple[str, str, bytes, float]], asked: list[str]
) -> None:
    user, clock = await backend.connect(), backend.clock
    model: dict[str, tuple[bytes, float]] = {}
    for verb, name, value, seconds in steps:
        clock.now += 0.001
        match verb:
            case "write":
                user.put(head(name), value, seconds)
                model[name] = value, clock.now + seconds
            case "durable":
                await user.put_durable(head(name), value, seconds)
                model[name] = value, clock.now + seconds
            case "delete":
                user.drop(head(name))
                model.pop(name, None)
            case "later":
                clock.now += seconds
            case _:
                await flush(user)
        alive = {name: value for name, (value, until) in model.items() if until > clock.now}
        first = next(((head(name), alive[name]) for name in asked if name in alive), None)
        assert await user.get(*map(head, asked)) == first
        assert await user.list_all("head") == sorted(alive.items())
    await backend.close()
