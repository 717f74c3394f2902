"""A folder that is full, locked, damaged, removed, foreign or of an earlier version."""

import asyncio
import logging
import os
import random
import resource
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import diskcache
import pytest

from gateway.store import tables
from gateway.store.database import Database, Session
from gateway.store.interface import HeldLease, Key, Lease, Lookup, StoreRefused, Unknown, Unusable
from gateway.store.sqlite import SqliteStore
from tests.store.backends import OTHER_TAG, TAG, Heard, Process, head, opened
from tests.toy.running import wait_until


@contextmanager
def full(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with closing(sqlite3.connect(folder / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def run_sql(folder: Path, text: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        rows = connection.execute(text, values).fetchall()
        connection.commit()
    return rows


def list_set_aside(folder: Path) -> list[Path]:
    return [path for path in folder.glob("state.db.damaged-*") if not path.name.endswith(("-wal", "-shm"))]


def find_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# Full


async def test_a_disk_that_fills_up_is_read_and_written_again_when_it_has_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with opened(tmp_path / "store") as process:
        await process.keep("before")
        with full(1 << 16):
            with pytest.raises(Unusable):
                await process.keep("large", b"x" * (1 << 20))
            with pytest.raises(Unusable):
                await process.keep("large", b"x" * 100_000)
            process.store.put(head("waits"), b"y" * 200_000, 60)
            await wait_until(lambda: process.store.is_away)
            assert await process.get("before") == b"x"
            assert await process.get("waits") == b"y" * 200_000
        await wait_until(lambda: not process.store.is_away)
        assert process.store.waiting_bytes == 0
    assert len(find_errors(caplog)) == 1 and "takes no writes" in find_errors(caplog)[0]
    assert "takes writes again" in caplog.text
    async with opened(tmp_path / "store") as process:
        assert await process.get("waits") == b"y" * 200_000
        assert await process.get("large") is None


async def test_a_store_with_records_opens_on_a_full_disk_and_reads_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as process:
        await process.store.delete(TAG)
        await process.keep("before")
    with full(1 << 10):
        async with opened(tmp_path / "store") as process:
            assert await process.get("before") == b"x"
            process.store.put(head("waits"), b"y", 60)
            with pytest.raises(Unusable):
                await process.keep("durable")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await wait_until(lambda: not process.store.is_away)
            await process.keep("durable")
            assert process.heard.purges == []
            assert await process.get("waits") == b"y"


async def test_a_full_disk_without_a_store_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with full(1 << 12), pytest.raises(StoreRefused, match=r"cannot be written: .*; make room on this disk"):
        await SqliteStore(tmp_path / "store").open()
    assert list((tmp_path / "store").iterdir()) == []


async def test_what_waits_is_bounded_and_the_oldest_go_that_nobody_was_promised(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", max_waiting_bytes=100_000) as process:
        await process.store.hold(TAG, "places", "a", 1, 3_600)
        with locked(tmp_path / "store"):
            process.store.let_go(TAG, "places", "a")
            durable = asyncio.create_task(process.store.put_durable(head("durable"), b"x", 60, wait=30))
            await asyncio.sleep(0)
            for number in range(100):
                process.store.put(head(str(number)), b"x" * 5_000, 60)
            with pytest.raises(Unusable):
                await process.keep("too large", b"x" * 200_000)
            assert process.store.waiting_bytes <= 100_000
            assert await process.get("99") is not None and await process.get("0") is None
        assert await durable == b"x"
        assert await process.store.hold(TAG, "places", "b", 1, 60)


async def test_a_store_in_memory_is_bounded_and_drops_what_ends_first() -> None:
    async with opened(None, max_in_memory_bytes=4 << 20) as process:
        await process.store.put_durable(head("for long"), b"x", 3_600, wait=10)
        for number in range(1_000):
            process.store.put(head(str(number)), random.Random(number).randbytes(10_000), 60 + number)
            if number % 50 == 0:
                await process.keep("end")
        await process.keep("end")
        assert await process.get("999") is not None
        assert await process.get("0") is None
        assert await process.get("for long") == b"x"


async def test_a_store_in_memory_drops_originals_before_anything_that_costs_a_summary() -> None:
    async with opened(None, max_in_memory_bytes=4 << 20) as process:
        await process.keep("summary")
        for number in range(500):
            value = random.Random(number).randbytes(20_000)
            await process.store.put_durable(Key(TAG, "original", str(number)), value, 3_600, wait=10)
        assert await process.get("499", kind="original") is not None
        assert await process.get("0", kind="original") is None
        assert await process.get("summary") == b"x"


# Locked


async def test_a_lock_is_not_damage_reads_go_on_and_leases_are_granted_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as process, opened(tmp_path / "store") as other:
        await process.keep("before")
        with locked(tmp_path / "store"):
            with pytest.raises(Unknown):
                await process.store.put_durable(head("late"), b"late", 60, wait=0.05)
            with pytest.raises(Unknown):
                await process.store.take(head("before"), wait=0.05)
            assert await process.get("before") == b"x"
            assert await process.get("late") == b"late"
            alone = await process.store.claim(TAG, "branch", ttl=60, wait=0.05)
            assert alone == Lease(TAG, "branch", 0)
            with pytest.raises(Unknown):
                await process.store.count(TAG, "calls", 1, 1, 60)
        await process.keep("after")
        assert await other.get("late") == b"late"
        # What its caller has given up is not done.
        assert await other.get("before") == b"x"
        async with asyncio.timeout(10):
            while isinstance(await other.store.claim(TAG, "branch", ttl=60), HeldLease):
                await asyncio.sleep(0.01)
    assert list_set_aside(tmp_path / "store") == []


async def test_what_is_taken_too_late_for_the_one_who_asked_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up, write_batch = threading.Event(), tables.write_batch

    def write_late(*values: Any, **named: Any) -> Any:
        result = write_batch(*values, **named)
        given_up.wait(10)
        return result

    async with opened(tmp_path / "store") as process, opened(tmp_path / "store") as other:
        await process.keep("a", b"marker", group="g")
        with monkeypatch.context() as patch:
            patch.setattr(tables, "write_batch", write_late)
            with pytest.raises(Unknown):
                await process.store.take(head("a"), wait=0.1)
            given_up.set()
            await process.keep("end")
        assert await other.get("a") == b"marker"
        await other.store.delete(TAG, "g")
        assert await process.get("a") is None


async def test_what_is_late_does_not_replace_what_another_has_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as process, opened(tmp_path / "store") as other:
        await other.keep("a", b"theirs")
        with locked(tmp_path / "store"):
            with pytest.raises(Unknown):
                await process.store.put_durable(head("a"), b"late", 60, wait=0.05)
            assert await process.get("a") == b"theirs"
        await process.keep("end")
        assert await process.get("a") == b"theirs"


async def test_a_store_that_is_locked_at_the_start_opens(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as process:
        await process.keep("before")
        with locked(tmp_path / "store"):
            async with opened(tmp_path / "store") as other:
                assert await other.get("before") == b"x"


@pytest.mark.parametrize("use", ["write", "look", "purge"])
async def test_a_start_that_cannot_see_what_was_purged_before_takes_nothing_old_as_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    find_position, failures = tables.find_position, [Unknown("no room")]

    def fail_once(connection: sqlite3.Connection) -> tuple[int, int]:
        if failures:
            raise failures.pop()
        return find_position(connection)

    async with opened(tmp_path / "store") as before:
        await before.store.delete(TAG, "g")
        await before.keep("today", group="g")
    monkeypatch.setattr(tables, "find_position", fail_once)
    async with opened(tmp_path / "store") as process, opened(tmp_path / "store") as other:
        if use == "write":
            await process.keep("new", group="g")
        elif use == "purge":
            await process.store.delete(TAG, "h")
        await wait_until(partial(has_gap, process))
        assert process.heard.purges == ([(TAG, "h")] if use == "purge" else [])
        assert await other.get("today") == b"x"
        await other.store.delete(TAG, "g")
        await wait_until(lambda: (TAG, "g") in process.heard.purges)


# Damaged


def write_garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(50_000))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def put_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


def change_tables(path: Path) -> None:
    run_sql(path.parent, "DROP TABLE record")
    run_sql(path.parent, "CREATE TABLE record(key, value)")


def change_version(path: Path) -> None:
    run_sql(path.parent, "PRAGMA user_version=77")


async def test_a_record_that_lost_its_end_or_a_bit_or_was_written_for_another_key_is_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as process:
        await process.keep("a", b"some value", group="g")
        ((whole,),) = run_sql(folder, "SELECT value FROM record")
        assert isinstance(whole, bytes)
        flipped = [
            whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))
        ]
        for damaged in (*flipped, *(whole[:end] for end in range(len(whole)))):
            run_sql(folder, "UPDATE record SET value=?", damaged)
            assert await process.get("a") is None
        assert await process.store.list("head", wait=10) == []
        assert await process.store.take(head("a"), wait=10) is None
        for place in (
            "SELECT kind, tag, 'b'",
            "SELECT 'pivot', tag, name",
            f"SELECT kind, '{OTHER_TAG}', name",
        ):
            await process.keep("a", b"some value", group="g")
            run_sql(folder, f"INSERT INTO record {place}, grp, expires, known, value FROM record LIMIT 1")
            assert await process.get("a") == b"some value"
        assert [await process.get("b"), await process.get("a", kind="pivot")] == [None, None]
        assert await process.get("a", tag=OTHER_TAG) is None
    assert "a damaged record of kind head counts as absent" in caplog.text
    assert find_errors(caplog) == [] and list_set_aside(folder) == []


@pytest.mark.parametrize(
    "damage", [write_garbage, cut, empty, put_a_folder_there, change_tables, change_version]
)
async def test_a_damaged_database_is_set_aside_at_the_start_and_an_empty_one_is_used(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as process:
        for number in range(100):
            process.store.put(head(str(number)), b"x" * 1_000, 60)
        await process.keep("a")
    damage(folder / "state.db")
    async with opened(folder) as process:
        assert await process.get("a") is None
        await process.keep("a", b"new")
    (aside,) = list_set_aside(folder)
    assert len(find_errors(caplog)) == 1
    assert aside.name in find_errors(caplog)[0] and "lost its records" in find_errors(caplog)[0]
    async with opened(folder) as process:
        assert await process.get("a") == b"new"


def overwrite_pages(path: Path) -> None:
    run_sql(path.parent, "PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xa5" * (path.stat().st_size - 4_096))


def cut_short(path: Path) -> None:
    run_sql(path.parent, "PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, 8_192)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def remove_file(path: Path) -> None:
    path.unlink()


async def read_until_unknown(process: Process) -> None:
    """It is never absent before."""
    with pytest.raises(Unknown):
        while True:
            assert await process.get("7") is not None
            assert await process.get("299") is not None


def has_gap(process: Process) -> bool:
    return process.heard.gaps > 0


@pytest.mark.parametrize("damage", [overwrite_pages, cut_short, remove_folder, remove_file])
@pytest.mark.parametrize("first", ["read", "write"])
async def test_two_processes_go_on_in_one_new_file_when_theirs_is_damaged_or_removed(
    tmp_path: Path, damage: Callable[[Path], None], first: str
) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as one, opened(folder) as other:
        for number in range(300):
            one.store.put(head(str(number)), b"x" * 1_000, 60)
        await one.keep("end")
        assert await other.get("7") is not None
        damage(folder / "state.db")
        if first == "read":
            await read_until_unknown(one)
            await read_until_unknown(other)
        await one.keep("a", b"new")
        await other.keep("b", b"newer")
        for process in (one, other):
            await wait_until(partial(has_gap, process))
            assert [await process.get(name) for name in ("a", "b", "7")] == [b"new", b"newer", None]
    assert len(list_set_aside(folder)) == (1 if damage in (overwrite_pages, cut_short) else 0)
    async with opened(folder) as process:
        assert await process.get("b") == b"newer"


async def test_a_file_that_is_replaced_while_it_is_opened_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, connect = tmp_path / "store", sqlite3.connect
    async with opened(folder) as process:
        await process.keep("before")

    def connect_and_replace(*options: Any, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*options, **more)
        if list_set_aside(folder):
            return connection
        connection.execute("SELECT 1 FROM record").fetchall()
        for path in list(folder.glob("state.db*")):
            path.rename(path.with_name(path.name.replace("state.db", "state.db.damaged-1")))
        Database(folder, 0, lambda: None).write(Session(), lambda _: None)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_and_replace)
        other = SqliteStore(folder)
        await other.open()
    await Process(other, Heard()).keep("promised")
    assert run_sql(folder, "SELECT name FROM record") == [("promised",)]
    await other.close()


async def test_an_altered_record_counts_as_absent_and_the_next_name_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as process:
        for name in ("a", "b", "c"):
            await process.keep(name, name.encode())
        run_sql(folder, "UPDATE record SET value=? WHERE name='a'", b"....secret")
        run_sql(folder, "UPDATE record SET value=(SELECT value FROM record WHERE name='c') WHERE name='b'")
        assert await process.find("a", "b", "c") == ("c", b"c")
        assert [record.key.name for record in await process.store.list("head")] == ["c"]
        await process.keep("a", b"again")
        assert await process.get("a") == b"again"
    assert "secret" not in caplog.text and find_errors(caplog) == []


# Foreign, private, earlier


def put_foreign_database(folder: Path) -> None:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        connection.execute("CREATE TABLE theirs(x)")
        connection.commit()


def put_foreign_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("theirs")


def put_file(folder: Path) -> None:
    folder.write_text("theirs")


def put_link(folder: Path) -> None:
    folder.mkdir()
    (folder.parent / "elsewhere").write_text("theirs")
    (folder / "state.db").symlink_to(folder.parent / "elsewhere")


def put_foreign_cache(folder: Path) -> None:
    with diskcache.Cache(str(folder)) as cache:
        cache["theirs"] = 1


def read_all(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.parent.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "make", [put_foreign_database, put_foreign_file, put_file, put_link, put_foreign_cache]
)
async def test_what_is_not_ours_is_refused_with_words_and_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "store"
    make(folder)
    before = read_all(folder)
    with pytest.raises(StoreRefused, match=r"is not used: .*; nothing .*was changed: name an empty or a new"):
        await SqliteStore(folder).open()
    assert read_all(folder) == before


async def test_a_folder_that_cannot_be_made_is_refused_with_what_to_do() -> None:
    with pytest.raises(StoreRefused, match=r"cannot be used by user .* let this user write there"):
        await SqliteStore(Path("/proc/store")).open()


async def test_files_and_folders_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    async with opened(folder) as process:
        await process.keep("a")
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_records_of_an_earlier_version_stay_until_a_tenant_is_purged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    for name in ("", "originals", "named"):
        with diskcache.Cache(str(folder / name), size_limit=1 << 60) as cache:
            cache["head:{x}1"] = "text of a user"
    (folder / "gateway-store").write_text("context-window-gateway store 1\n")
    (folder / "search").mkdir()
    (folder.parent / "store.damaged-1").mkdir()
    async with opened(folder) as process:
        assert "records of an earlier version: they are set aside" in caplog.text
        await process.keep("a", group="g")
        await process.store.delete(TAG, "g")
        assert (folder / "cache.db").exists()
        await process.store.delete(OTHER_TAG)
        assert sorted(path.name for path in folder.iterdir() if "state.db" not in path.name) == ["search"]
        assert not (folder.parent / "store.damaged-1").exists()


@pytest.mark.parametrize("group", [None, "g"])
async def test_no_byte_of_what_is_purged_is_left_in_any_file(tmp_path: Path, group: str | None) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as one, opened(folder) as other:
        for number in range(200):
            text = f"THE SECRET {number} ".encode() * random.Random(number).randrange(1, 700)
            await one.store.put_durable(head(str(number)), text, 60, group="g")
            one.store.put(head(str(number)), text[::-1], 60, group="g")
        await other.keep("theirs", b"theirs", tag=OTHER_TAG)
        await one.keep("end", b"tail", group="g")
        assert await one.get("7") is not None
        assert await other.store.delete(TAG, group) == 201
        files = read_all(folder)
        assert len(files) == 3
        for path, data in files.items():
            assert b"SECRET" not in data and b"TERCES" not in data, path
        assert await one.get("theirs", tag=OTHER_TAG) == b"theirs"


async def test_what_has_expired_is_removed_and_its_space_given_back(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with opened(folder, sweep_seconds=0, first_expiry_seconds=0) as process:
        for number in range(1_500):
            process.store.put(head(str(number)), b"x" * 8_000, 0.2)
        await process.keep("stays")
        size = (folder / "state.db").stat().st_size + (folder / "state.db-wal").stat().st_size
        assert size > 10 << 20

        def is_removed() -> bool:
            run_sql(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
            is_small = (folder / "state.db").stat().st_size < 5 << 20
            return is_small and run_sql(folder, "SELECT name FROM record") == [("stays",)]

        await wait_until(is_removed)


async def test_nothing_is_removed_soon_after_the_start_so_that_a_wrong_clock_can_be_set(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    async with opened(folder, sweep_seconds=0) as process:
        await process.store.put_durable(head("a"), b"x", 0.01)
        await asyncio.sleep(0.3)
        assert await process.store.get(TAG, [Lookup("head", ["a"])], wait=10) == [None]
        assert run_sql(folder, "SELECT name FROM record") == [("a",)]
