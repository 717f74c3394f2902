"""What earlier versions wrote is found after an upgrade, under the tag of its owner."""

import hashlib
import logging
import zlib
from pathlib import Path

import pytest

from gateway.originals.archive import OriginalsArchive
from gateway.originals.removed import Original, RemovedMessages, render_removed
from gateway.reporting.compaction_log import CompactionLog, CompactionLogWriter, LogEntry, render_log
from gateway.state import make_state
from gateway.state.record_cache import Storage
from gateway.state.records import render_record
from gateway.store.disk import DiskStore
from gateway.store.keys import make_tag
from gateway.upgrade import upgrade_stores
from tests.builders.chat import converse, make_pivot
from tests.builders.compaction import talk

_OWNER = "tenant:acme"
_LOG = CompactionLog(
    owner=_OWNER,
    entries=(LogEntry(at_seconds=1.0, kind="summary", trigger="auto", reason="overflow"),),
)


async def write(directory: Path, records: dict[str, bytes]) -> None:
    store = DiskStore(directory)
    await store.open()
    for key, value in records.items():
        await store.write_durably(key, value, keep_seconds=600)
    await store.close()


async def test_a_pivot_and_a_compaction_log_are_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.upgrade")
    pivot = make_pivot(converse(talk(4)), 3, owner=_OWNER)
    old = {f"pivot:{pivot.key}": render_record(_OWNER, pivot), "log:ab12": render_log(_LOG)}
    await write(tmp_path, old)
    upgrade_stores(f"disk:{tmp_path}")
    upgrade_stores(f"disk:{tmp_path}")
    store = DiskStore(tmp_path)
    await store.open()
    state = make_state(Storage(store=store, keep_seconds=600, max_bytes=1 << 20), store)
    assert await state.pivots.load(_OWNER, pivot.key) == pivot
    writer = CompactionLogWriter(store, 600)
    assert await writer.find_tag("ab12") == make_tag(_OWNER)
    assert await writer.load(make_tag(_OWNER), "ab12") == _LOG
    await store.close()
    assert [message.partition(" in ")[0] for message in caplog.messages] == [
        f"store {tmp_path}: records of an earlier version get other names",
        f"store {tmp_path}: 2 records renamed",
    ]


async def test_an_original_is_found_again_by_the_list_that_names_it(tmp_path: Path) -> None:
    raw = b'{"role":"user","content":"hi"}'
    name = _OWNER.encode()
    digest = hashlib.sha256(b"%d:%s" % (len(name), name) + raw).hexdigest()
    removed = RemovedMessages(
        owner=_OWNER, created_seconds=1.0, kind="summary", originals=[Original(0, len(raw), digest)]
    )
    await write(
        tmp_path / "originals",
        {
            f"original:{digest}": zlib.compress(raw),
            "original:" + "0" * 64: zlib.compress(b"nobody's"),
            "taken:ab12:0001": zlib.compress(render_removed(removed)),
        },
    )
    upgrade_stores(f"disk:{tmp_path}")
    store = DiskStore(tmp_path / "originals")
    await store.open()
    archive = OriginalsArchive(store, 600)
    assert await archive.load(make_tag(_OWNER), "ab12", digest) == raw
    assert await archive.load(make_tag("tenant:other"), "ab12", digest) is None
    await store.close()


async def test_a_store_that_cannot_be_upgraded_is_named_and_left_to_its_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache.db").write_bytes(b"something else")
    (tmp_path / "theirs").write_bytes(b"")
    upgrade_stores(f"disk:{tmp_path}")
    assert "records of an earlier version are not used yet" in caplog.text
    assert (tmp_path / "cache.db").read_bytes() == b"something else"


def test_a_store_in_memory_or_a_new_folder_has_nothing_to_upgrade(tmp_path: Path) -> None:
    upgrade_stores("memory:")
    upgrade_stores(f"disk:{tmp_path}/new")
    assert list(tmp_path.iterdir()) == []
