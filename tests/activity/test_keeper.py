"""The book survives its process, on every store, and several processes lose nothing to each other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.activity.book import ActivityBook
from gateway.activity.keeper import ActivityKeeper
from gateway.activity.record import ConversationActivity
from gateway.activity.stored import name_record
from gateway.core.compaction.request import CompactionReason, CompactionResult, make_digest_request
from gateway.core.sizing.usage import Usage
from gateway.store import Store, StoreError, open_store
from gateway.store.keys import make_tag
from gateway.store.memory import MemoryStore
from tests.activity.talk import BOOK_BYTES, make_book, make_clock, plan, receive, turn
from tests.builders.chat import make_pivot
from tests.builders.state import make_store
from tests.store.clock import Clock
from tests.store.served.serving import serving
from tests.toy.shared_store import ToyServer

_DIGEST = make_digest_request(CompactionReason.HARD_THRESHOLD)
_PIVOT = make_pivot(receive().conversation, 5)


class _Process:
    """A book, what keeps it, and its clock."""

    def __init__(self, store: Store, max_bytes: int = BOOK_BYTES) -> None:
        self.clock: Clock = make_clock()
        self.book: ActivityBook = make_book(max_bytes, self.clock)
        self.keeper = ActivityKeeper(self.book, store, 60, self.clock)

    def note(self, identity: str = "c", tenant: str = "t") -> None:
        self.book.note_request(turn(identity, tenant), plan(300, 100), Usage(90, 5))

    def find(self, identity: str = "c") -> ConversationActivity:
        activity = self.book.find(identity)
        assert activity is not None
        return activity


async def connect(server: ToyServer) -> Store:
    store = server.connect()
    await store.open()
    return store


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_conversations_survive_a_restart(store_url: str) -> None:
    async with opened(store_url) as store:
        before = _Process(store)
        before.keeper.start()
        for identity in ("a", "b", "a"):
            before.note(identity)
        result = CompactionResult(_PIVOT, 1, "toy", 900, Usage(800, 20))
        before.book.note_compaction(turn("a"), result, _DIGEST, seconds=1, post_tokens=200)
        await before.keeper.close()
    async with opened(store_url) as store:
        after = _Process(store)
        await after.keeper.restore()
        kept = after.find("a")
        assert {activity.id for activity in after.book.list()} == {"a", "b"}
        assert kept.totals == before.find("a").totals and kept.summaries == before.find("a").summaries
        assert kept.series.list_points() == before.find("a").series.list_points()
        after.note("a")
        await after.keeper.close()
        last = _Process(store)
        await last.keeper.restore()
    assert last.find("a").totals.requests == 3 and last.find("b").totals.requests == 1


async def test_requests_that_come_before_what_is_stored_is_read_are_added_to_it(store_url: str) -> None:
    async with opened(store_url) as store:
        before = _Process(store)
        before.note()
        await before.keeper.close()
    async with opened(store_url) as store:
        after = _Process(store)
        after.note()
        await after.keeper.restore()
        assert after.find().totals.requests == 2
        after.note()
        await after.keeper.close()
        last = _Process(store)
        await last.keeper.restore()
    assert last.find().totals.requests == 3


async def test_a_stop_before_what_is_stored_is_read_loses_nothing(store_url: str) -> None:
    async with opened(store_url) as store:
        for _ in range(3):
            process = _Process(store)
            process.note()
            await process.keeper.close()
        last = _Process(store)
        await last.keeper.restore()
    assert last.find().totals.requests == 3


@pytest.mark.parametrize("kind", ["toy", "served", "redis"])
async def test_several_processes_add_to_one_conversation(kind: str, request: pytest.FixtureRequest) -> None:
    """Three processes with a store of a server, of a supervisor, and of a Redis."""
    async with AsyncExitStack() as exits:
        stores: list[Store]
        if kind == "served":
            supervisor = await exits.enter_async_context(serving())
            stores = [await supervisor.connect() for _ in range(4)]
        elif kind == "redis":
            url = request.getfixturevalue("empty_redis").patient_url
            stores = [await exits.enter_async_context(opened(url)) for _ in range(4)]
        else:
            server = ToyServer()
            stores = [await connect(server) for _ in range(4)]
        await add_at_once(stores[:3], stores[3])


async def add_at_once(stores: Sequence[Store], last_store: Store) -> None:
    processes = [_Process(store) for store in stores]
    for turns in range(4):
        for process in processes:
            for _ in range(turns):
                process.note()
            process.clock.now += 100
        # All at once: one holds the lease, and the others come in a later round.
        await asyncio.gather(*(process.keeper.save_due() for process in processes))
    for process in processes:
        process.clock.now += 100
        await process.keeper.save_due()
    assert processes[-1].find().totals.requests == 3 * (1 + 2 + 3)
    assert len(processes[-1].find().series) == 18
    last = _Process(last_store)
    await last.keeper.restore()
    assert last.find().totals == processes[-1].find().totals


async def test_what_comes_while_a_record_is_written_is_written_next() -> None:
    server = ToyServer()
    one, other = _Process(await connect(server)), _Process(await connect(server))
    other.note()
    await other.keeper.save_due()

    async def note_more() -> None:
        one.note()
        await asyncio.sleep(0)

    one.note()
    server.pause = note_more
    await one.keeper.save_due()
    server.pause = lambda: asyncio.sleep(0)
    noted = one.find().totals.requests
    one.clock.now += 100
    await one.keeper.save_due()
    last = _Process(await connect(server))
    await last.keeper.restore()
    assert noted > 2 and last.find().totals.requests == one.find().totals.requests == noted


async def test_a_conversation_is_not_written_at_each_request() -> None:
    store = await make_store()
    process = _Process(store)
    await process.keeper.restore()
    process.note()
    await process.keeper.save_due()
    first = await store.read(name_record("t", "c"))
    process.note()
    process.clock.now += 1
    await process.keeper.save_due()
    assert first is not None and await store.read(name_record("t", "c")) == first
    process.book.note_compaction(turn(), CompactionResult(_PIVOT, 0), _DIGEST, seconds=0, post_tokens=0)
    await process.keeper.save_due()
    assert await store.read(name_record("t", "c")) != first


class _FailingStore(MemoryStore):
    """Takes no write under a lease until `is_back`."""

    is_shared = True
    is_back = False

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        if not self.is_back:
            raise StoreError("the store is away")
        await super().write_durably(key, value, keep_seconds=keep_seconds)


async def test_what_cannot_be_written_waits() -> None:
    store = _FailingStore()
    await store.open()
    process = _Process(store)
    process.note()
    await process.keeper.save_due()
    assert await store.read(name_record("t", "c")) is None
    store.is_back = True
    process.clock.now += 100
    await process.keeper.save_due()
    assert await store.read(name_record("t", "c")) is not None


async def test_the_store_keeps_no_more_than_the_book() -> None:
    store = await make_store()
    process = _Process(store, 60_000)
    await process.keeper.restore()
    for number in range(60):
        process.clock.now += 1
        process.note(f"{number}")
        await process.keeper.save_due()
    stored = {key.partition("}")[2] for key, _ in await store.scan("activity:")}
    assert stored == {activity.id for activity in process.book.list()} and 5 < len(stored) < 40
    smaller = _Process(store, 30_000)
    await smaller.keeper.restore()
    await smaller.keeper.save_due()
    kept = {activity.id for activity in smaller.book.list()}
    assert "59" in kept and len(kept) < len(stored)
    assert {key.partition("}")[2] for key, _ in await store.scan("activity:")} == kept


async def test_a_record_that_another_process_still_uses_stays() -> None:
    server = ToyServer()
    idle, busy = _Process(await connect(server), 30_000), _Process(await connect(server))
    idle.note("shared")
    await idle.keeper.save_due()
    await busy.keeper.restore()
    busy.clock.now += 50
    busy.note("shared")
    await busy.keeper.save_due()
    for number in range(30):
        idle.note(f"{number}")
    await idle.keeper.save_due()
    assert idle.book.find("shared") is None
    last = _Process(await connect(server))
    await last.keeper.restore()
    assert last.find("shared").totals.requests == 2


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_deleted_conversation_and_a_purged_tenant_are_not_written_again(is_shared: bool) -> None:
    server = ToyServer()
    store: Store = await connect(server) if is_shared else await make_store()
    process = _Process(store)
    await process.keeper.restore()
    for identity, tenant in (("a", "one"), ("b", "one"), ("c", "two")):
        process.note(identity, tenant)
    await process.keeper.save_due()
    process.book.forget_conversation("one", "a")
    assert await store.read(name_record("one", "a")) is None
    process.note("b", "one")
    process.book.forget(make_tag("one"))
    await store.purge(make_tag("one"))
    process.clock.now += 100
    await process.keeper.save_due()
    await process.keeper.close()
    assert [key for key, _ in await store.scan("activity:")] == [name_record("two", "c")]


async def test_a_conversation_that_is_deleted_while_it_is_written_stays_deleted() -> None:
    server = ToyServer()
    process = _Process(await connect(server))
    process.note()

    async def delete() -> None:
        process.book.forget_conversation("t", "c")
        await asyncio.sleep(0)

    server.pause = delete
    await process.keeper.save_due()
    server.pause = lambda: asyncio.sleep(0)
    assert await (await connect(server)).scan("activity:") == []


async def test_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    async with opened(f"disk:{tmp_path}") as store:
        process = _Process(store)
        process.note("a")
        await process.keeper.close()
        store.write(name_record("t", "b"), b"{}", keep_seconds=60)
        last = _Process(store)
        await last.keeper.restore()
        assert [activity.id for activity in last.book.list()] == ["a"]
