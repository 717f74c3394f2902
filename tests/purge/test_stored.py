"""What the stores hold of a tenant is deleted, with the records that only point to it."""

from pathlib import Path

from gateway.purge.stored import PurgeCount, purge_stores
from gateway.reporting.compaction_log import CompactionLog, LogEntry, make_place_key, render_log
from gateway.store.keys import make_key, make_tag
from gateway.store.stores import Stores, make_stores

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


def test_counts_add_up() -> None:
    assert PurgeCount(state=1, named=2).plus(PurgeCount(state=2, originals=4)) == PurgeCount(
        state=3, originals=4, named=2
    )
