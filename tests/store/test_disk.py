"""The store on disk: kills, full and locked disks, planted rows, expiry and bounds."""

import asyncio
import contextlib
import logging
import pickle
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store import StoreError
from gateway.store.record import parse_record, render_record
from tests.store.clock import Clock
from tests.store.directory import (
    PLANT,
    count_bytes,
    fill,
    find_quarantined,
    opened,
    run_sql,
)
from tests.store.keep_writing import make_value
from tests.toy.running import wait_until

ROOT = Path(__file__).resolve().parents[2]


async def test_a_kill_at_any_moment_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    directory, durable = tmp_path / "store", set[str]()
    for round_, count in enumerate((1, 2, 5, 9, 14, 20)):
        durable |= run_until_killed(directory, round_, count)
        async with opened(directory) as store:
            found = dict(await store.scan(""))
        assert durable <= set(found)
        for key, value in found.items():
            name = value.partition(b"|")[0].decode()
            assert value == make_value(name)
            assert key.startswith("same:") or key.endswith(f":{name}")
    assert len(durable) > 50
    assert find_quarantined(directory) == []


def run_until_killed(directory: Path, round_: int, count: int) -> set[str]:
    """count: of writes that are durable when it is killed, or a little later: it does not wait for us."""
    command = [sys.executable, "-m", "tests.store.keep_writing", str(directory), str(round_)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = [child.stdout.readline().strip() for _ in range(count)]
        child.send_signal(signal.SIGKILL)
        # The last line may be torn. Its key was not reported as durable then.
        rest = child.stdout.read().rpartition("\n")[0]
    return {*first, *rest.split()}


async def test_without_its_disk_records_are_kept_in_memory_and_one_line_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "store"
    async with opened(directory) as store:
        shutil.rmtree(directory)
        directory.write_text("in the way")
        store.write("head:1", b"1", keep_seconds=60)
        for _ in range(3):
            with pytest.raises(StoreError):
                await store.write_durably("pivot:1", b"1", keep_seconds=60)
        assert await store.read("head:1") == b"1"
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
        assert directory.read_text() == "in the way"
        directory.unlink()
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
    assert find_quarantined(directory) == []
    async with opened(directory) as store:
        assert [key for key, _ in await store.scan("pivot:")][:2] == ["pivot:1", "pivot:2"]
        assert await store.read("head:1") == b"2"


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


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5, "1"])
async def test_a_row_that_claims_to_be_a_pickle_is_never_unpickled(tmp_path: Path, mode: object) -> None:
    directory, fired = tmp_path / "store", tmp_path / "fired"
    await fill(directory, 1)
    bomb = pickle.dumps(Bomb(fired))
    (directory / "bomb.val").write_bytes(bomb)
    until = time.time() + 1_000
    run_sql(
        directory,
        (PLANT, ("head:bomb", 1, until, mode, None, bomb)),
        (PLANT, ("head:file", 1, until, mode, "bomb.val", None)),
        (PLANT, ("head:out", 1, until, mode, "../fired", None)),
        (PLANT, (bomb, 0, until, 1, None, b"")),
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
    assert find_quarantined(directory) == []
    pickle.loads(bomb)  # noqa: S301  # the bomb is real
    assert fired.exists()


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


_KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@given(_KEYS, st.binary(), st.data())
def test_a_torn_or_altered_record_is_none(key: str, payload: bytes, data: st.DataObject) -> None:
    record = render_record(key, payload)
    cut = data.draw(st.integers(0, len(record) - 1))
    flipped = bytes([record[cut] ^ data.draw(st.integers(1, 255))])
    assert parse_record(key, record[:cut]) is None
    assert parse_record(key, record[:cut] + flipped + record[cut + 1 :]) is None
    assert parse_record(key, record + b"\0") is None
