"""Which directories are ours, and what a foreign one loses: nothing."""

import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import diskcache
import pytest

from gateway.store import open_store
from gateway.store.errors import Foreign
from gateway.store.ownership import MARK_NAME, claim
from tests.store.directory import fill, find_quarantined, opened, plant_file, write_garbage


def describe(path: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a path, and its own."""
    found = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    return {str(each): (each.lstat().st_mode, each.read_bytes() if each.is_file() else b"") for each in found}


def remove_marks(directory: Path) -> None:
    """As the version before left it: without marks, and open to others."""
    for mark in directory.rglob(MARK_NAME):
        mark.unlink()
    directory.chmod(0o755)
    for file in directory.glob("cache.db*"):
        file.chmod(0o644)


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


async def refuse(directory: Path, match: str) -> None:
    """Opens a store there, which must fail and change nothing."""
    before = describe(directory)
    with pytest.raises(Foreign, match=match) as refused:
        async with opened(directory):
            pass
    assert "\n" not in str(refused.value) and str(directory) in str(refused.value)
    assert describe(directory) == before
    assert find_quarantined(directory) == []


@pytest.mark.parametrize("name", ["thesis.txt", "cache.db", "ab", "originals", ".git"])
async def test_a_directory_that_holds_anything_else_is_refused_and_stays_as_it_is(
    tmp_path: Path, name: str
) -> None:
    directory = tmp_path / "home"
    directory.mkdir(mode=0o755)
    (directory / name).write_text("precious")
    await refuse(directory, name)


async def test_a_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("precious")
    await refuse(path, "a file")


async def test_another_programs_diskcache_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with diskcache.Cache(str(directory)) as cache:
        cache["key"] = "value"
    await refuse(directory, "cache.db")


@pytest.mark.parametrize(
    ("content", "match"),
    [("my notes", "not the gateway's"), ("context-window-gateway store 2\n", "version '2'")],
)
async def test_a_mark_that_is_not_this_versions_is_refused(tmp_path: Path, content: str, match: str) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    (directory / MARK_NAME).write_text(content)
    await refuse(directory, match)


@pytest.mark.parametrize("name", ["cache.db", "cache.db-wal", MARK_NAME])
async def test_a_link_in_place_of_a_file_of_ours_is_not_followed(tmp_path: Path, name: str) -> None:
    directory, precious = tmp_path / "store", tmp_path / "precious"
    await fill(directory, 1)
    precious.write_text("precious")
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(precious)
    await refuse(directory, name)
    assert precious.read_text() == "precious"


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("exists", [True, False])
async def test_directory_and_files_are_private_whatever_the_umask(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "a" / "store"
    if exists:
        directory.mkdir(parents=True, mode=0o775)
    async with opened(directory) as store:
        await store.write_durably("head:1", b"1", keep_seconds=60)
        names = {path.name: get_mode(path) for path in directory.iterdir()}
        assert names == dict.fromkeys(("cache.db", "cache.db-wal", "cache.db-shm", MARK_NAME), 0o600)
        assert get_mode(directory) == 0o700


async def test_a_fresh_volume_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    async with opened(tmp_path) as store:
        await store.write_durably("head:1", b"1", keep_seconds=60)


async def test_a_store_of_the_version_before_is_ours_and_gets_its_mark(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 3)
    await fill(directory / "originals", 3)
    plant_file(directory, "head:x", b"large", 0.0)
    remove_marks(directory)
    async with opened(directory) as store, opened(directory / "originals") as originals:
        assert len(await store.scan("")) == len(await originals.scan("")) == 3
    assert (directory / MARK_NAME).exists() and (directory / "originals" / MARK_NAME).exists()
    assert (get_mode(directory), get_mode(directory / "cache.db")) == (0o700, 0o600)


async def test_a_store_that_was_killed_before_its_first_checkpoint_is_ours(tmp_path: Path) -> None:
    directory, copy = tmp_path / "store", tmp_path / "copy"
    async with opened(directory) as store:
        await store.write_durably("head:1", b"1", keep_seconds=60)
        # Its tables are in the log alone, and it will not be closed.
        shutil.copytree(directory, copy)
    remove_marks(copy)
    async with opened(copy) as store:
        assert await store.read("head:1") == b"1"


@pytest.mark.parametrize("place", ["notes.txt", "originals/notes.txt", "ab/notes.txt"])
async def test_a_store_of_the_version_before_with_anything_beside_it_is_refused(
    tmp_path: Path, place: str
) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    remove_marks(directory)
    (directory / place).parent.mkdir(exist_ok=True)
    (directory / place).write_text("precious")
    await refuse(directory, place.partition("/")[0] if "ab" in place else "notes.txt")


async def test_a_damaged_store_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    write_garbage(directory)
    (directory / MARK_NAME).unlink()
    await refuse(directory, "cache.db")


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


async def test_a_link_to_a_directory_leads_there_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "disk", tmp_path / "state"
    target.mkdir()
    link.symlink_to(target)
    await fill(target, 1)
    write_garbage(target)
    store = open_store(f"disk:{link}")
    await store.open()
    await store.write_durably("head:1", b"1", keep_seconds=60)
    await store.close()
    assert link.is_symlink() and link.resolve() == target and (target / MARK_NAME).exists()
    assert len(find_quarantined(target)) == 1


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_crash_while_the_mark_was_written_is_repaired(tmp_path: Path, length: int) -> None:
    directory = tmp_path / "store"
    claim(directory)
    mark = directory / MARK_NAME
    whole = mark.read_bytes()
    mark.write_bytes(whole[:length])
    claim(directory)
    assert mark.read_bytes() == whole


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


async def test_two_gateways_on_one_directory_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "store"
    async with opened(directory):
        assert not caplog.records
        async with opened(directory) as second:
            await second.write_durably("head:1", b"1", keep_seconds=60)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert ["another gateway" in record.getMessage() for record in warned] == [True]
    caplog.clear()
    async with opened(directory):
        assert not caplog.records
