"""What happens to a directory: crashes, damage, pickles, other processes, and a full disk."""

import asyncio
import contextlib
import logging
import os
import pickle
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.store import StoreError
from gateway.store.disk import DiskStore
from gateway.store.pending import Op
from gateway.store.record import render_record
from gateway.store.volume import BytesDisk, open_volume, quarantine
from tests.store.clock import Clock
from tests.store.keep_writing import make_value

ROOT = Path(__file__).resolve().parents[2]


@contextlib.asynccontextmanager
async def opened(directory: Path, **options: object) -> AsyncIterator[DiskStore]:
    store = DiskStore(directory, linger_seconds=0.01, **options)  # type: ignore[arg-type]  # a test's own
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(directory: Path, count: int = 300) -> None:
    async with opened(directory) as store:
        for number in range(count):
            store.write(f"head:{number}", random.Random(number).randbytes(1_000), keep_seconds=3_600)


def find_aside(directory: Path) -> list[Path]:
    return sorted(directory.parent.glob(f"{directory.name}.damaged-*"))


def run_sql(directory: Path, *statements: tuple[str, tuple[object, ...]]) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(directory / "cache.db")) as connection:
        rows = [row for text, values in statements for row in connection.execute(text, values)]
        connection.commit()
    return rows


# --- crashes


async def test_a_kill_at_any_moment_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    directory, durable = tmp_path / "store", set[str]()
    for round_, seconds in enumerate((0.02, 0.1, 0.2, 0.3, 0.4, 0.5)):
        durable |= run_until_killed(directory, round_, seconds)
        async with opened(directory) as store:
            found = dict(await store.scan(""))
        assert durable <= set(found)
        for key, value in found.items():
            name = value.partition(b"|")[0].decode()
            assert value == make_value(name)
            assert key.startswith("same:") or key.endswith(f":{name}")
    assert len(durable) > 50
    assert find_aside(directory) == []


def run_until_killed(directory: Path, round_: int, seconds: float) -> set[str]:
    command = [sys.executable, "-m", "tests.store.keep_writing", str(directory), str(round_)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        # The last line may be torn. Its key was not reported as durable then.
        rest = child.stdout.read().rpartition("\n")[0]
    return {first.strip(), *rest.split()}


# --- pickles and other rows that this program does not write


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


_PLANT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, mode, filename, value)"
    " VALUES (?, ?, 0, ?, 0, ?, ?, ?)"
)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5, "1"])
async def test_a_row_that_claims_to_be_a_pickle_is_never_unpickled(tmp_path: Path, mode: object) -> None:
    directory, fired = tmp_path / "store", tmp_path / "fired"
    await fill(directory, 1)
    bomb = pickle.dumps(Bomb(fired))
    (directory / "bomb.val").write_bytes(bomb)
    until = time.time() + 1_000
    run_sql(
        directory,
        (_PLANT, ("head:bomb", 1, until, mode, None, bomb)),
        (_PLANT, ("head:file", 1, until, mode, "bomb.val", None)),
        (_PLANT, ("head:out", 1, until, mode, "../fired", None)),
        (_PLANT, (bomb, 0, until, 1, None, b"")),
    )
    async with opened(directory) as store:
        assert await store.read("head:bomb") is None
        assert await store.read("head:file") is None
        assert [key for key, _ in await store.scan("")] == ["head:0"]
        await store.write_durably("head:bomb", b"fine", keep_seconds=60)
        assert await store.read("head:bomb") == b"fine"
        store.delete("head:file")
        await store.write_durably("head:out", b"fine", keep_seconds=60)
    assert not fired.exists()
    assert find_aside(directory) == []
    pickle.loads(bomb)  # noqa: S301  # the bomb is real
    assert fired.exists()


async def test_a_planted_file_name_cannot_remove_what_lies_outside(tmp_path: Path) -> None:
    directory, precious = tmp_path / "store", tmp_path / "precious"
    await fill(directory, 1)
    precious.touch()
    run_sql(directory, (_PLANT, ("head:x", 1, time.time() + 1_000, 2, "../precious", None)))
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


async def test_an_altered_record_is_absent_and_the_next_key_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "store"
    await fill(directory, 3)
    run_sql(
        directory,
        ("UPDATE Cache SET value = ? WHERE key = ?", (b"secret", "head:0")),
        (
            "UPDATE Cache SET value = (SELECT value FROM Cache WHERE key = 'head:2') WHERE key = ?",
            ("head:1",),
        ),
    )
    async with opened(directory) as store:
        found = await store.read_first(["head:0", "head:1", "head:2"])
    assert found is not None
    assert found[0] == "head:2"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "secret" not in caplog.text


def plant_file(directory: Path, key: str, value: bytes, expires_at: float) -> Path:
    """A large value as an older version kept it: in a file beside the database."""
    name = f"ab/cd/{len(list(directory.glob('ab/cd/*'))):028x}.val"
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render_record(key, value))
    run_sql(directory, (_PLANT, (key, 1, expires_at, 2, name, None)))
    return path


async def test_a_large_value_in_a_file_of_an_older_version_is_read_and_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    file = plant_file(directory, "head:x", b"from a file", time.time() + 60)
    async with opened(directory) as store:
        assert await store.read("head:x") == b"from a file"
        await store.write_durably("head:x", b"from the database", keep_seconds=60)
        assert await store.read("head:x") == b"from the database"
    assert not file.exists()


async def test_a_record_whose_file_is_gone_is_absent(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    plant_file(directory, "head:x", b"from a file", time.time() + 60).unlink()
    async with opened(directory) as store:
        assert await store.read("head:x") is None


async def test_the_file_of_an_expired_record_does_not_stay_behind(tmp_path: Path) -> None:
    directory, clock = tmp_path / "store", Clock()
    await fill(directory, 1)
    file = plant_file(directory, "head:x", b"from a file", clock.now + 60)
    clock.now += 100
    async with opened(directory, clock=clock):
        await until(lambda: not file.exists())


async def test_large_values_make_no_files(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as store:
        await store.write_durably("head:1", bytes(3 << 20), keep_seconds=60)
    assert {path.name.partition("-")[0] for path in directory.iterdir()} == {"cache.db"}


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


# --- damage


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.01)


def write_garbage(directory: Path) -> None:
    (directory / "cache.db").write_bytes(b"this is not a database" * 1_000)


def truncate(directory: Path) -> None:
    os.truncate(directory / "cache.db", 3_000)


def change_schema(directory: Path) -> None:
    run_sql(directory, ("DROP TABLE Cache", ()), ("CREATE TABLE Cache(key, other)", ()))


def change_settings(directory: Path) -> None:
    run_sql(directory, ("INSERT INTO Settings VALUES ('close', 1)", ()))


def make_database_a_directory(directory: Path) -> None:
    (directory / "cache.db").unlink()
    (directory / "cache.db").mkdir()


def make_it_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("a file")


DAMAGES = [write_garbage, truncate, change_schema, change_settings, make_database_a_directory, make_it_a_file]


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
    asides = find_aside(directory)
    assert len(asides) == 2
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert all(str(directory) in error for error in errors)
    assert all(any(str(aside) in error for error in errors) for aside in asides)


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
            await until(lambda: bool(find_aside(directory)))
        await store.write_durably("head:1", b"new", keep_seconds=60)
        assert await store.read("head:1") == b"new"
        assert len(await store.scan("")) == 1
    assert len(find_aside(directory)) == 1
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
    assert len(find_aside(directory)) == 1


def test_two_stores_moved_away_in_one_second_get_different_names(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    asides = set()
    for _ in range(3):
        directory.mkdir()
        asides.add(quarantine(directory))
    assert set(find_aside(directory)) == asides
    assert len(asides) == 3


# --- a disk that cannot be written


async def test_without_a_disk_records_are_kept_in_memory_and_one_line_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    directory = blocker / "store"
    async with opened(directory) as store:
        store.write("head:1", b"1", keep_seconds=60)
        for _ in range(3):
            with pytest.raises(StoreError):
                await store.write_durably("pivot:1", b"1", keep_seconds=60)
        assert await store.read("head:1") == b"1"
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
        blocker.unlink()
        await store.write_durably("pivot:2", b"2", keep_seconds=60)
    async with opened(directory) as store:
        assert await store.read("head:1") == b"1"
        assert await store.read("pivot:2") == b"2"


_FULL = """
import asyncio, resource, sys
from pathlib import Path
from gateway.store import StoreError
from gateway.store.disk import DiskStore

async def main(directory):
    store = DiskStore(directory, linger_seconds=0.01)
    await store.open()
    await store.write_durably("pivot:1", b"1", keep_seconds=60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    for size in (3 << 20, 900_000, 900_000):
        try:
            await store.write_durably(f"pivot:{size}", bytes(size), keep_seconds=60)
        except StoreError:
            sys.stdout.write("refused\\n")
    store.write("head:1", b"2", keep_seconds=60)
    await asyncio.sleep(0.1)
    assert await store.read("head:1") == b"2"
    assert await store.read("pivot:1") == b"1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.write_durably("pivot:2", b"2", keep_seconds=60)
    await store.close()

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_full_disk_is_not_damage_and_is_written_again_when_it_has_room(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    command = [sys.executable, "-c", _FULL, str(directory)]
    child = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("refused\nrefused\n")
    assert child.stderr.count("kept in memory") == 1
    assert find_aside(directory) == []
    async with opened(directory) as store:
        assert [key for key, _ in await store.scan("pivot:")][:2] == ["pivot:1", "pivot:2"]
        assert await store.read("head:1") == b"2"


async def test_too_many_writes_at_once_are_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "store", max_queued_bytes=10_000) as store:
        for number in range(100):
            store.write(f"head:{number}", bytes(1_000), keep_seconds=60)
        with pytest.raises(StoreError):
            await store.write_durably("pivot:1", bytes(20_000), keep_seconds=60)
        await until(lambda: bool(caplog.records))
    assert len(caplog.records) == 1


# --- other processes, retention, permissions


async def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as one, opened(directory) as two:
        jobs = [
            store.write_durably(f"pivot:{number}.{name}", b"x" * number, keep_seconds=60)
            for number in range(100)
            for name, store in (("one", one), ("two", two))
        ]
        await asyncio.gather(*jobs)
        assert len(await one.scan("pivot:")) == len(await two.scan("pivot:")) == 200
        await one.write_durably("pivot:same", b"1", keep_seconds=60)
        assert await two.read("pivot:same") == b"1"
    assert find_aside(directory) == []


async def test_after_one_process_moves_the_store_away_the_other_uses_the_new_one(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as one:
        await one.write_durably("pivot:1", b"1", keep_seconds=60)
        quarantine(directory)
        async with opened(directory) as two:
            await two.write_durably("pivot:2", b"2", keep_seconds=60)
            await one.write_durably("pivot:3", b"3", keep_seconds=60)
            assert await one.scan("") == await two.scan("") == [("pivot:2", b"2"), ("pivot:3", b"3")]
    assert len(find_aside(directory)) == 1


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
    assert find_aside(directory) == []


async def test_expired_records_are_removed_in_the_background(tmp_path: Path) -> None:
    directory, clock = tmp_path / "store", Clock()
    async with opened(directory, clock=clock) as store:
        for number in range(1_000):
            store.write(f"head:{number}", b"1", keep_seconds=10)
        await store.write_durably("pivot:1", b"1", keep_seconds=1_000)
        clock.now += 100
        await until(lambda: run_sql(directory, ("SELECT count(*) FROM Cache", ())) == [(1,)])
        assert await store.read("pivot:1") == b"1"


def count_bytes(directory: Path) -> int:
    """Of the database as it is after its next checkpoint."""
    (row,) = run_sql(
        directory, ("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", ())
    )
    assert isinstance(row[0], int)
    return row[0]


async def test_a_bounded_store_drops_the_records_written_longest_ago(tmp_path: Path) -> None:
    directory, most = tmp_path / "store", 400_000
    async with opened(directory, max_bytes=most) as store:
        await store.write_durably("head:0", random.Random(0).randbytes(2_000), keep_seconds=3_600)
        for number in range(1, 600):
            store.write(f"head:{number:03}", random.Random(number).randbytes(2_000), keep_seconds=3_600)
        # A record that is written again is the newest.
        await store.write_durably("head:0", b"again", keep_seconds=3_600)
        await until(lambda: count_bytes(directory) <= most)
        kept = sorted(key for key, _ in await store.scan(""))
    assert kept[0] == "head:0" and len(kept) > 80
    assert kept[1:] == [f"head:{number:03}" for number in range(601 - len(kept), 600)]


async def test_large_records_count_and_the_oldest_go(tmp_path: Path) -> None:
    directory, most = tmp_path / "store", 8 << 20
    async with opened(directory, max_bytes=most) as store:
        for number in range(30):
            await store.write_durably(f"head:{number:02}", bytes(400_000), keep_seconds=3_600)
        await until(lambda: count_bytes(directory) <= most)
        kept = sorted(key for key, _ in await store.scan(""))
    # Ten records go at once.
    assert len(kept) >= 10
    assert kept == [f"head:{number:02}" for number in range(30 - len(kept), 30)]


async def test_a_bound_that_was_lowered_holds_from_the_start(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory)
    async with opened(directory, max_bytes=100_000):
        await until(lambda: count_bytes(directory) <= 100_000)


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
    (aside,) = long.glob("damaged-*")
    assert (aside / "cache.db").read_bytes().startswith(b"this is not")


def test_a_row_holds_the_rendered_record(tmp_path: Path) -> None:
    directory = tmp_path / "store"

    async def write() -> None:
        async with opened(directory) as store:
            store.write("head:1", b"1", keep_seconds=60)

    asyncio.run(write())
    assert run_sql(directory, ("SELECT value FROM Cache", ())) == [(render_record("head:1", b"1"),)]
