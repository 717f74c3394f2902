"""What the stores hold of one conversation is deleted; a message that another one holds, too, stays."""

import zlib
from pathlib import Path

import msgspec

from gateway.originals.removed import Original, RemovedMessages, render_removed
from gateway.purge.conversation import ConversationPurge, purge_conversation
from gateway.purge.stored import PurgeCount
from gateway.reporting.compaction_log import make_place_key
from gateway.state.conversation_traces import ConversationTraces
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from gateway.store.stores import Stores, make_stores
from tests.purge.test_stored import write_log

_TAG = make_tag("t")


def write_originals(stores: Stores, conversation: str, digests: list[str]) -> None:
    """As the archive does."""
    originals = [Original(at, 3, digest) for at, digest in enumerate(digests)]
    removed = RemovedMessages(owner="t", created_seconds=1.0, kind="summary", originals=originals)
    data = zlib.compress(render_removed(removed))
    stores.originals.write(make_key(_TAG, "taken", f"{conversation}:01"), data, keep_seconds=60)
    for digest in digests:
        stores.originals.write(make_key(_TAG, "original", digest), b"x", keep_seconds=60)


def write_given(stores: Stores, conversation: str, key: str) -> None:
    """As named turns do."""
    listed = msgspec.json.encode([key])
    stores.named.write(make_key(_TAG, "given", f"{conversation}:{key}"), listed, keep_seconds=60)
    stores.named.write(make_key(_TAG, "turn", key), b"x", keep_seconds=60)


async def test_one_conversation_leaves_every_store(tmp_path: Path) -> None:
    stores = make_stores(f"disk:{tmp_path}", originals_bytes=1 << 20, named_bytes=1 << 20)
    await stores.open()
    for conversation, own in (("aa", "0a"), ("bb", "0b")):
        write_log(stores, _TAG, conversation)
        write_originals(stores, conversation, [own, "cc"])
        write_given(stores, conversation, own)
        stores.main.write(make_key(_TAG, "pivot", own), b"x", keep_seconds=60)
        stores.main.write(make_key(_TAG, "activity", conversation), b"x", keep_seconds=60)
    traces = ConversationTraces(pivots=frozenset({"0a"}))
    purge = ConversationPurge(tag=_TAG, conversation_id="aa", traces=traces)
    purged = await purge_conversation(stores, purge)
    # A pivot, what it did, an entry of the log, and the record that points to that.
    assert (purged.count.state, purged.count.originals) == (4, 2)
    assert [key for key, _ in await stores.main.scan("activity:")] == [make_key(_TAG, "activity", "bb")]
    assert purged.traces == traces
    assert await stores.main.read(make_place_key("aa")) is None
    assert await stores.main.read(make_place_key("bb")) == _TAG.encode()
    assert [key for key, _ in await stores.main.scan("pivot:")] == [make_key(_TAG, "pivot", "0b")]
    left = [key.partition("}")[2] for key, _ in await stores.originals.scan("original:")]
    assert left == ["0b", "cc"], "what both have had stays"
    assert [key.partition("}")[2] for key, _ in await stores.named.scan("turn:")] == ["0b"]
    assert [key.partition("}")[2] for key, _ in await stores.named.scan("given:")] == ["bb:0b"]
    again = await purge_conversation(stores, purge)
    assert again.count == PurgeCount()
    await stores.close()


async def test_a_list_that_is_damaged_is_no_obstacle() -> None:
    stores = Stores(main=MemoryStore(), originals=MemoryStore(), named=MemoryStore())
    await stores.open()
    stores.named.write(make_key(_TAG, "given", "aa:0a"), b"\xff", keep_seconds=60)
    stores.originals.write(make_key(_TAG, "taken", "aa:01"), b"\xff", keep_seconds=60)
    await purge_conversation(stores, ConversationPurge(tag=_TAG, conversation_id="aa"))
    assert await stores.named.scan("") == await stores.originals.scan("") == []
