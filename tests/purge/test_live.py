"""A purge while gateways run: each forgets the tenant, and nothing that was queued comes back."""

from gateway.originals.archive import OriginalsArchive
from gateway.purge.live import LivePurge, WritesLater
from gateway.purge.stored import PurgeCount
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.state.news import StateNews
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from gateway.store.stores import Stores
from tests.builders.originals import make_search
from tests.toy.shared_store import ToyServer

_TAG = make_tag("tenant:one")


async def test_this_process_forgets_before_its_store_is_purged() -> None:
    stores = Stores(main=MemoryStore(), originals=MemoryStore(), named=MemoryStore())
    await stores.open()
    key = make_key(_TAG, "head", "00")
    stores.main.write(key, b"x", keep_seconds=60)
    news, forgotten = StateNews(stores.main.news), list[str]()
    # What it forgets late would be written again.
    news.listen("purge", lambda tag, _: stores.main.write(key, b"queued", keep_seconds=60))
    news.listen("purge", lambda tag, _: forgotten.append(tag))
    queues: list[WritesLater] = [CompactionLogWriter(stores.main, 60), OriginalsArchive(stores.main, 60)]
    purge = LivePurge(stores, news, make_search(stores.originals), queues)
    assert await purge.run(_TAG) == PurgeCount(state=1)
    assert forgotten == [_TAG]
    assert await stores.main.read(key) is None


async def test_other_processes_forget_and_what_they_still_wrote_is_deleted_after_a_moment() -> None:
    server = ToyServer()
    here, there = server.connect(), server.connect()
    await here.open()
    await there.open()
    stores = Stores(main=here, originals=MemoryStore(), named=MemoryStore())
    key, forgotten = make_key(_TAG, "head", "00"), list[str]()
    StateNews(there.news).listen("purge", lambda tag, _: forgotten.append(tag))

    async def settle() -> None:
        """The other process had a write under way."""
        await there.write_durably(key, b"late", keep_seconds=60)

    log_writer, archive = CompactionLogWriter(here, 60), OriginalsArchive(stores.originals, 60)
    search = make_search(stores.originals)
    purge = LivePurge(stores, StateNews(here.news), search, [log_writer, archive], settle)
    assert (await purge.run(_TAG)).state == 1
    assert _TAG in forgotten
    assert await there.read(key) is None
