"""What every store promises: records, leases, counters, news and purges, whatever keeps them."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from gateway.store.interface import HeldLease, Key, Lease, Lookup, Unknown, Unusable
from tests.store.backends import KINDS, OTHER_TAG, TAG, Place, Process
from tests.toy.running import wait_until


@pytest.fixture(params=KINDS)
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The server is started before there is a loop."""
    url = request.getfixturevalue("empty_redis").patient_url if request.param == "redis" else ""
    return Place(request.param, tmp_path, url)


@pytest.fixture
async def both(somewhere: Place) -> AsyncIterator[tuple[Process, Process]]:
    async with somewhere.two() as processes:
        yield processes


@pytest.fixture
async def one(somewhere: Place) -> AsyncIterator[Process]:
    async with somewhere.process() as process:
        yield process


def head(name: str, tag: str = TAG) -> Key:
    return Key(tag, "head", name)


# Records


async def test_what_is_put_is_seen_at_once_and_by_others_in_a_moment(both: tuple[Process, Process]) -> None:
    one, other = both
    one.store.put(head("1"), b"first", 60)
    assert await one.get("1") == b"first"
    await one.keep("2")
    assert await other.get("1") == b"first"


async def test_the_first_name_that_exists_is_found_whether_it_is_written_or_waits(one: Process) -> None:
    await one.keep("3", b"written")
    one.store.put(head("2"), b"waits", 60, linger=60)
    one.store.put(head("4"), b"waits, too", 60, linger=60)
    assert (await one.find("1", "2", "3", "4")) == ("2", b"waits")
    assert (await one.find("3", "2")) == ("3", b"written")
    assert (await one.find("1", "4")) == ("4", b"waits, too")
    assert await one.find("0", "1") is None
    assert await one.find() is None


async def test_several_kinds_are_found_in_one_call(one: Process) -> None:
    await one.keep("a", b"1")
    await one.store.put_durable(Key(TAG, "pivot", "b"), b"2", 60)
    lookups = [Lookup("pivot", ["a", "b"]), Lookup("batch", ["a"]), Lookup("head", ["b", "a"])]
    assert await one.store.get(TAG, lookups, wait=10) == [("b", b"2"), None, ("a", b"1")]


async def test_the_newest_of_each_key_is_kept(both: tuple[Process, Process]) -> None:
    one, other = both
    for number in range(50):
        one.store.put(head("a"), b"%d" % number, 60)
        one.store.put(head("b"), b"%d" % number, 60)
        if number % 7 == 0:
            await asyncio.sleep(0)
    one.store.drop(head("b"))
    one.store.put(head("c"), b"c", 60)
    one.store.drop(head("c"))
    one.store.put(head("c"), b"again", 60)
    assert (await one.get("a"), await one.get("b"), await one.get("c")) == (b"49", None, b"again")
    await one.keep("end")
    assert (await other.get("a"), await other.get("b"), await other.get("c")) == (b"49", None, b"again")


async def test_what_came_before_a_durable_write_is_written_with_it(both: tuple[Process, Process]) -> None:
    one, other = both
    one.store.put(head("before"), b"x", 60, linger=3_600)
    await one.keep("end")
    assert await other.get("before") == b"x"


async def test_any_bytes_under_any_printable_name_come_back_as_they_were(
    both: tuple[Process, Process],
) -> None:
    one, other = both
    names = ["a/b:c", "~!{}*?[x]", "%41", "'--\"", "x" * 300]
    values = [b"", b"\0", bytes(range(256)), random.Random(1).randbytes(1 << 20), b"\n\r"]
    for name, value in zip(names, values, strict=True):
        await one.keep(name, value)
    assert [await other.get(name) for name in names] == values


async def test_a_record_ends_with_its_lifetime(one: Process) -> None:
    one.store.put(head("a"), b"x", 0.05)
    await one.store.put_durable(head("b"), b"x", 0.05)
    await one.keep("c")
    await asyncio.sleep(0.1)
    assert [await one.get(name) for name in "abc"] == [None, None, b"x"]
    assert [record.key.name for record in await one.store.list("head", TAG)] == ["c"]


async def test_what_is_there_stays_if_it_is_written_only_where_nothing_is(
    both: tuple[Process, Process],
) -> None:
    one, other = both
    assert await one.store.put_durable(head("a"), b"1", 60, if_absent=True) == b"1"
    assert await other.store.put_durable(head("a"), b"2", 60, if_absent=True) == b"1"
    assert await other.store.put_durable(head("a"), b"3", 60, lease=Lease(TAG, "alone", 0)) == b"1"
    assert await other.store.put_durable(head("a"), b"4", 60) == b"4"
    assert await one.get("a") == b"4"


async def test_of_many_who_take_a_record_one_gets_it(both: tuple[Process, Process]) -> None:
    await both[0].keep("a")
    taken = await asyncio.gather(*(both[at % 2].store.take(head("a"), wait=10) for at in range(10)))
    assert sorted(taken, key=bool) == [None] * 9 + [b"x"]
    assert await both[0].get("a") is None


async def test_what_waits_is_taken_as_well(one: Process) -> None:
    one.store.put(head("a"), b"x", 60, linger=60)
    assert await one.store.take(head("a"), wait=10) == b"x"
    assert await one.store.take(head("a"), wait=10) is None


async def test_lists_have_a_kind_an_owner_or_a_group_of_it_and_what_waits(one: Process) -> None:
    await one.keep("a", group="g")
    await one.keep("b", group="h")
    await one.keep("c", tag=OTHER_TAG, group="g")
    await one.keep("d", group="g")
    await one.store.put_durable(Key(TAG, "pivot", "e"), b"x", 60, group="g")
    one.store.put(head("f"), b"waits", 60, group="g", linger=60)
    one.store.drop(head("d"))

    async def list_names(*place: str) -> list[str]:
        return sorted(record.key.name for record in await one.store.list("head", *place, wait=10))

    assert await list_names() == ["a", "b", "c", "f"]
    assert await list_names(TAG) == ["a", "b", "f"]
    assert await list_names(TAG, "g") == ["a", "f"]
    records = {record.key: record for record in await one.store.list("head", TAG, wait=10)}
    assert records[head("f")] == (head("f"), "g", b"waits")
    assert records[head("b")].group == "h"


async def test_a_closed_store_takes_nothing_and_knows_nothing(somewhere: Place) -> None:
    async with somewhere.process() as process:
        await process.keep("a")
    process.store.put(head("b"), b"x", 60)
    with pytest.raises(Unknown):
        await process.get("a")
    with pytest.raises(Unusable):
        await process.keep("c")
    assert await process.store.claim(TAG, "branch", ttl=1) == Lease(TAG, "branch", 0)


async def test_a_name_that_is_not_printable_ascii_is_refused_and_hurts_nothing_else(one: Process) -> None:
    for name in ("\ud800", "a\nb", "ü"):
        with pytest.raises(ValueError, match="printable ASCII"):
            one.store.put(head(name), b"x", 60)
        with pytest.raises(ValueError, match="printable ASCII"):
            one.store.put(head("a"), b"x", 60, group=name)
        with pytest.raises(ValueError, match="printable ASCII"):
            one.store.publish(TAG, name)
    await one.keep("a")


async def test_many_records_at_once_are_all_written_before_the_end(somewhere: Place) -> None:
    async with somewhere.two() as (one, other):
        for number in range(3_000):
            one.store.put(head(str(number)), b"x" * 100, 60, group=f"g{number % 3}")
        await one.keep("end")
        assert len(await other.store.list("head", TAG, "g1", wait=30)) == 1_000


# Purges


def has_heard(process: Process, group: str | None) -> bool:
    """Of one purge, and no other."""
    return process.heard.purges == [(TAG, group)]


async def test_a_purge_takes_all_of_an_owner_and_nothing_else(both: tuple[Process, Process]) -> None:
    one, other = both
    for number in range(1_200):
        one.store.put(head(str(number)), b"x", 60, group=f"g{number % 2}")
    await one.keep("theirs", tag=OTHER_TAG)
    await one.lease()
    assert await other.store.delete(TAG) == 1_200
    assert await one.store.list("head", TAG, wait=10) == []
    assert await one.get("theirs", tag=OTHER_TAG) == b"x"
    for process in both:
        await wait_until(partial(has_heard, process, None))
    await other.lease()
    # The owner's new life.
    await one.keep("1", b"new")
    assert await other.get("1") == b"new"


async def test_a_group_goes_alone(both: tuple[Process, Process]) -> None:
    one, other = both
    await one.keep("a", group="g")
    await one.keep("b", group="h")
    await one.keep("c", tag=OTHER_TAG, group="g")
    assert await other.store.delete(TAG, "g") == 1
    assert [await one.get("a"), await one.get("b")] == [None, b"x"]
    assert await one.get("c", tag=OTHER_TAG) == b"x"
    for process in both:
        await wait_until(partial(has_heard, process, "g"))
    await one.keep("a", b"new", group="g")
    assert await other.get("a") == b"new"


@pytest.mark.parametrize("group", [None, "g"])
async def test_what_another_process_has_queued_does_not_come_back_after_a_purge(
    both: tuple[Process, Process], group: str | None
) -> None:
    one, other = both
    await one.keep("a", group="g")
    other.store.put(head("a"), b"late", 60, group="g", linger=60)
    other.store.put(head("b"), b"of another", 60, group="h", linger=60)
    await one.store.delete(TAG, group)
    await wait_until(lambda: other.heard.purges == [(TAG, group)])
    await other.keep("c", tag=OTHER_TAG)
    assert [await process.get("a") for process in both] == [None, None]
    left = None if group is None else b"of another"
    assert [await process.get("b") for process in both] == [left, left]


@pytest.mark.parametrize("somewhere", KINDS[2:], indirect=True)
async def test_a_process_that_starts_is_told_of_no_earlier_purge(somewhere: Place) -> None:
    async with somewhere.process() as one:
        await one.keep("a")
        await one.store.delete(TAG)
        async with somewhere.process() as other:
            await other.keep("b")
            await one.keep("c")
            one.store.publish(TAG, "end")
            await wait_until(lambda: other.heard.news == ["end"])
            assert other.heard.purges == []
            assert await one.get("b") == b"x"


# Leases


async def test_one_of_many_holds_a_lease_and_the_others_are_told_how_long(
    both: tuple[Process, Process],
) -> None:
    claims = await asyncio.gather(
        *(both[at % 2].store.claim(TAG, "branch", ttl=30, wait=10) for at in range(10))
    )
    leases = [claim for claim in claims if isinstance(claim, Lease)]
    held = [claim for claim in claims if isinstance(claim, HeldLease)]
    assert (len(leases), len(held)) == (1, 9)
    assert all(each.fence == leases[0].fence and 0 < each.seconds_left <= 30 for each in held)
    await both[0].lease("another branch")


async def test_a_release_wakes_those_who_wait_in_all_processes(both: tuple[Process, Process]) -> None:
    lease = await both[0].lease()
    waiting = [asyncio.create_task(each.store.until_free(await each.find_holder())) for each in both]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    both[0].store.release(lease)
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert (await both[1].lease()).fence > lease.fence


async def test_a_lease_that_is_over_goes_to_another_and_its_holder_is_fenced_off(
    both: tuple[Process, Process],
) -> None:
    one, other = both
    late = await one.lease(ttl=0.05)
    held = await other.store.claim(TAG, "branch", ttl=30)
    if isinstance(held, HeldLease):
        await other.store.until_free(held)
        await asyncio.sleep(0.05)
        held = await other.lease()
    assert held.fence > late.fence
    assert not await one.store.renew(late, ttl=30)
    assert await one.store.put_durable(head("a"), b"late", 60, lease=late) is None
    assert await one.get("a") is None
    one.store.release(late)
    await one.keep("end")
    await other.find_holder()
    assert await other.store.put_durable(head("a"), b"newer", 60, lease=held) == b"newer"


async def test_a_lease_that_is_renewed_stays_and_one_that_nobody_took_is_renewed_late(
    both: tuple[Process, Process],
) -> None:
    one, other = both
    lease = await one.lease(ttl=0.05)
    await asyncio.sleep(0.1)
    assert await one.store.renew(lease, ttl=30)
    held = await other.find_holder()
    assert held.fence == lease.fence and held.seconds_left > 10
    assert await one.store.put_durable(head("a"), b"x", 60, lease=lease) == b"x"


async def test_a_fence_grows_over_releases_and_purges(both: tuple[Process, Process]) -> None:
    fences = []
    for at in range(6):
        process = both[at % 2]
        lease = await process.lease()
        fences.append(lease.fence)
        process.store.release(lease)
        await process.keep("end", tag=OTHER_TAG)
        if at == 3:
            await process.store.delete(TAG)
    assert fences == sorted(set(fences))


async def test_who_waits_for_a_holder_that_dies_waits_for_its_time_only(
    both: tuple[Process, Process],
) -> None:
    await both[0].lease(ttl=0.3)
    held = await both[1].find_holder()
    async with asyncio.timeout(10):
        await both[1].store.until_free(held)
        while isinstance(await both[1].store.claim(TAG, "branch", ttl=1), HeldLease):
            await asyncio.sleep(0.01)


# Counters, places, news


async def test_costs_are_counted_together_up_to_the_limit(both: tuple[Process, Process]) -> None:
    waits = [await both[at % 2].store.count(TAG, "calls", 1, 5, 3_600) for at in range(8)]
    assert waits[:5] == [0] * 5
    assert all(0 < wait <= 7_200 for wait in waits[5:])
    assert await both[0].store.count(TAG, "others", 5, 5, 3_600) == 0
    assert await both[0].store.count(OTHER_TAG, "calls", 5, 5, 3_600) == 0
    assert await both[1].store.count(TAG, "calls", -2, 5, 3_600) == 0
    assert await both[0].store.count(TAG, "calls", 3, 5, 3_600) > 0
    assert await both[0].store.count(TAG, "calls", 2, 5, 3_600) == 0


async def test_many_attempts_at_once_never_exceed_a_limit(both: tuple[Process, Process]) -> None:
    waits = await asyncio.gather(*(both[at % 2].store.count(TAG, "n", 1, 20, 3_600) for at in range(60)))
    held = await asyncio.gather(*(both[at % 2].store.hold(TAG, "p", str(at), 7, 60) for at in range(30)))
    assert waits.count(0) == 20
    assert held.count(True) == 7


async def test_places_are_renewed_given_back_and_end(both: tuple[Process, Process]) -> None:
    one, other = both
    assert await one.store.hold(TAG, "places", "a", 1, 30)
    assert not await other.store.hold(TAG, "places", "b", 1, 60)
    assert await one.store.hold(TAG, "places", "a", 1, 60)
    one.store.let_go(TAG, "places", "a")
    await one.keep("end")
    assert await other.store.hold(TAG, "places", "b", 1, 0.05)
    await asyncio.sleep(0.1)
    assert await one.store.hold(TAG, "places", "c", 1, 60)


async def test_a_place_that_was_left_is_free_at_once_whatever_waits_to_be_written(
    both: tuple[Process, Process],
) -> None:
    store = both[0].store
    for at in range(20):
        assert await store.hold(TAG, "places", str(at), 1, 60), at
        writes = [
            asyncio.create_task(store.put_durable(head(str(each)), b"x" * 9_000, 60)) for each in range(9)
        ]
        await asyncio.sleep(0)
        store.let_go(TAG, "places", str(at))
        store.let_go(TAG, "places", str(at))
        assert await store.hold(TAG, "places", f"next-{at}", 1, 60), at
        assert not await both[1].store.hold(TAG, "places", "other", 1, 60)
        store.let_go(TAG, "places", f"next-{at}")
        await asyncio.gather(*writes)


async def test_news_are_heard_by_all_others_in_order_and_behind_what_was_written(
    both: tuple[Process, Process],
) -> None:
    one, other = both
    for number in range(30):
        one.store.put(head(str(number)), b"x", 60)
        one.store.publish(TAG, f"head:{number}")
    await one.keep("end")
    if one is other:
        assert one.heard.news == []
        return
    await wait_until(lambda: len(other.heard.news) == 30)
    assert other.heard.news == [f"head:{number}" for number in range(30)]
    assert await other.get("29") == b"x"
    assert one.heard.news == [] and other.heard.gaps == 0


class Raising:
    def on_news(self, tag: str, text: str) -> None:
        raise RuntimeError("of a listener")

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        raise RuntimeError("of a listener")

    def on_gap(self) -> None: ...


async def test_a_listener_that_raises_ends_nothing_else(both: tuple[Process, Process]) -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    for process in both:
        process.store.subscribe(Raising())
    await both[0].keep("a")
    both[0].store.publish(TAG, "news")
    await both[0].store.delete(TAG)
    await wait_until(lambda: both[1].heard.purges == [(TAG, None)])
    await both[0].keep("b")
    assert await both[1].get("b") == b"x"
    assert raised


# Everything at once


async def test_any_order_of_operations_gives_what_a_dictionary_gives(both: tuple[Process, Process]) -> None:
    """Of one process; the other one sees the same at the end."""
    one, other = both
    model: dict[str, bytes] = {}
    chance = random.Random(7)
    for number in range(400):
        name, value = str(chance.randrange(6)), b"%d" % number
        match chance.randrange(7):
            case 0 | 1:
                one.store.put(head(name), value, 60, linger=chance.choice([0.0, 0.01, 60]))
                model[name] = value
            case 2:
                one.store.drop(head(name))
                model.pop(name, None)
            case 3:
                await one.keep(name, value)
                model[name] = value
            case 4:
                stored = await one.store.put_durable(head(name), value, 60, if_absent=True, wait=10)
                assert stored == model.setdefault(name, value)
            case 5:
                assert await one.store.take(head(name), wait=10) == model.pop(name, None)
            case _:
                assert await one.get(name) == model.get(name)
    listed = {record.key.name: record.value for record in await one.store.list("head", TAG, wait=10)}
    assert listed == model
    await one.keep("end")
    assert {str(name): await other.get(str(name)) for name in range(6)} == {
        str(name): model.get(str(name)) for name in range(6)
    }
