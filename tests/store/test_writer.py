"""What the writer does about damage, other processes, expiry and bounds."""

import asyncio
import contextlib
import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.store import StoreError
from gateway.store.disk import DiskStore
from gateway.store.volume import quarantine
from tests.store.clock import Clock
from tests.store.directory import count_bytes, fill, find_quarantined, opened, run_sql, write_garbage
from tests.toy.running import wait_until


def truncate(directory: Path) -> None:
    os.truncate(directory / "cache.db", 3_000)


def change_schema(directory: Path) -> None:
    run_sql(directory, ("DROP TABLE Cache", ()), ("CREATE TABLE Cache(key, other)", ()))


def change_settings(directory: Path) -> None:
    run_sql(directory, ("INSERT INTO Settings VALUES ('close', 1)", ()))


def make_database_a_directory(directory: Path) -> None:
    (directory / "cache.db").unlink()
    (directory / "cache.db").mkdir()


DAMAGES = [write_garbage, truncate, change_schema, change_settings, make_database_a_directory]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_store_is_moved_away_at_start_and_an_empty_one_is_used(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "store"
    for _ in range(2):
        await fill(directory)
        damage(directory)
        async with opened(directory) as store:
            assert await store.read("head:1") is None
            await store.write_durably("head:1", b"new", keep_seconds=60)
            assert await store.read("head:1") == b"new"
        shutil.rmtree(directory)
    quarantined = find_quarantined(directory)
    assert len(quarantined) == 2
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert all(str(directory) in error for error in errors)
    assert all(any(str(place) in error for error in errors) for place in quarantined)


def overwrite_pages(directory: Path) -> None:
    run_sql(directory, ("PRAGMA wal_checkpoint(TRUNCATE)", ()))
    with (directory / "cache.db").open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xa5" * 4_096 * 20)


def cut_short(directory: Path) -> None:
    run_sql(directory, ("PRAGMA wal_checkpoint(TRUNCATE)", ()))
    os.truncate(directory / "cache.db", 8_192)


@pytest.mark.parametrize("damage", [overwrite_pages, cut_short])
@pytest.mark.parametrize("how", ["read", "write"])
async def test_a_store_damaged_while_in_use_is_moved_away_and_an_empty_one_is_used(
    tmp_path: Path, damage: Callable[[Path], None], how: str
) -> None:
    directory = tmp_path / "store"
    await fill(directory)
    async with opened(directory) as store:
        await store.write_durably("head:1", b"old", keep_seconds=60)
        damage(directory)
        if how == "read":
            assert await store.read("head:7") is None
            await wait_until(lambda: bool(find_quarantined(directory)))
        await store.write_durably("head:1", b"new", keep_seconds=60)
        assert await store.read("head:1") == b"new"
        assert len(await store.scan("")) == 1
    assert len(find_quarantined(directory)) == 1
    async with opened(directory) as store:
        assert await store.read("head:1") == b"new"


async def test_a_directory_that_vanishes_is_made_anew(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as store:
        await store.write_durably("head:1", b"1", keep_seconds=60)
        shutil.rmtree(directory)
        await store.write_durably("head:2", b"2", keep_seconds=60)
        assert await store.read("head:2") == b"2"
    assert (directory / "cache.db").exists()


async def test_two_processes_that_find_the_same_damage_move_the_store_away_once(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory)
    write_garbage(directory)
    stores = [DiskStore(directory) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.write_durably("head:1", b"1", keep_seconds=60) for store in stores))
    assert [await store.read("head:1") for store in stores] == [b"1"] * 4
    for store in stores:
        await store.close()
    assert len(find_quarantined(directory)) == 1


async def test_after_one_process_moves_the_store_away_the_other_uses_the_new_one(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as one:
        await one.write_durably("pivot:1", b"1", keep_seconds=60)
        quarantine(directory)
        async with opened(directory) as two:
            await two.write_durably("pivot:2", b"2", keep_seconds=60)
            await one.write_durably("pivot:3", b"3", keep_seconds=60)
            assert await one.scan("") == await two.scan("") == [("pivot:2", b"2"), ("pivot:3", b"3")]
    assert len(find_quarantined(directory)) == 1


async def test_a_locked_database_is_not_damage(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory, lock_seconds=0.1) as store:
        await store.write_durably("pivot:1", b"1", keep_seconds=60)
        with contextlib.closing(sqlite3.connect(directory / "cache.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError):
                await store.write_durably("pivot:2", b"2", keep_seconds=60)
            assert await store.read("pivot:1") == b"1"
            assert await store.read("pivot:2") == b"2"
            other.execute("ROLLBACK")
        await store.write_durably("pivot:3", b"3", keep_seconds=60)
        assert [key for key, _ in await store.scan("")] == ["pivot:1", "pivot:2", "pivot:3"]
    assert find_quarantined(directory) == []


async def test_expired_records_are_removed_in_the_background(tmp_path: Path) -> None:
    directory, clock = tmp_path / "store", Clock()
    async with opened(directory, clock=clock) as store:
        for number in range(1_000):
            store.write(f"head:{number}", b"1", keep_seconds=10)
        await store.write_durably("pivot:1", b"1", keep_seconds=1_000)
        clock.now += 100
        await wait_until(lambda: run_sql(directory, ("SELECT count(*) FROM Cache", ())) == [(1,)])
        assert await store.read("pivot:1") == b"1"


async def test_a_bounded_store_drops_the_records_written_longest_ago(tmp_path: Path) -> None:
    directory, most = tmp_path / "store", 400_000
    async with opened(directory, max_bytes=most) as store:
        await store.write_durably("head:0", random.Random(0).randbytes(2_000), keep_seconds=3_600)
        for number in range(1, 600):
            store.write(f"head:{number:03}", random.Random(number).randbytes(2_000), keep_seconds=3_600)
        # A record that is written again is the newest.
        await store.write_durably("head:0", b"again", keep_seconds=3_600)
        await wait_until(lambda: count_bytes(directory) <= most)
        kept = sorted(key for key, _ in await store.scan(""))
    assert kept[0] == "head:0" and len(kept) > 80
    assert kept[1:] == [f"head:{number:03}" for number in range(601 - len(kept), 600)]


async def test_large_records_count_and_the_oldest_go(tmp_path: Path) -> None:
    directory, most = tmp_path / "store", 8 << 20
    async with opened(directory, max_bytes=most) as store:
        for number in range(30):
            await store.write_durably(f"head:{number:02}", bytes(400_000), keep_seconds=3_600)
        await wait_until(lambda: count_bytes(directory) <= most)
        kept = sorted(key for key, _ in await store.scan(""))
    # Ten records go at once.
    assert len(kept) >= 10
    assert kept == [f"head:{number:02}" for number in range(30 - len(kept), 30)]


async def test_a_bound_that_was_lowered_holds_from_the_start(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory)
    async with opened(directory, max_bytes=100_000):
        await wait_until(lambda: count_bytes(directory) <= 100_000)
