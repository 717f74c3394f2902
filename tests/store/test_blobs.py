"""Large values: bounded, purged to the last byte, never unpickled."""

import asyncio
import os
import pickle
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import diskcache
import pytest

from gateway.store.blobs import Blobs, DiskBlobs, make_blobs
from gateway.store.database import Damaged
from gateway.store.interface import Store, Unusable
from gateway.store.sqlite import SqliteStore
from tests.store.backends import OTHER_TAG, TAG
from tests.store.test_trouble import full
from tests.toy.running import wait_until


@asynccontextmanager
async def opened(folder: Path | None, max_bytes: int = 64 << 20) -> AsyncIterator[tuple[Store, Blobs]]:
    store = SqliteStore(folder)
    await store.open()
    blobs = make_blobs(store, folder, "originals", max_bytes=max_bytes, keep_seconds=3_600)
    try:
        yield store, blobs
    finally:
        await blobs.close()
        await store.close()


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "store" if request.param == "disk" else None


async def test_values_come_back_by_name_and_what_is_not_there_is_left_out(folder: Path | None) -> None:
    values = {"1": b"", "2": random.Random(1).randbytes(1 << 20), "3": bytes(range(256))}
    async with opened(folder) as (_, blobs):
        await blobs.put(TAG, "g", values)
        await blobs.put(TAG, "h", {"1": b"of another group"})
        assert await blobs.get(TAG, "g", ["3", "none", "1", "2"]) == values
        assert await blobs.get(OTHER_TAG, "g", ["1"]) == {}
        await blobs.put(TAG, "g", {"1": b"again"})
        assert await blobs.get(TAG, "g", ["1"]) == {"1": b"again"}


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_purge_takes_them_and_nothing_else(folder: Path | None, group: str | None) -> None:
    async with opened(folder) as (store, blobs):
        await blobs.put(TAG, "g", {"1": b"x"})
        await blobs.put(TAG, "h", {"1": b"of another group"})
        await blobs.put(OTHER_TAG, "g", {"1": b"theirs"})
        await store.delete(TAG, group)
        await blobs.delete(TAG, None if group is None else [group])
        assert await blobs.get(TAG, "g", ["1"]) == {}
        assert bool(await blobs.get(TAG, "h", ["1"])) is (group is not None)
        assert await blobs.get(OTHER_TAG, "g", ["1"]) == {"1": b"theirs"}


async def test_values_outlive_the_process_and_are_seen_by_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as (_, one), opened(tmp_path / "store") as (_, other):
        await one.put(TAG, "g", {"1": b"x"})
        assert await other.get(TAG, "g", ["1"]) == {"1": b"x"}
    async with opened(tmp_path / "store") as (_, blobs):
        assert await blobs.get(TAG, "g", ["1"]) == {"1": b"x"}


async def test_no_byte_is_left_in_any_file_also_of_what_another_process_puts_later(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as (store, one), opened(folder) as (_, other):
        for number in range(50):
            await one.put(TAG, "g", {str(number): b"THE SECRET " * random.Random(number).randrange(1, 9_000)})
        await one.delete(TAG, ["g"])
        # It did not know of the purge yet.
        await other.put(TAG, "g", {"late": b"THE SECRET"})
        await store.delete(TAG, "g")

        def is_gone() -> bool:
            files = [path for path in folder.rglob("*") if path.is_file()]
            return not any(b"SECRET" in path.read_bytes() for path in files)

        await wait_until(is_gone)
        assert await other.get(TAG, "g", ["late", "1"]) == {}


@pytest.mark.parametrize("group", [None, "g"])
async def test_what_is_put_after_a_purge_stays_when_another_process_hears_of_it_late(
    tmp_path: Path, group: str | None
) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as (_, one), opened(folder) as (_, other):
        assert isinstance(other, DiskBlobs)
        await one.put(TAG, "g", {"old": b"x"})
        await other.put(OTHER_TAG, "g", {"theirs": b"x"})
        number = time.time_ns() // 1_000
        await one.put(TAG, "g", {"new": b"x"})
        other.on_purged(TAG, group, number)
        await asyncio.gather(*other._evictions)
        assert await one.get(TAG, "g", ["old", "new"]) == {"new": b"x"}
        await other.put(TAG, "g", {"did not know": b"x"})
        other.on_purged(TAG, group, number)
        await asyncio.gather(*other._evictions)
        assert await one.get(TAG, "g", ["did not know"]) == {}
        assert await one.get(OTHER_TAG, "g", ["theirs"]) == {"theirs": b"x"}


async def test_no_byte_of_what_has_expired_is_left_though_nobody_writes(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path / "blobs" / "named", 1 << 20, 3_600, sweep_seconds=0.05)
    await blobs.open()
    try:
        values = {str(number): b"THE SECRET" * 50 for number in range(250)}
        await blobs.put(TAG, "g", values, keep_seconds=0.1)
        await blobs.put(TAG, "g", {"stays": b"x"})

        def is_gone() -> bool:
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            return not any(b"SECRET" in path.read_bytes() for path in files)

        await wait_until(is_gone)
        assert await blobs.get(TAG, "g", ["1", "stays"]) == {"stays": b"x"}
    finally:
        await blobs.close()


async def test_beyond_the_bound_the_oldest_go(tmp_path: Path) -> None:
    folder, most = tmp_path / "store", 4 << 20
    async with opened(folder, most) as (_, blobs):
        for number in range(200):
            await blobs.put(TAG, "g", {str(number): random.Random(number).randbytes(50_000)})
        kept = await blobs.get(TAG, "g", [str(number) for number in range(200)])
        assert len(kept) > 50 and "199" in kept
        assert list(map(int, kept)) == list(range(200 - len(kept), 200))
        assert (folder / "blobs" / "originals" / "cache.db").stat().st_size < most * 1.1


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5, "1"])
async def test_a_row_that_claims_to_be_a_pickle_is_never_unpickled(tmp_path: Path, mode: object) -> None:
    folder, fired = tmp_path / "store", tmp_path / "fired"
    bomb = pickle.dumps(Bomb(fired))
    async with opened(folder) as (_, blobs):
        await blobs.put(TAG, "g", {"fine": b"x"})
    (folder / "blobs" / "originals" / "bomb.val").write_bytes(bomb)
    plant = (
        "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, mode, filename, value, tag)"
        " VALUES (?, ?, 0, ?, 0, ?, ?, ?, ?)"
    )
    until, tag = time.time() + 1_000, f"{TAG}/g"
    rows = [("bomb", 1, None, bomb), ("file", 1, "bomb.val", None), ("out", 1, "../../../fired", None)]
    with closing(sqlite3.connect(folder / "blobs" / "originals" / "cache.db")) as connection:
        for name, raw, file, value in rows:
            connection.execute(plant, (f"{TAG}/g/{name}", raw, until, mode, file, value, tag))
        connection.execute(plant, (bomb, 0, until, 1, None, b"", tag))
        connection.commit()
    async with opened(folder) as (_, blobs):
        assert await blobs.get(TAG, "g", ["bomb", "file", "out", "fine"]) == {"fine": b"x"}
        await blobs.put(TAG, "g", {"bomb": b"new"})
        assert await blobs.get(TAG, "g", ["bomb"]) == {"bomb": b"new"}
        await blobs.delete(TAG)
        assert await blobs.get(TAG, "g", ["bomb", "fine"]) == {}
    assert not fired.exists()
    pickle.loads(bomb)  # noqa: S301  # the bomb is real
    assert fired.exists()


async def test_a_damaged_folder_is_set_aside_and_an_empty_one_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as (_, blobs):
        await blobs.put(TAG, "g", {"1": b"x"})
    (folder / "blobs" / "originals" / "cache.db").write_bytes(b"this is not a database" * 1_000)
    async with opened(folder) as (store, blobs):
        assert await blobs.get(TAG, "g", ["1"]) == {}
        await blobs.put(TAG, "g", {"1": b"new"})
        assert await blobs.get(TAG, "g", ["1"]) == {"1": b"new"}
        assert len(list((folder / "blobs").glob("originals.damaged-*"))) == 1
        await store.delete(OTHER_TAG)
        assert [path.name for path in (folder / "blobs").iterdir()] == ["originals"]


async def test_a_process_that_meets_the_damage_late_leaves_the_new_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with opened(folder) as (_, one), opened(folder) as (_, late):
        assert isinstance(late, DiskBlobs)
        await one.put(TAG, "g", {"1": b"x"})

        def meet_damage(cache: diskcache.Cache) -> None:
            """In the middle of its call another process begins anew."""
            if not list((folder / "blobs").glob("originals.damaged-*")):
                os.rename(folder / "blobs" / "originals", folder / "blobs" / "originals.damaged-1")
                asyncio.run_coroutine_threadsafe(one.put(TAG, "g", {"2": b"new"}), loop).result()
                raise Damaged("the old database")

        loop = asyncio.get_running_loop()
        await late._call(meet_damage)
        assert await one.get(TAG, "g", ["1", "2"]) == {"2": b"new"}
        assert await late.get(TAG, "g", ["1", "2"]) == {"2": b"new"}


async def test_a_full_disk_refuses_and_is_written_again_when_it_has_room(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as (_, blobs):
        await blobs.put(TAG, "g", {"1": b"x"})
        with full(1 << 17):
            with pytest.raises(Unusable):
                await blobs.put(TAG, "g", {"2": b"x" * (1 << 20)})
            assert await blobs.get(TAG, "g", ["1", "2"]) == {"1": b"x"}
        await blobs.put(TAG, "g", {"2": b"y"})
        assert await blobs.get(TAG, "g", ["1", "2"]) == {"1": b"x", "2": b"y"}
