"""A purge: nothing of a tenant or a conversation stays, nothing comes back, and others keep theirs."""

from pathlib import Path

from gateway.originals.archive import OriginalsArchive
from gateway.purge.live import LivePurge, WritesLater
from gateway.purge.stored import PurgeCount, purge_stores
from gateway.reporting.compaction_log import (
    CompactionLog,
    CompactionLogWriter,
    LogEntry,
    make_place_key,
    render_log,
)
from gateway.state.news import StateNews
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from gateway.store.stores import Stores, make_stores
from tests.builders.originals import make_search
from tests.builders.state import make_state, make_store
from tests.decisions.builders import make_head
from tests.store.talk import talk
from tests.toy.shared_store import ToyServer

_ONE, _OTHER = make_tag("tenant:one"), make_tag("tenant:other")


def write_log(stores: Stores, tag: str, conversation: str) -> None:
    """As the writer of the log does."""
    entry = LogEntry(at_seconds=1.0, kind="summary", trigger="auto", reason="overflow")
    log = render_log(CompactionLog(owner="o", entries=(entry,)))
    stores.main.write(make_key(tag, "report", f"{conversation}:01"), log, keep_seconds=60)
    stores.main.write(make_place_key(conversation), tag.encode(), keep_seconds=60)


async def test_a_tenant_leaves_every_store_and_the_others_stay(tmp_path: Path) -> None:
    stores = make_stores(f"disk:{tmp_path}", originals_bytes=1 << 20, named_bytes=1 << 20)
    await stores.open()
    for tag, conversation in ((_ONE, "aa"), (_OTHER, "bb")):
        write_log(stores, tag, conversation)
        for store, kind in ((stores.main, "head"), (stores.originals, "original"), (stores.named, "turn")):
            store.write(make_key(tag, kind, "00"), b"x", keep_seconds=60)
    assert await purge_stores(stores, _ONE) == PurgeCount(state=3, originals=1, named=1)
    assert await stores.main.read(make_place_key("aa")) is None
    assert await stores.main.read(make_place_key("bb")) == _OTHER.encode()
    assert len(await stores.main.scan("")) == 3
    assert await purge_stores(stores, _ONE) == PurgeCount()
    await stores.close()


_LIVE_TAG = make_tag("tenant:one")


async def test_this_process_forgets_before_its_store_is_purged() -> None:
    stores = Stores(main=MemoryStore(), originals=MemoryStore(), named=MemoryStore())
    await stores.open()
    key = make_key(_LIVE_TAG, "head", "00")
    stores.main.write(key, b"x", keep_seconds=60)
    news, forgotten = StateNews(stores.main.news), list[str]()
    # What it forgets late would be written again.
    news.listen("purge", lambda tag, _: stores.main.write(key, b"queued", keep_seconds=60))
    news.listen("purge", lambda tag, _: forgotten.append(tag))
    queues: list[WritesLater] = [CompactionLogWriter(stores.main, 60), OriginalsArchive(stores.main, 60)]
    purge = LivePurge(stores, news, make_search(stores.originals), queues)
    assert await purge.run(_LIVE_TAG) == PurgeCount(state=1)
    assert forgotten == [_LIVE_TAG]
    assert await stores.main.read(key) is None


async def test_other_processes_forget_and_what_they_still_wrote_is_deleted_after_a_moment() -> None:
    server = ToyServer()
    here, there = server.connect(), server.connect()
    await here.open()
    await there.open()
    stores = Stores(main=here, originals=MemoryStore(), named=MemoryStore())
    key, forgotten = make_key(_LIVE_TAG, "head", "00"), list[str]()
    StateNews(there.news).listen("purge", lambda tag, _: forgotten.append(tag))

    async def settle() -> None:
        """The other process had a write under way."""
        await there.write_durably(key, b"late", keep_seconds=60)

    log_writer, archive = CompactionLogWriter(here, 60), OriginalsArchive(stores.originals, 60)
    search = make_search(stores.originals)
    purge = LivePurge(stores, StateNews(here.news), search, [log_writer, archive], settle)
    assert (await purge.run(_LIVE_TAG)).state == 1
    assert _LIVE_TAG in forgotten
    assert await there.read(key) is None


# What belongs to a conversation


async def test_a_tenants_heads_are_forgotten_also_those_that_wait_to_be_written() -> None:
    store = await make_store()
    heads = make_state(store).heads
    heads.save(make_head(talk(3)))
    await heads.save_durably(make_head(talk(2)))
    heads.forget(make_tag("u"))
    assert heads.find(talk(3), "s") is not None
    heads.forget(make_tag("t"))
    assert heads.find(talk(3), "s") is None and not heads.is_durable("c", None, ())
    await store.purge(make_tag("t"))
    heads.flush()
    assert await store.scan("head:") == []
