"""The store as a whole: crashes, other processes, and a disk that cannot be written."""

import asyncio
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.store import StoreError
from tests.store.directory import find_quarantined, opened
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


async def test_too_many_writes_at_once_are_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "store", max_queued_bytes=10_000) as store:
        for number in range(100):
            store.write(f"head:{number}", bytes(1_000), keep_seconds=60)
        with pytest.raises(StoreError):
            await store.write_durably("pivot:1", bytes(20_000), keep_seconds=60)
        await wait_until(lambda: bool(caplog.records))
    assert len(caplog.records) == 1


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
    assert find_quarantined(directory) == []
