"""Records of a store that another process may have open."""

import os
import time
from pathlib import Path

from gateway.store.snapshot import read_snapshot
from tests.store.directory import PLANT, opened, run_sql, write_garbage


async def test_records_are_read_while_their_store_is_open(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as store:
        for key in ("head:1", "learned:1", "learned:2", "pivot:1"):
            await store.write_durably(key, key.encode(), keep_seconds=60)
        assert sorted(read_snapshot(directory, "learned:")) == [
            ("learned:1", b"learned:1"),
            ("learned:2", b"learned:2"),
        ]
        # The store is as usable as before.
        await store.write_durably("learned:3", b"", keep_seconds=60)
    assert len(read_snapshot(directory, "learned:")) == 3


async def test_records_that_expired_or_are_damaged_are_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as store:
        await store.write_durably("learned:1", b"1", keep_seconds=60)
    run_sql(directory, (PLANT, ("learned:2", 1, time.time() + 60, 1, None, b"damaged")))
    run_sql(directory, ("UPDATE Cache SET expire_time = 1 WHERE key = ?", ("learned:1",)))
    assert read_snapshot(directory, "learned:") == []


async def test_a_store_that_is_absent_or_damaged_has_no_records_and_stays_as_it_is(tmp_path: Path) -> None:
    assert read_snapshot(tmp_path / "absent", "learned:") == []
    (tmp_path / "other").mkdir()
    assert read_snapshot(tmp_path / "other", "learned:") == []
    assert not (tmp_path / "absent").exists() and list((tmp_path / "other").iterdir()) == []
    async with opened(tmp_path / "store") as store:
        await store.write_durably("learned:1", b"1", keep_seconds=60)
    write_garbage(tmp_path / "store")
    assert read_snapshot(tmp_path / "store", "learned:") == []
    assert sorted(os.listdir(tmp_path)) == ["other", "store"]
