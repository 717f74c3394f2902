"""A store whose machine is short of memory, or whose clock is set back, and what was purged there."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gateway.store import tables
from gateway.store.interface import HeldLease, Lease, Unknown, Unusable
from gateway.store.sqlite import read_snapshot
from tests.store.backends import OTHER_TAG, TAG, head, opened
from tests.store.clock import Clock
from tests.store.test_trouble import has_gap, remove_file, run_sql
from tests.toy.running import wait_until

# Short of memory, and errors that nobody has thought of


@pytest.mark.parametrize("error", [MemoryError(), TypeError("a name and its value")])
async def test_an_error_of_one_moment_ends_neither_writing_nor_hearing_of_purges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failed = []

    def fail(name: str) -> Callable[..., None]:
        def raise_error(*_: object, **__: object) -> None:
            failed.append(name)
            raise error

        return raise_error

    async with opened(tmp_path / "store") as process, opened(tmp_path / "store") as other:
        await process.keep("before")
        with monkeypatch.context() as patch:
            patch.setattr(tables, "write_batch", fail("write"))
            process.store.put(head("waits"), b"y", 60)
            await wait_until(lambda: process.store.is_away)
            with pytest.raises(Unusable) as refused:
                await process.keep("promised")
            assert "value" not in str(refused.value)
        await wait_until(lambda: not process.store.is_away)
        assert await other.get("waits") == b"y"
        with monkeypatch.context() as patch:
            patch.setattr(tables, "find_announced", fail("look"))
            await process.keep("seen")
            await wait_until(lambda: "look" in failed)
        await process.store.delete(TAG)
        await wait_until(lambda: other.heard.purges == [(TAG, None)])


# A clock that is set back


async def test_what_a_dead_process_held_is_free_although_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    async with opened(tmp_path / "store") as dead:
        await dead.lease(ttl=10)
        assert await dead.store.hold(TAG, "places", "a", 1, 10)
    async with opened(tmp_path / "store") as process:
        clock.now -= 5
        assert isinstance(await process.store.claim(TAG, "branch", ttl=10), HeldLease)
        assert not await process.store.hold(TAG, "places", "b", 1, 10)
        clock.now -= 86_400
        assert isinstance(await process.store.claim(TAG, "branch", ttl=10), Lease)
        assert await process.store.hold(TAG, "places", "b", 1, 10)


async def test_a_purge_on_a_new_file_is_newer_than_all_that_the_process_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, folder = Clock(), tmp_path / "store"
    monkeypatch.setattr(time, "time", clock)
    async with opened(folder) as process:
        clock.now += 86_400
        await process.store.delete(OTHER_TAG)
        clock.now -= 86_400
        remove_file(folder / "state.db")
        await wait_until(partial(has_gap, process))
        await process.keep("a", group="g")
        assert await process.store.delete(TAG, "g") == 1
        assert await process.get("a") is None
        assert process.heard.purges == [(OTHER_TAG, None), (TAG, "g")]


async def test_a_purge_counts_at_once_though_its_records_could_not_be_removed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise Unknown("locked")

    async with opened(tmp_path / "store") as process:
        await process.keep("a", group="g")
        monkeypatch.setattr(tables, "remove_buried", fail)
        with pytest.raises(Unknown):
            await process.store.delete(TAG)
        await wait_until(lambda: process.heard.purges == [(TAG, None)])
        assert await process.get("a") is None


async def test_a_snapshot_has_nothing_that_is_purged(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as process:
        await process.keep("a", group="g")
        run_sql(folder, "INSERT INTO purge VALUES (?, ?, ?, 0, 0)", time.time_ns() // 1_000, TAG, "g")
        await process.keep("b", group="h")
        assert [record.key.name for record in read_snapshot(folder, "head")] == ["b"]
