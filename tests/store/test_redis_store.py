"""What only Redis does to a store: pauses, an empty or full server, a replica that is cut off, a server that
says no. `near` comes through a proxy, `far` does not; they are two processes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.store.address import make_store
from gateway.store.interface import (
    HeldLease,
    Key,
    Lease,
    Lookup,
    Store,
    StoreError,
    StoreRefused,
    Unknown,
    Unusable,
    seal,
)
from gateway.store.keys import make_tag
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.running import wait_until
from tests.toy.slow_proxy import SlowProxy, running_proxy

pytestmark = requires_redis
TAG, OTHER = make_tag("tenant"), make_tag("another")


def head(name: object, tag: str = TAG) -> Key:
    return Key(tag, "head", str(name))


@dataclass
class Process:
    """news, purges, gaps: what its listener was told."""

    store: Store
    news: list[str] = field(default_factory=list)
    purges: list[tuple[str, str | None]] = field(default_factory=list)
    gaps: int = 0

    def on_news(self, tag: str, text: str) -> None:
        self.news.append(text)

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        self.purges.append((tag, group))

    def on_gap(self) -> None:
        self.gaps += 1

    async def read(self, key: Key, wait: float = 2.0) -> bytes | None:
        (found,) = await self.store.get(key.tag, [Lookup(key.kind, [key.name])], wait=wait)
        return found.value if found is not None else None

    async def until_read(self, key: Key, value: bytes | None) -> None:
        async def is_read() -> bool:
            return await self.read(key) == value

        await until(is_read)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """An unknown answer is none."""
    async with asyncio.timeout(30):
        is_met = False
        while not is_met:
            await asyncio.sleep(0.01)
            with suppress(StoreError):
                is_met = await condition()


@dataclass
class Place:
    server: RedisServer
    proxy: SlowProxy
    near: Process
    far: Process


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Process]:
    process = Process(make_store(url))
    process.store.subscribe(process)
    await process.store.open()
    try:
        yield process
    finally:
        await process.store.close()


@asynccontextmanager
async def opened_place(timeout_ms: int = 10_000, **options: str) -> AsyncIterator[Place]:
    """Patient, so that a busy machine is not taken for a slow server."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_redis(options=options))
        proxy = await stack.enter_async_context(running_proxy(server.port))
        url = f"redis://127.0.0.1:{proxy.port}/0?timeout_ms={timeout_ms}"
        near = await stack.enter_async_context(opened(url))
        far = await stack.enter_async_context(opened(server.patient_url))
        yield Place(server, proxy, near, far)


# Records


async def test_what_is_looked_up_in_one_moment_is_one_round_trip_and_only_what_is_found_travels() -> None:
    async with opened_place() as place:
        for number in range(4):
            await place.near.store.put_durable(head(number), bytes(5_000), 60)
        await place.near.read(head(0))
        place.proxy.count()
        lookups = [Lookup("head", [f"absent {at}".replace(" ", "-"), str(at), "3"]) for at in range(3)]
        found = await asyncio.gather(*(place.near.store.get(TAG, [each]) for each in lookups))
        assert [each.name for (each,) in found if each is not None] == ["0", "1", "2"]
        assert place.proxy.count().turns == 1


async def test_damaged_and_foreign_values_count_as_absent_and_are_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened_place() as place:
        keys = [head(number) for number in (0, 1, 2, 4, 5, 3)]
        names = [f"gateway2:head:{TAG}:{key.name}" for key in keys]
        good = seal(keys[-1], b"group\ngood")
        await place.server.run_all(
            [
                ("LPUSH", names[0], "x"),
                ("SET", names[1], "damaged"),
                ("SET", names[2], good),
                # It lost its end, and one of its bits is another one.
                ("SET", names[3], seal(keys[3], b"group\ngood")[:-1]),
                ("SET", names[4], seal(keys[4], b"group\ngood").replace(b"good", b"gooe")),
                ("SET", names[5], good),
            ]
        )
        (found,) = await place.near.store.get(TAG, [Lookup("head", [key.name for key in keys])], wait=2)
        assert found == ("3", b"good")
        assert [await place.near.read(each) for each in keys[:-1]] == [None] * 5
        assert await place.near.store.take(keys[2]) is None
        for key in keys[:2]:
            assert await place.near.store.put_durable(key, b"ours", 60, if_absent=True) == b"ours"
            assert await place.far.read(key) == b"ours"
    assert caplog.text.count("counts as absent") == 2


async def test_the_largest_batch_is_written_and_listed() -> None:
    async with opened_place() as place:
        for number in range(1_500):
            place.near.store.put(head(number), bytes(8_000), 60, group=f"g{number % 2}")
        await place.near.store.put_durable(head("last"), b"1", 60)
        assert len(await place.far.store.list("head", TAG)) == 1_501
        assert len(await place.far.store.list("head", TAG, "g1")) == 750
        assert await place.near.store.delete(TAG, "g1") == 750
        assert len(await place.far.store.list("head")) == 751


async def test_prefixes_and_databases_are_stores_of_their_own() -> None:
    async with running_redis() as server:
        for rest in ("/0?", "/0?prefix=team&", "/1?"):
            async with opened(server.patient_url.replace("/0?", rest)) as process:
                assert await process.read(head(1)) is None
                await process.store.put_durable(head(1), b"1", 60)


# Purges


async def test_a_purged_tenant_leaves_no_name_and_no_byte_on_the_server() -> None:
    async with opened_place() as place:
        for tag in (TAG, OTHER):
            for group in ("", "g"):
                await place.near.store.put_durable(head(group or 1, tag), b"canary", 60, group=group)
            lease = await place.near.store.claim(tag, "1", ttl=5)
            assert isinstance(lease, Lease)
            await place.near.store.count(tag, "requests", 1, 5, 60)
            await place.near.store.hold(tag, "places", "m", 5, 60)
        before = await place.server.list_keys()
        place.near.store.put(head(2), b"canary", 60)
        assert await place.far.store.delete(TAG) in (2, 3)
        await wait_until(lambda: (TAG, None) in place.near.purges)
        await place.near.store.put_durable(head(2, OTHER), b"1", 60)
        left = [name for name in before if TAG not in name] + [f"gateway2:head:{OTHER}:2", "gateway2:purges"]
        assert await place.server.list_keys() == sorted(left)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_replica_that_was_cut_off_forgets_what_was_purged_before_it_writes(group: str | None) -> None:
    async with opened_place(40) as place:
        await place.near.store.put_durable(head("old"), b"old", 60, group="g")
        await place.near.store.put_durable(head("kept", OTHER), b"old", 60, group="g")
        await place.proxy.refuse()
        place.near.store.put(head("queued"), b"old", 60, group="g")
        with pytest.raises(Unknown):
            await place.near.store.put_durable(head("promised"), b"old", 60, group="g", wait=0.1)
        place.near.store.put(head("other", OTHER), b"new", 60, group="g")
        assert await place.far.store.delete(TAG, group) == 1
        await place.proxy.start()
        await wait_until(lambda: (TAG, group) in place.near.purges)
        await place.near.store.put_durable(head("life"), b"new", 60, group="g")
        await place.far.until_read(head("other", OTHER), b"new")
        assert [each.key.name for each in await place.far.store.list("head", TAG)] == ["life"]
        assert await place.near.read(head("queued")) is None


async def test_a_process_that_starts_hears_of_no_old_purge_also_if_the_server_is_away_then() -> None:
    async with opened_place() as place:
        await place.far.store.delete(TAG)
        async with opened(place.server.patient_url) as young:
            await young.store.put_durable(head(1), b"new", 60)
            assert await place.far.read(head(1)) == b"new"
            assert young.purges == []
        await place.proxy.refuse()
        async with opened(f"redis://127.0.0.1:{place.proxy.port}/0?timeout_ms=10000") as away:
            away.store.put(head(2), b"new", 60)
            away.store.put(head(3, OTHER), b"old", 60)
            await place.far.store.delete(OTHER)
            await place.proxy.start()
            await place.far.until_read(head(2), b"new")
            await wait_until(lambda: bool(away.purges))
            assert away.purges == [(OTHER, None)]
            assert await place.far.read(head(3, OTHER)) is None


# Silence


async def test_a_silent_server_is_never_taken_for_an_empty_one_and_a_late_reply_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with opened_place(40) as place:
        await place.near.store.put_durable(head(1), b"1", 60)
        place.server.pause()
        for _ in range(3):
            with pytest.raises(Unknown):
                await place.near.read(head(1), wait=0.04)
        patient = asyncio.create_task(place.near.read(head(1), wait=60))
        claiming = asyncio.create_task(place.near.store.claim(TAG, "1", ttl=30, wait=60))
        await asyncio.sleep(0.2)
        place.server.resume()
        assert await patient == b"1"
        claimed = await claiming
        assert isinstance(claimed, Lease) and claimed.fence
        await wait_until(lambda: "is back after" in caplog.text)
        await place.near.until_read(head(1), b"1")
    assert caplog.text.count("is away (it does not answer in time)") >= 1


async def test_a_claim_that_is_granted_late_is_given_back() -> None:
    async with opened_place() as place:
        place.server.pause()
        alone = await place.near.store.claim(TAG, "1", ttl=3_600, wait=0.1)
        assert isinstance(alone, Lease) and alone.is_alone
        place.server.resume()
        held = await place.far.store.claim(TAG, "1", ttl=5)
        if isinstance(held, HeldLease):
            await place.far.store.until_free(held)
            held = await place.far.store.claim(TAG, "1", ttl=5)
        assert isinstance(held, Lease)


async def test_what_is_taken_too_late_for_the_one_who_asked_stays_where_it_was() -> None:
    async with opened_place() as place:
        await place.far.store.put_durable(head(1), b"marker", 60, group="g")
        # From now on the server knows the script.
        assert await place.near.store.take(head(2), wait=10) is None
        place.proxy.delay_seconds = 1.0
        with pytest.raises(Unknown):
            await place.near.store.take(head(1), wait=0.1)
        place.proxy.delay_seconds = 0
        # What is given to a store is written in its order.
        await place.near.store.put_durable(head("end"), b"1", 60, wait=10)
        await place.far.until_read(head(1), b"marker")
        assert await place.far.store.delete(TAG, "g") == 1


async def test_what_is_taken_too_late_by_a_process_that_ends_stays_where_it_was() -> None:
    async with opened_place() as place:
        await place.far.store.put_durable(head(1), b"marker", 60)
        assert await place.near.store.take(head(2), wait=10) is None
        place.proxy.delay_seconds = 1.0
        with pytest.raises(Unknown):
            await place.near.store.take(head(1), wait=0.1)
        await place.near.store.close()
        await place.far.until_read(head(1), b"marker")


async def test_what_is_promised_alone_replaces_nothing_later() -> None:
    async with opened_place(40) as place:
        await place.proxy.refuse()
        alone = await place.near.store.claim(TAG, "1", ttl=30, wait=0.1)
        assert isinstance(alone, Lease) and alone.is_alone
        for number in (1, 2):
            with pytest.raises(Unknown):
                await place.near.store.put_durable(head(number), b"near", 60, lease=alone, wait=0.1)
        with pytest.raises(Unknown):
            await place.near.read(head(1), wait=0.04)
        assert await place.far.store.put_durable(head(1), b"far", 60) == b"far"
        await place.proxy.start()
        await place.far.until_read(head(2), b"near")
        assert await place.far.read(head(1)) == b"far"
        await place.near.until_read(head(1), b"far")


async def test_a_lost_connection_may_have_lost_news_and_they_go_on_after_it() -> None:
    async with opened_place() as place:
        gaps = place.near.gaps
        await place.proxy.cut()
        await wait_until(lambda: place.near.gaps > gaps)

        async def is_heard() -> bool:
            place.far.store.publish(TAG, "again")
            return "again" in place.near.news

        await until(is_heard)


# Leases


async def test_a_lease_that_another_had_meanwhile_is_lost_for_good() -> None:
    async with opened_place() as place:
        lease = await place.near.store.claim(TAG, "1", ttl=0.05)
        assert isinstance(lease, Lease)
        held = await place.far.store.claim(TAG, "1", ttl=0.05)
        while isinstance(held, HeldLease):
            await place.far.store.until_free(held)
            held = await place.far.store.claim(TAG, "1", ttl=0.05)
        assert held.fence > lease.fence
        await asyncio.sleep(0.1)
        assert not await place.near.store.renew(lease, ttl=5)
        assert await place.near.store.put_durable(head(1), b"late", 60, lease=lease) is None
        assert await place.far.store.put_durable(head(1), b"1", 60, lease=held) == b"1"


async def test_a_lease_and_its_write_outlive_a_server_that_lost_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened_place() as place:
        first, second = [await place.near.store.claim(TAG, name, ttl=30) for name in ("1", "2")]
        assert isinstance(first, Lease) and isinstance(second, Lease)
        gaps = place.far.gaps
        await place.server.run_all([("FLUSHALL",), ("SCRIPT", "FLUSH")])
        assert await place.near.store.put_durable(head(1), b"1", 60, lease=first) == b"1"
        assert await place.near.store.renew(second, ttl=30)
        assert isinstance(await place.far.store.claim(TAG, "2", ttl=30), HeldLease)
        await wait_until(lambda: place.far.gaps > gaps and place.near.gaps > 0)
    assert caplog.text.count("has lost its records: what is in use is written again") == 2


async def test_a_lease_that_was_given_back_is_not_taken_again_by_a_late_renewal() -> None:
    async with opened_place() as place:
        lease = await place.near.store.claim(TAG, "work", ttl=30)
        assert isinstance(lease, Lease) and await place.near.store.renew(lease, ttl=30)
        place.near.store.release(lease)
        await place.near.store.put_durable(head(0), b"behind it", 60)
        assert not await place.near.store.renew(lease, ttl=30)
        assert isinstance(await place.far.store.claim(TAG, "work", ttl=30), Lease)


async def test_a_waiter_waits_for_the_new_end_after_a_renewal() -> None:
    async with opened_place() as place:
        lease = await place.near.store.claim(TAG, "1", ttl=0.2)
        assert isinstance(lease, Lease)
        held = await place.far.store.claim(TAG, "1", ttl=5)
        assert isinstance(held, HeldLease)
        assert await place.near.store.renew(lease, ttl=30)
        await place.far.store.until_free(held)
        again = await place.far.store.claim(TAG, "1", ttl=5)
        assert isinstance(again, HeldLease) and again.seconds_left > 20


# Trouble


async def test_a_full_server_is_read_and_gets_everything_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with opened_place() as place:
        await place.near.store.put_durable(head(1), b"1", 60)
        await place.server.run("CONFIG", "SET", "maxmemory", "1")
        place.near.store.put(head(2), b"2", 60)
        with pytest.raises(Unusable, match="its memory is full"):
            await place.near.store.put_durable(head(3), b"3", 60)
        assert [await place.near.read(head(number)) for number in (1, 2)] == [b"1", b"2"]
        assert isinstance(await place.near.store.claim(TAG, "1", ttl=5), Lease)
        await place.server.run("CONFIG", "SET", "maxmemory", "0")
        await place.far.until_read(head(2), b"2")
        await wait_until(lambda: "takes writes again" in caplog.text)
    assert caplog.text.count("takes no writes (its memory is full): records wait in memory") == 1


async def test_a_tenant_is_purged_from_a_full_server() -> None:
    async with opened_place() as place:
        await place.near.store.put_durable(head(1), b"1", 60)
        await place.server.run("CONFIG", "SET", "maxmemory", "1")
        assert await place.near.store.delete(TAG) == 1
        assert await place.far.read(head(1)) is None


async def test_a_primary_that_has_become_a_replica_is_away_until_it_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_redis() as other, opened_place(1_000) as place:
        await place.near.store.put_durable(head(1), b"1", 60)
        await other.run("SET", "some", "key")
        await place.server.run("REPLICAOF", "127.0.0.1", other.port)
        await wait_until(lambda: "it is a read-only replica" in caplog.text)
        place.near.store.put(head(2), b"2", 60)
        await place.server.run("REPLICAOF", "NO", "ONE")
        await place.far.until_read(head(2), b"2")


async def test_a_server_that_comes_later_gets_what_waits() -> None:
    async with running_redis() as server:
        await server.stop()
        async with opened(server.patient_url) as near:
            near.store.put(head(1), b"1", 60)
            assert await near.read(head(1)) == b"1"
            with pytest.raises(Unknown):
                await near.read(head(2), wait=0.04)
            await server.start()
            async with opened(server.patient_url) as far:
                await far.until_read(head(1), b"1")


async def test_what_never_reached_the_server_is_counted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async with running_redis() as server:
        async with opened(server.patient_url) as near:
            await server.kill()
            near.store.put(head(1), b"1", 60)
        assert "1 writes are lost" in caplog.text


# Servers that say no


async def refuse(url: str, words: str) -> None:
    with pytest.raises(StoreRefused, match=words) as refusal:
        async with opened(url):
            pass
    assert "hunter2" not in str(refusal.value)


async def is_served(url: str) -> bool:
    async with opened(url) as near, opened(url) as far:
        await near.store.put_durable(head(1), b"1", 60)
        return await far.read(head(1)) == b"1"


@pytest.mark.parametrize("tls", [False, True])
async def test_user_password_and_database_are_used(tls: bool) -> None:
    async with running_redis(password="p@ss", tls=tls, options={"databases": "3"}) as server:
        await server.run("ACL", "SETUSER", "gw", "on", ">s3cret", "~*", "&*", "+@all")
        assert await is_served(server.patient_url)
        assert await is_served(server.patient_url.replace(":p@ss@", "gw:s3cret@").replace("/0", "/2"))
        for wrong in (":hunter2@", "gw:hunter2@", "other:hunter2@"):
            await refuse(server.patient_url.replace(":p@ss@", wrong), "does not accept user and password")
        await refuse(server.patient_url.replace("/0", "/5"), "refuses the database of this number")
        if tls:
            url = server.url.partition("?")[0] + "?timeout_ms=10000"
            await refuse(url, "its TLS certificate is not accepted")


async def test_a_client_certificate_is_shown() -> None:
    async with running_redis(tls=True, options={"tls-auth-clients": "yes"}) as server:
        files = server.certificates
        assert files is not None
        both = f"&certificate_file={files.client}&key_file={files.client_key}"
        assert await is_served(server.patient_url + both)


@pytest.mark.parametrize(
    "rights", ["+get", "+@all -evalsha -eval", "+@all -set", "+@all -get", "+@all resetchannels"]
)
async def test_a_right_that_is_missing_is_named(rights: str) -> None:
    async with running_redis() as server:
        await server.run("ACL", "SETUSER", "gw", "on", ">hunter2", "~*", "&*", *rights.split())
        await refuse(f"redis://gw:hunter2@127.0.0.1:{server.port}", "its ACL lacks a permission")


def read_documented_rights() -> list[str]:
    """The words behind the password in the line of docs/configuration.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if "ACL SETUSER gateway" in line]
    return line.split(">PASSWORD", 1)[1].split()


async def test_the_documented_rights_are_enough() -> None:
    async with running_redis() as server:
        await server.run("ACL", "SETUSER", "gateway", "on", ">pw", *read_documented_rights())
        url = server.patient_url.replace("redis://", "redis://gateway:pw@")
        async with opened(url) as near, opened(url) as far:
            await use_everything(near.store)
            await wait_until(lambda: far.purges == [(TAG, None)] and far.news == ["hello"])
        assert await server.run("ACL", "LOG") == []


async def use_everything(store: Store) -> None:
    store.publish(TAG, "hello")
    for number in range(2):
        await store.put_durable(head(number), b"x", 60, group="g", if_absent=True)
    await store.put_durable(head(0), b"x", 60, group="h")
    assert len(await store.list("head")) == len(await store.list("head", TAG)) == 2
    lease = await store.claim(TAG, "1", ttl=5)
    assert isinstance(lease, Lease) and isinstance(await store.claim(TAG, "1", ttl=5), HeldLease)
    assert await store.renew(lease, ttl=5)
    assert await store.put_durable(head(2), b"x", 60, lease=lease) == b"x"
    store.release(lease)
    store.drop(head(1))
    assert await store.take(head(2)) == b"x"
    assert await store.count(TAG, "calls", 1, 3, 60) == 0
    assert await store.hold(TAG, "places", "m", 1, 15)
    store.let_go(TAG, "places", "m")
    assert await store.delete(TAG) == 1
