"""Which servers are accepted at the start, in which words one is refused, and what is enough for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.store.backends import Held, Key, StoreError, User, head, open_bounded, open_redis
from tests.toy.redis_server import RedisServer, requires_redis, running_redis

pytestmark = requires_redis
TAKEN = Key("taken", "c:1")


@asynccontextmanager
async def opened(user: User) -> AsyncIterator[User]:
    await user.store.open()
    try:
        yield user
    finally:
        await user.store.close()


async def is_served(url: str) -> bool:
    """Not by the memory of one process alone."""
    async with opened(open_redis(url)) as user, opened(open_redis(url)) as other:
        await user.put_durable(head(1), b"1")
        return await other.read(head(1)) == b"1"


async def refuse(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as refusal:
        async with opened(open_redis(url)):
            pass
    assert "hunter2" not in str(refusal.value)


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
        assert not await is_served(server.url)


async def test_a_right_that_is_missing_is_named() -> None:
    async with running_redis() as server:
        await server.run("ACL", "SETUSER", "gw", "on", ">hunter2", "~*", "+get")
        await refuse(f"redis://gw:hunter2@127.0.0.1:{server.port}", "its ACL lacks a permission")


async def test_a_server_of_another_kind_or_none_is_waited_for_in_the_background() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with web, opened(open_redis(f"redis://127.0.0.1:{web.sockets[0].getsockname()[1]}")) as user:
        user.put(head(1), b"1")
        assert (await user.read(head(1)), await user.read(head(2))) == (b"1", None)
    async with running_redis() as server:
        await server.stop()
        user, far = open_redis(server.patient_url), open_redis(server.patient_url)
        async with opened(user), opened(far):
            user.put(head(1), b"1")
            assert await user.read(head(1)) == b"1"
            await server.start()
            await until_read(far)


async def until_read(user: User) -> None:
    async with asyncio.timeout(30):
        while await user.read(head(1)) != b"1":
            await asyncio.sleep(0.01)


async def test_prefixes_and_databases_are_stores_of_their_own() -> None:
    async with running_redis() as server:
        for rest in ("/0?", "/0?prefix=team&", "/1?"):
            url = server.patient_url.replace("/0?", rest)
            async with opened(open_redis(url)) as user, opened(open_bounded(url, "named", 3_000)) as bounded:
                assert await user.read(head(1)) is None and await bounded.read(head(1)) is None
                await user.put_durable(head(1), b"state")
                await bounded.put_durable(head(1), b"named")
                assert [await each.read(head(1)) for each in (user, bounded)] == [b"state", b"named"]


def read_documented_rights() -> list[str]:
    """The words behind the password in the line of docs/configuration.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if "ACL SETUSER gateway" in line]
    return line.split(">PASSWORD", 1)[1].split()


async def make_cluster(server: RedisServer) -> None:
    """Of one server, which has all slots, and refuses what names keys of two of them."""
    await server.run("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    async with asyncio.timeout(30):
        while "cluster_state:ok" not in str(await server.run("CLUSTER", "INFO")):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_cluster", [False, True])
async def test_the_documented_rights_are_enough_and_no_command_spans_slots_of_a_cluster(
    is_cluster: bool,
) -> None:
    async with running_redis(options={"cluster-enabled": "yes"} if is_cluster else {}) as server:
        if is_cluster:
            await make_cluster(server)
        await server.run("ACL", "SETUSER", "gateway", "on", ">pw", *read_documented_rights())
        url = server.patient_url.replace("redis://", "redis://gateway:pw@")
        async with opened(open_redis(url)) as user, opened(open_bounded(url, "originals", 3_000)) as bounded:
            await use_everything(user)
            for number in range(10):
                bounded.put(Key("turn", f"a:{number}"), bytes(500))
            bounded.drop(Key("turn", "a:9"))
            assert await bounded.delete() > 0 and await user.delete() > 0
        assert await server.run("ACL", "LOG") == []
        refused = str(await server.run("INFO", "errorstats"))
        assert "CROSSSLOT" not in refused and "MOVED" not in refused


async def use_everything(user: User) -> None:
    """Records of two tenants in one round trip, a list, a lease with rivals, news and counts."""
    other = head(1, "another")
    user.publish("pivot")
    for key in (head(1), TAKEN, other):
        assert await user.put_new(key) == b"x"
    groups = [[head(0), head(1)], [other]]
    assert await user.get_groups(groups) == [(head(1), b"x"), (other, b"x")]
    assert await user.list_all("taken") == [("c:1", b"x")]
    lease = await user.hold_lease("1", "2", "3")
    assert lease.fence and isinstance(await user.claim("2", "1"), Held)
    assert await user.renew(lease) and await user.put_under(lease, Key("pivot", "1"))
    await user.release(lease)
    assert await user.take(Key("pivot", "1")) == b"x"
    assert await user.count() == 0
    place = user.make_place()
    assert await user.hold(place)
    user.let_go(place)
    await user.ledger.close()


# Bounded


@asynccontextmanager
async def two_bounded() -> AsyncIterator[tuple[RedisServer, User, User]]:
    async with running_redis() as server:
        users = [open_bounded(server.patient_url, "originals", 20_000) for _ in range(2)]
        async with opened(users[0]), opened(users[1]):
            yield server, users[0], users[1]


async def test_beyond_the_bound_the_oldest_of_all_processes_go_and_leave_nothing() -> None:
    async with two_bounded() as (server, near, far):
        for number in range(40):
            await (near, far)[number % 2].put_durable(Key("taken", f"c:{number:02}"), bytes(1_000))
        async with asyncio.timeout(30):
            while len(found := await far.list_all("taken")) > 14:
                await asyncio.sleep(0.01)
        assert [name for name, _ in found] == [f"c:{number}" for number in range(40 - len(found), 40)]
        assert len(found) >= 10
        names = await server.list_keys()
        assert len([name for name in names if "/taken:" in name]) <= len(found) + 1
