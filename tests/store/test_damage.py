"""A damaged, removed or foreign folder: what is set aside, what is refused, and who may read it."""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import diskcache
import pytest

from gateway.store.disk import DiskStore
from gateway.store.errors import Foreign
from gateway.store.ownership import MARK_NAME
from gateway.store.volume import quarantine
from tests.store.directory import (
    fill,
    find_quarantined,
    opened,
    run_sql,
    write_garbage,
)
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


# Whose folder it is


def describe(path: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a path, and its own."""
    found = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    return {str(each): (each.lstat().st_mode, each.read_bytes() if each.is_file() else b"") for each in found}


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def refuse(directory: Path, match: str) -> None:
    """Opens a store there, which must fail and change nothing."""
    before = describe(directory)
    with pytest.raises(Foreign, match=match) as refused:
        async with opened(directory):
            pass
    assert "\n" not in str(refused.value) and str(directory) in str(refused.value)
    assert describe(directory) == before
    assert find_quarantined(directory) == []


async def test_another_programs_diskcache_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with diskcache.Cache(str(directory)) as cache:
        cache["key"] = "value"
    await refuse(directory, "cache.db")


@pytest.mark.parametrize("name", ["cache.db", "cache.db-wal", MARK_NAME])
async def test_a_link_in_place_of_a_file_of_ours_is_not_followed(tmp_path: Path, name: str) -> None:
    directory, precious = tmp_path / "store", tmp_path / "precious"
    await fill(directory, 1)
    precious.write_text("precious")
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(precious)
    await refuse(directory, name)
    assert precious.read_text() == "precious"


async def test_of_a_damaged_store_only_its_own_files_are_moved(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory)
    await fill(directory / "originals", 1)
    (directory / "notes.txt").write_text("precious")
    (directory / "ab").mkdir()
    (directory / "ab" / "notes.txt").write_text("precious")
    write_garbage(directory)
    async with opened(directory) as store, opened(directory / "originals") as originals:
        await store.write_durably("head:1", b"1", keep_seconds=60)
        assert len(await originals.scan("")) == 1
    assert (directory / "notes.txt").read_text() == (directory / "ab" / "notes.txt").read_text() == "precious"
    assert find_quarantined(directory) == []
    (place,) = directory.glob("damaged-*")
    assert {path.name for path in place.iterdir()} <= {"cache.db", "cache.db-wal", "cache.db-shm"}
    assert get_mode(place) == 0o700
    async with opened(directory) as store:
        assert await store.read("head:1") == b"1"


# Folders that are there already


async def test_a_store_of_the_version_before_is_ours_and_gets_its_mark(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    for each in (directory, directory / "originals"):
        await fill(each, 3)
    for each in (directory, directory / "originals"):
        (each / MARK_NAME).unlink()
    directory.chmod(0o755)
    async with opened(directory) as store, opened(directory / "originals") as originals:
        assert len(await store.scan("")) == len(await originals.scan("")) == 3
    assert (directory / MARK_NAME).exists() and (directory / "originals" / MARK_NAME).exists()
    assert (get_mode(directory), get_mode(directory / "cache.db")) == (0o700, 0o600)
    (directory / MARK_NAME).unlink()
    (directory / "notes.txt").write_text("precious")
    with pytest.raises(Foreign, match=r"notes\.txt"):
        await DiskStore(directory).open()
    assert (directory / "notes.txt").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
async def test_a_folder_of_another_user_keeps_its_mode_and_its_files_are_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a volume of a container: of root or of a user of the host, and open to our group or to all."""
    for name, mode, warnings in (("group", 0o2775, 0), ("all", 0o777, 1)):
        directory = tmp_path / name
        directory.mkdir()
        os.chown(directory, 12_345, 12_345)
        directory.chmod(mode)
        await fill(directory, 1)
        assert get_mode(directory) == mode
        assert get_mode(directory / "cache.db") == 0o600
        assert len(caplog.records) == warnings
