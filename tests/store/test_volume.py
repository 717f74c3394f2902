import asyncio
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.store.ownership import MARK_NAME
from gateway.store.pending import Op
from gateway.store.record import render_record
from gateway.store.volume import BytesDisk, open_volume, quarantine
from tests.store.clock import Clock
from tests.store.directory import (
    PLANT,
    fill,
    find_quarantined,
    opened,
    plant_file,
    run_sql,
    write_garbage,
)
from tests.toy.running import wait_until


async def test_a_planted_file_name_cannot_remove_what_lies_outside(tmp_path: Path) -> None:
    directory, precious = tmp_path / "store", tmp_path / "precious"
    await fill(directory, 1)
    precious.touch()
    run_sql(directory, (PLANT, ("head:x", 1, time.time() + 1_000, 2, "../precious", None)))
    async with opened(directory) as store:
        await store.write_durably("head:x", b"1", keep_seconds=60)
    assert precious.exists()


def test_nothing_but_text_keys_and_bytes_goes_through_diskcache(tmp_path: Path) -> None:
    disk = BytesDisk(str(tmp_path), 10)
    for key in (1, 1.5, b"x", None, ("a",)):
        with pytest.raises(TypeError):
            disk.put(key)
    for value in ("text", 1, None, bytearray(b"x"), {"a": 1}):
        with pytest.raises(TypeError):
            disk.store(value, False)
    assert [disk.get("key", True), disk.get(b"key", True), disk.get("key", False)] == ["key", None, None]


async def test_a_large_value_in_a_file_of_an_older_version_is_read_and_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    file = plant_file(directory, "head:x", b"from a file", time.time() + 60)
    async with opened(directory) as store:
        assert await store.read("head:x") == b"from a file"
        await store.write_durably("head:x", b"from the database", keep_seconds=60)
        assert await store.read("head:x") == b"from the database"
    assert not file.exists()


async def test_the_file_of_an_expired_record_does_not_stay_behind(tmp_path: Path) -> None:
    directory, clock = tmp_path / "store", Clock()
    await fill(directory, 1)
    file = plant_file(directory, "head:x", b"from a file", clock.now + 60)
    clock.now += 100
    async with opened(directory, clock=clock):
        await wait_until(lambda: not file.exists())


async def test_large_values_make_no_files(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as store:
        await store.write_durably("head:1", bytes(3 << 20), keep_seconds=60)
    assert {path.name for path in directory.iterdir() if "cache.db" not in path.name} == {MARK_NAME}


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    now = time.time()
    volume = open_volume(tmp_path / "store", lock_seconds=10)
    volume.write({"head:1": Op(b"before", now + 60)})
    not_bytes: Any = 5
    with pytest.raises(TypeError):
        volume.write({"head:1": Op(b"after", now + 60), "head:2": Op(not_bytes, now + 60)})
    assert volume.read("head:1", now) == render_record("head:1", b"before")
    volume.write({"head:2": Op(b"the volume still works", now + 60)})
    assert volume.list_keys("head:") == ["head:2", "head:1"]
    volume.close()


def test_a_long_expiry_goes_by_pieces(tmp_path: Path) -> None:
    now, hour = time.time(), 3_600
    volume = open_volume(tmp_path / "store", lock_seconds=10)
    volume.write({f"head:{number}": Op(b"1", now + number * hour) for number in range(1, 4)})
    rounds = 1
    while volume.expire_some(now + 10 * hour):
        rounds += 1
    assert rounds > 3
    assert volume.list_keys("") == []
    volume.close()


def test_two_stores_moved_away_in_one_second_get_different_names(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    quarantined = set()
    for _ in range(3):
        directory.mkdir()
        quarantined.add(quarantine(directory))
    assert set(find_quarantined(directory)) == quarantined
    assert len(quarantined) == 3


async def test_without_a_bound_records_leave_only_when_they_expire(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory)
    volume = open_volume(directory, lock_seconds=10)
    assert not volume.trim_some()
    volume.close()
    assert run_sql(directory, ("SELECT count(*) FROM Cache", ())) == [(300,)]


async def test_the_directory_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "store"
    async with opened(directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


async def test_a_commit_is_synced(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    query = (
        "SELECT value FROM Settings WHERE key IN ('sqlite_synchronous', 'sqlite_journal_mode') ORDER BY key"
    )
    assert run_sql(directory, (query, ())) == [("wal",), (2,)]


async def test_a_directory_that_cannot_be_renamed_is_emptied_into_a_subdirectory(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "s"
    await fill(directory, 1)
    # A name this long leaves no room for `.damaged-…`: rename fails as it does for a mount point.
    long = tmp_path / ("x" * 250)
    directory.rename(long)
    write_garbage(long)
    async with opened(long) as store:
        await store.write_durably("head:1", b"1", keep_seconds=60)
    (place,) = long.glob("damaged-*")
    assert (place / "cache.db").read_bytes().startswith(b"this is not")


def test_a_row_holds_the_rendered_record(tmp_path: Path) -> None:
    directory = tmp_path / "store"

    async def write() -> None:
        async with opened(directory) as store:
            store.write("head:1", b"1", keep_seconds=60)

    asyncio.run(write())
    assert run_sql(directory, ("SELECT value FROM Cache", ())) == [(render_record("head:1", b"1"),)]
